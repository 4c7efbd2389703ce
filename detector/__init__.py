"""What finds the boxes: configuration, network, training, and `Detector` for other programs."""

from detector.pipeline import Detector

__all__ = ["Detector"]
