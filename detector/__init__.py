"""What finds the boxes: configuration, network, training, and `Detector` for other programs."""

from detector.detector import Detector

__all__ = ["Detector"]
