"""LAS and LAZ files (ASPRS), by the library laspy."""

from __future__ import annotations

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
    except (laspy.LaspyException, ValueError, OSError, EOFError, RuntimeError) as error:
        raise ValueError(f"{path}: not a LAS file, or cut off ({str(error)[:80]})") from None
    scaled = {axis: np.array(getattr(cloud, axis)) for axis in "xyz"}
    others = cloud.point_format.dimension_names
    return scaled | {name: np.array(cloud[name]) for name in others if name not in "XYZ"}
