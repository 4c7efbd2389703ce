"""The network and its inference (`Detector`). Subpackages: models/, training/ and draw/."""

from millisecond.detector.detector import Detector

__all__ = ["Detector"]
