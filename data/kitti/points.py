"""KITTI point clouds: little-endian float32, 4 a point (x, y, z, intensity)."""

from pathlib import Path

import numpy as np

POINT_BYTES = 16


def read_points(path: Path | str) -> np.ndarray:
    """Read a .bin file as [P, 4] float32; a file of 0 bytes is a cloud of 0 points.

    Raises ValueError when the size is not a whole number of points.
    """
    path = Path(path)
    size = path.stat().st_size
    if size % POINT_BYTES:
        raise ValueError(
            f"{path}: {size} bytes are not a multiple of {POINT_BYTES} (4 float32 a point); "
            "the file is cut off or not a KITTI cloud"
        )
    return np.fromfile(path, "<f4").astype(np.float32, copy=False).reshape(-1, 4)
