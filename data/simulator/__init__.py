"""Random streets, scanned by a simulated LiDAR."""

from millisecond.data.simulator.recording import (
    RecordedFrame,
    SimulatedStreets,
    record,
    simulate,
    simulate_varied,
    simulated_calibration,
)
from millisecond.data.simulator.trees import write_drive, write_kitti_tree

__all__ = [
    "RecordedFrame",
    "SimulatedStreets",
    "record",
    "simulate",
    "simulate_varied",
    "simulated_calibration",
    "write_drive",
    "write_kitti_tree",
]
