"""Clouds in files of any kind that this project reads: .bin, .npy, .pcd and .ply."""

from pathlib import Path

import numpy as np

from data.kitti.points import read_points
from data.pcd import read_pcd
from data.ply import read_ply
from data.point_columns import KITTI_POINTS, PointColumns
from data.point_fields import Cloud
from data.scan_checks import require_scan

SUFFIXES = (".bin", ".npy", ".pcd", ".ply")


def read_cloud(path: Path | str) -> Cloud:
    """Read a file by its suffix. Intensities stay as they are there: see data.intensity.

    Raises ValueError for what is no scan: another kind of file, a cut-off file, numbers that no
    LiDAR measured.
    """
    path = Path(path)
    if path.suffix not in (".pcd", ".ply"):
        return Cloud(read_points(path), np.dtype(np.float32))
    cloud = read_pcd(path) if path.suffix == ".pcd" else read_ply(path)
    require_scan(cloud.points, path)
    return cloud


def read_scan(path: Path | str, columns: PointColumns = KITTI_POINTS) -> np.ndarray:
    """Read a file as [P, columns.width] float32, the intensity divided by its scale.

    Raises ValueError for what is no scan, and for columns that are not in it.
    """
    points = read_cloud(path).points
    if columns.intensity_scale != 1:
        points[:, 3] /= columns.intensity_scale
    return points
