"""Detection in scans as they come: a thread that detects and tracks, and its statistics."""

from detector.live.detection import LiveDetection, warm_up
from detector.live.frame import LiveFrame, Objects
from detector.live.statistics import Statistics

__all__ = ["LiveDetection", "LiveFrame", "Objects", "Statistics", "warm_up"]
