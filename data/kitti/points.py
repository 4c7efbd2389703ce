"""KITTI point clouds: little-endian float32, 4 a point (x, y, z, intensity)."""

from collections.abc import Sequence
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


def find_scans(inputs: Sequence[Path]) -> list[Path]:
    """The .bin files named or in the folders named, sorted within a folder.

    Raises FileNotFoundError or ValueError for what is not there, or two scans of one name.
    """
    scans = []
    for path in inputs:
        if path.is_dir():
            found = sorted(path.glob("*.bin"))
            if not found:
                raise FileNotFoundError(f"{path}: no .bin files in this folder")
            scans += found
        elif path.is_file():
            scans.append(path)
        else:
            raise FileNotFoundError(f"{path}: no such file or folder")
    names = {}
    for scan in scans:
        other = names.setdefault(scan.stem, scan)
        if other is not scan:
            raise ValueError(f"{scan}: its results would overwrite those of {other}; run it apart")
    return scans
