"""Tracks through the boxes of successive scans: identities and velocities."""

from detector.tracking.ego_motion import EgoMotion
from detector.tracking.tracker import Tracker, Tracks

__all__ = ["EgoMotion", "Tracker", "Tracks"]
