"""Poses [4, 4], rigid motions that take points of one frame to another, and the motion of the car
itself from its scans (odometry)."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np

from millisecond.data.files import require
from millisecond.ops.transfer import require_unmasked

LOOSE = 1e-3  # allowed error of a rotation's products


def check_pose(pose: np.ndarray) -> np.ndarray:
    """The pose in float64. Raises ValueError for what is not a rigid motion."""
    require_unmasked("pose", pose)
    pose = np.asarray(pose, np.float64)
    if pose.shape != (4, 4):
        raise ValueError(f"pose has shape {list(pose.shape)}; it must be [4, 4]")
    turn = pose[:3, :3]
    rigid = np.isfinite(pose).all() and np.abs(turn @ turn.T - np.eye(3)).max() <= LOOSE
    if not (rigid and np.linalg.det(turn) > 0 and (pose[3] == [0, 0, 0, 1]).all()):
        raise ValueError(
            f"pose {pose.round(3).tolist()} is not a rigid motion: a rotation, a shift and a last "
            "row of 0 0 0 1"
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


USER = "the car's own motion"
FINE = 0.3  # metres: voxels of a recording's map; KISS-ICP's own, of 1 m, are faster


class EgoMotion:
    """Odometry by KISS-ICP (Vizzo et al., RA-L 2023): scans of one recording -> poses.

    Raises ValueError with the line to type where kiss-icp is missing.
    """

    def __init__(self, voxel: float | None = None) -> None:
        """voxel: size of the map's voxels in metres; KISS-ICP's own unless given."""
        config = require("kiss_icp.config.parser", USER).load_config(None)
        if voxel is not None:
            config.mapping.voxel_size = voxel
        config.data.deskew = False  # it needs a time per point
        config.registration.max_num_threads = 1  # sums in one order: every run gives the same
        self._odometry = require("kiss_icp.kiss_icp", USER).KissICP(config)
        self._time = -math.inf  # of the scan before
        self._step = math.inf  # seconds between the two scans before

    @classmethod
    def of_recording(cls, beginning: Iterable[tuple[np.ndarray, float]]) -> EgoMotion:
        """For a recording, as exact as time allows.

        beginning: scans and times of its first seconds. Odometry takes the car to stand at first,
        and on a fast road it needs a second to notice. So it goes through the beginning twice; the
        second time it knows how fast the car is.
        """
        before, ego = cls(FINE), cls(FINE)
        for points, time in beginning:
            before(points, time)
        ego._odometry.last_delta = before._odometry.last_delta
        return ego

    def __call__(self, points: np.ndarray, time: float) -> np.ndarray:
        """points [P, 3 or more] of a scan in its LiDAR frame, time in seconds, after the time of
        the scan before -> pose [4, 4] float64 from its LiDAR frame to the world: the first scan's
        LiDAR frame, or near it for a recording.

        Points that are not finite are left out. A scan without points is taken to go on as before.
        """
        require_unmasked("points", points)
        if not (math.isfinite(time) and time > self._time):
            raise ValueError(f"time {time} is not after {self._time}, the time of the scan before")
        step, odometry = time - self._time, self._odometry
        if math.isfinite(self._step) and not math.isclose(step, self._step, rel_tol=0.05):
            # its first guess is the motion before: for as long as has passed now
            odometry.last_delta = _stretched(odometry.last_delta, step / self._step)
        finite = np.isfinite(points[:, :3]).all(axis=1)
        places = np.ascontiguousarray(points[finite, :3], np.float64)
        odometry.register_frame(places, np.zeros(0))
        self._time, self._step = time, step
        return odometry.last_pose.copy()


def _stretched(motion: np.ndarray, factor: float) -> np.ndarray:
    """A small rigid motion [4, 4], so many times as long."""
    from scipy.spatial.transform import Rotation  # a slow import

    longer = np.eye(4)
    turn = Rotation.from_matrix(motion[:3, :3]).as_rotvec()
    longer[:3, :3] = Rotation.from_rotvec(factor * turn).as_matrix()
    longer[:3, 3] = factor * motion[:3, 3]
    return longer
