"""The average precision of the KITTI benchmark."""
