"""LAS files (ASPRS), by the library laspy. LAZ is not read: on damaged files its decoder aborts."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np

from data.files import require_file
from data.point_fields import require_size


def las_fields(path: Path) -> dict[str, np.ndarray]:
    """Coordinates in metres as the file scales them, and its other dimensions by name.

    Raises ValueError for what is no LAS file, and where laspy is not installed.
    """
    require_file(path)
    require_size(path.stat().st_size, path)
    _require_header(path)
    try:
        import laspy
    except ImportError:
        raise ValueError(
            f"{path}: reading it needs laspy: pip install -e '.[las]'; or write it as .pcd"
        ) from None
    try:
        with laspy.open(path) as file:
            require_size(file.header.point_count * file.header.point_format.size, path)
            cloud = file.read()
        with np.errstate(over="ignore", invalid="ignore"):
            scaled = {axis: np.array(getattr(cloud, axis)) for axis in "xyz"}
        others = [name for name in cloud.point_format.dimension_names if name not in "XYZ"]
        return scaled | {name: np.array(cloud[name]) for name in others}
    except Exception as error:  # its parser raises whatever it meets in a damaged file
        reason = " ".join(str(error).split())[:80]
        raise ValueError(f"{path}: not a LAS file, or cut off ({reason})") from None


def _require_header(path: Path) -> None:
    """Raises ValueError for a header that promises more records than the file holds: laspy would
    look for them one by one (LAS 1.4, table 3: 54 and 60 bytes at least per record)."""
    with path.open("rb") as file:
        header = file.read(247)
    if not header.startswith(b"LASF") or len(header) < 104:
        raise ValueError(f"{path}: not a LAS file, or cut off")
    (records,) = struct.unpack_from("<I", header, 100)
    newer = header[25] >= 4 and len(header) == 247  # the minor version
    extended = struct.unpack_from("<I", header, 243)[0] if newer else 0
    if 54 * records + 60 * extended > path.stat().st_size:
        raise ValueError(f"{path}: not a LAS file: {records + extended} records do not fit into it")
