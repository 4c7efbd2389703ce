"""Scores of boxes in the LiDAR frame, for any sensor: neither camera nor image is needed."""
