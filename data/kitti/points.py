"""Point clouds in files: KITTI's .bin (little-endian float32, 4 per point: x, y, z, intensity), and
arrays of such points in .npy."""

from collections.abc import Sequence
from pathlib import Path
from tokenize import TokenError

import numpy as np

from data.files import require_file
from data.point_columns import KITTI
from data.scan_checks import require_scan

POINT_BYTES = 16
NO_ARRAY = (
    ValueError,
    EOFError,
    OSError,
    SyntaxError,
    TokenError,
    OverflowError,
    TypeError,
    MemoryError,
)
LARGEST = 1 << 30  # bytes of a scan: 67 million points
OTHERS = {  # the first bytes of other files, four at least: fewer may be those of a number
    np.lib.format.MAGIC_PREFIX: ".npy",
    b"# .PCD": "PCD",
    b"VERSION": "PCD",
    b"ply\n": "PLY",
    b"ply\r": "PLY",
    b"LASF": "LAS",
    b"#ROSBAG": "ROS bag",
    b"PK\x03\x04": "zip",
    b"\x89HDF": "HDF5",
}


def read_points(path: Path | str) -> np.ndarray:
    """Read a .bin or .npy file as [P, 4] float32; a .bin file of 0 bytes is a cloud of 0 points.

    Raises ValueError for what is no scan: another kind of file, other columns, numbers that no
    LiDAR measured.
    """
    points = read_rows(path, KITTI)
    require_scan(points, path)
    return points


def read_rows(path: Path | str, columns: Sequence[str]) -> np.ndarray:
    """Read a .bin or .npy file of these columns as [P, len(columns)] float32.

    Raises ValueError for another kind of file, or another number of columns.
    """
    path = Path(path)
    require_file(path)
    size = path.stat().st_size
    if size > LARGEST:
        raise ValueError(f"{path}: {size} bytes are more than a scan has")
    if path.suffix.lower() == ".npy":
        return _read_npy(path, columns)
    return _read_bin(path, size, columns)


def _read_bin(path: Path, size: int, columns: Sequence[str]) -> np.ndarray:
    with path.open("rb") as file:
        start = file.read(4096)
    kind = next((kind for magic, kind in OTHERS.items() if start.startswith(magic)), None)
    if kind == ".npy":
        raise ValueError(f"{path}: this is a .npy file; rename it to {path.stem}.npy")
    if kind:
        raise ValueError(
            f"{path}: this is a {kind} file; write its points as float32 {', '.join(columns)}"
        )
    if start and all(byte in b"\t\n\r" or 32 <= byte < 127 for byte in start):
        raise ValueError(f"{path}: this is a text file, not a scan of float32")
    width = len(columns)
    if size % (4 * width):
        fitting = next((n for n in (4, 5, 6, 3) if n != width and size % (4 * n) == 0), None)
        others = f"; or has it {fitting} columns?" if fitting else ""
        ours = "not a KITTI cloud" if tuple(columns) == KITTI else f"not of {', '.join(columns)}"
        raise ValueError(
            f"{path}: {size} bytes are not a multiple of {4 * width} ({width} float32 per point); "
            f"the file is cut off or {ours}{others}"
        )
    return np.fromfile(path, "<f4").astype(np.float32, copy=False).reshape(-1, width)


def _read_npy(path: Path, columns: Sequence[str]) -> np.ndarray:
    try:
        # mapped: a header that promises more than the file has then fails before it takes memory
        points = np.load(path, mmap_mode="r", allow_pickle=False)
    except NO_ARRAY as error:
        raise ValueError(
            f"{path}: not an array in a .npy file ({' '.join(str(error).split())[:80]})"
        ) from None
    if not isinstance(points, np.ndarray) or points.dtype.kind != "f":
        raise ValueError(f"{path}: not an array of floating-point numbers")
    if points.ndim != 2 or points.shape[1] != len(columns):
        raise ValueError(
            f"{path}: an array of shape {list(points.shape)}; a scan is [P, {len(columns)}]: "
            f"{', '.join(columns)}"
        )
    with np.errstate(over="ignore"):
        return np.array(points, np.float32, order="C")  # not mapped any more
