"""Streets made up at random and scanned by a simulated 64-beam LiDAR."""

from data.simulator.kitti_tree import write_kitti_tree
from data.simulator.recording import Recording, record, simulate, simulated_calibration

__all__ = ["Recording", "record", "simulate", "simulated_calibration", "write_kitti_tree"]
