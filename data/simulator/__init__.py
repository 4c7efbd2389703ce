"""Streets made up at random and scanned by a simulated LiDAR."""

from data.simulator.dataset import SimulatedStreets
from data.simulator.drive import write_drive
from data.simulator.kitti_tree import write_kitti_tree
from data.simulator.recording import Recording, record, simulate, simulated_calibration

__all__ = [
    "Recording",
    "SimulatedStreets",
    "record",
    "simulate",
    "simulated_calibration",
    "write_drive",
    "write_kitti_tree",
]
