"""Road planes, as files beside the labels give them for some frames."""

from pathlib import Path

import numpy as np

from data.files import read_text
from data.kitti.calibration import Calibration


def read_plane(path: Path | str, calibration: Calibration) -> np.ndarray:
    """Read `planes/000123.txt`: three lines of heading, then a b c d of the rectified camera frame.

    Returns [4] float32 (a, b, c, d) in the LiDAR frame, a x + b y + c z + d = 0, the normal of
    length 1 and up. Raises ValueError for a file without four numbers or a plane that stands up.
    """
    path = Path(path)
    lines = read_text(path).splitlines()
    try:
        plane = np.array(lines[3].split() if len(lines) > 3 else [], np.float64)
    except ValueError as error:
        raise ValueError(f"{path}, line 4: {error}") from None
    if plane.shape != (4,) or not np.isfinite(plane).all():
        raise ValueError(f"{path}: line 4 must be the four numbers a b c d of a road plane")
    plane = calibration.plane_from_camera(plane)
    plane /= np.linalg.norm(plane[:3]) or 1.0
    if abs(plane[2]) < 0.5:
        raise ValueError(f"{path}: the plane is not the road's, it stands up (normal {plane[:3]})")
    return (plane * np.sign(plane[2])).astype(np.float32)
