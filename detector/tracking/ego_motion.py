"""The motion of the car itself, from its scans."""

from __future__ import annotations

import numpy as np

MISSING = "the car's own motion needs kiss-icp: pip install -e '.[live]'"


class EgoMotion:
    """Odometry by KISS-ICP (Vizzo et al., RA-L 2023): scans in the order of time -> poses.

    Raises ValueError with the line to type where kiss-icp is missing.
    """

    def __init__(self) -> None:
        try:
            from kiss_icp.config.parser import load_config
            from kiss_icp.kiss_icp import KissICP
        except ModuleNotFoundError:
            raise ValueError(MISSING) from None
        config = load_config(None)
        config.data.deskew = False  # needs a time per point
        config.registration.max_num_threads = 1  # the same result in every run
        self._odometry = KissICP(config)

    def __call__(self, points: np.ndarray, time: float) -> np.ndarray:
        """points [P, 3 or more] in the LiDAR frame, time in seconds -> pose [4, 4] float64 that
        takes this scan's LiDAR frame to that of the first scan."""
        frame = np.ascontiguousarray(points[:, :3], np.float64)
        self._odometry.register_frame(frame, np.zeros(0))
        return self._odometry.last_pose.copy()
