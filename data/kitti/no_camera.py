"""Boxes of a data set without a camera in the form that KITTI's metric takes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from data.kitti.calibration import Calibration, observation_angle
from data.kitti.labels import DECIMALS, Labels

# A camera at the LiDAR that looks along x; only its axes are used.
CALIBRATION = Calibration(
    p2=np.array([[700.0, 0, 600, 0], [0, 700, 180, 0], [0, 0, 1, 0]]),
    r0_rect=np.eye(3),
    velo_to_cam=np.array([[0.0, -1, 0, 0], [0, 0, -1, 0], [1, 0, 0, 0]]),
)
SEEN = (0.0, 0.0, 100.0, 100.0)  # image box of every object: high enough for each difficulty


def boxes_to_labels(
    boxes: np.ndarray, names: Sequence[str], scores: np.ndarray | None = None
) -> Labels:
    """Boxes [M, 7] in the LiDAR frame -> Labels that are easy for KITTI's metric, wherever they
    are: of its figures those of bird's-eye view and 3-D mean something."""
    camera = CALIBRATION.boxes_to_camera(boxes).round(DECIMALS)
    count = len(camera)
    return Labels(
        types=np.array(names, dtype=str),
        truncated=np.zeros(count),
        occluded=np.zeros(count, np.int64),
        alpha=observation_angle(camera).round(DECIMALS),
        bbox=np.tile(SEEN, (count, 1)),
        size=camera[:, 3:6],
        location=camera[:, :3],
        rotation_y=camera[:, 6],
        score=None if scores is None else np.asarray(scores, np.float64),
    )
