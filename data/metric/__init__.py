"""Scores of detections and tracks: the KITTI benchmark's metric, and scores that need no camera."""
