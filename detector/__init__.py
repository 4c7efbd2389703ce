"""What finds the boxes: all that inference needs. Rooms of their own: `training/` and `draw/`."""

from detector.detector import Detector

__all__ = ["Detector"]
