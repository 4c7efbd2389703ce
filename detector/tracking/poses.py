"""Poses [4, 4]: rigid motions that take points of one frame to another."""

from __future__ import annotations

import numpy as np

LOOSE = 1e-3  # allowed error of a rotation's products


def check_pose(pose: np.ndarray) -> np.ndarray:
    """The pose in float64. Raises ValueError for what is no rigid motion."""
    pose = np.asarray(pose, np.float64)
    if pose.shape != (4, 4):
        raise ValueError(f"pose has shape {list(pose.shape)}; it must be [4, 4]")
    turn = pose[:3, :3]
    rigid = np.isfinite(pose).all() and np.abs(turn @ turn.T - np.eye(3)).max() <= LOOSE
    if not (rigid and np.linalg.det(turn) > 0 and (pose[3] == [0, 0, 0, 1]).all()):
        raise ValueError(
            f"pose {pose.round(3).tolist()} is no rigid motion: a rotation, a shift and a last row "
            "of 0 0 0 1"
        )
    return pose


def inverse(pose: np.ndarray) -> np.ndarray:
    """The pose that takes the points back."""
    back = np.eye(4)
    back[:3, :3] = pose[:3, :3].T
    back[:3, 3] = -pose[:3, :3].T @ pose[:3, 3]
    return back


def move_boxes(boxes: np.ndarray, pose: np.ndarray) -> np.ndarray:
    """Boxes [n, 7] in the frame that the pose leads to; they stay upright there."""
    moved = np.array(boxes, np.float64)
    moved[:, :3] = moved[:, :3] @ pose[:3, :3].T + pose[:3, 3]
    heading = np.stack([np.cos(boxes[:, 6]), np.sin(boxes[:, 6])], axis=1) @ pose[:2, :2].T
    moved[:, 6] = np.arctan2(heading[:, 1], heading[:, 0])
    return moved
