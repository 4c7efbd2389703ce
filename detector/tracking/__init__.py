"""Tracks through the boxes of successive scans: identities and velocities."""

from millisecond.detector.tracking.ego_motion import EgoMotion
from millisecond.detector.tracking.tracker import Tracker, Tracks

__all__ = ["EgoMotion", "Tracker", "Tracks"]
