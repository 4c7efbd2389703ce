"""Data sets of plain files: clouds, labels in the LiDAR's frame, lists of frames."""
