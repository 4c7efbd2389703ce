"""Clouds in files of any kind that this project reads."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from zipfile import BadZipFile, ZipFile

import numpy as np

from data.files import require_file
from data.kitti.points import NO_ARRAY, read_points, read_rows
from data.las import las_fields
from data.pcd import pcd_fields
from data.ply import ply_fields
from data.point_columns import AXES, INTENSITY, KITTI_POINTS, PointColumns
from data.point_fields import Cloud, cloud_of, named_columns, require_size
from data.scan_checks import require_scan

SUFFIXES = (".bin", ".npy", ".npz", ".pcd", ".ply", ".las")
ROWS = (".bin", ".npy")  # columns without names


def read_cloud(path: Path | str) -> Cloud:
    """Read a file by its suffix, the first four columns of a file without names. Intensities stay
    as they are there: see data.intensity.

    Raises ValueError for what is no scan: another kind of file, a cut-off file, numbers that no
    LiDAR measured.
    """
    path = Path(path)
    if path.suffix.lower() in ROWS:
        return Cloud(read_points(path), np.dtype(np.float32))
    cloud = cloud_of(read_fields(path, KITTI_POINTS.columns), path)
    require_scan(cloud.points, path)
    return cloud


def read_scan(path: Path | str, points: PointColumns = KITTI_POINTS) -> np.ndarray:
    """Read a file by its suffix as [P, points.width] float32: x, y, z, intensity / its scale (0
    where it is no feature), other features.

    A point of a file with named fields whose x, y or z is not finite is left out: it stands for a
    ray without an echo. Raises ValueError as `read_cloud`, and for features that the file lacks.
    """
    path = Path(path)
    named = named_columns(read_fields(path, points.columns))
    missing = next((name for name in points.features if name.lower() not in named), None)
    if missing is not None:
        raise ValueError(
            f"{path}: no field {missing}, which points.features of the configuration names; the "
            f"file has {', '.join(named)[:200] or 'none'}"
        )
    scan = np.zeros((len(named["x"]), points.width), np.float32)
    with np.errstate(over="ignore", invalid="ignore"):
        for place, name in enumerate((*AXES, INTENSITY, *points.others)):
            if name in points.features:
                scan[:, place] = named[name.lower()]
    if path.suffix.lower() not in ROWS:
        scan = scan[np.isfinite(scan[:, :3]).all(axis=1)]
    require_scan(scan[:, :4], path, points.columns)
    if points.intensity_scale != 1:
        scan[:, 3] /= np.float32(points.intensity_scale)
    return scan


def read_fields(path: Path, columns: Sequence[str]) -> Mapping[str, np.ndarray]:
    """The numbers of a file by name; columns: their names where the file has none.

    Raises ValueError for another kind of file, or a damaged one.
    """
    match path.suffix.lower():
        case ".pcd":
            return pcd_fields(path)
        case ".ply":
            return ply_fields(path)
        case ".npz":
            return _npz_fields(path, columns)
        case ".las":
            return las_fields(path)
    return dict(zip(columns, read_rows(path, columns).T, strict=True))


def _npz_fields(path: Path, columns: Sequence[str]) -> dict[str, np.ndarray]:
    """An array per column, or one array [P, C] of all."""
    require_file(path)
    try:
        with ZipFile(path) as archive:
            size = sum(entry.file_size for entry in archive.infolist())
    except (BadZipFile, OSError) as error:
        raise ValueError(f"{path}: not a .npz file ({str(error)[:80]})") from None
    require_size(size, path)  # before anything is unpacked
    try:
        with np.load(path, allow_pickle=False) as stored:
            arrays = {name: stored[name] for name in stored.files}
    except (*NO_ARRAY, BadZipFile, zlib.error, NotImplementedError, RuntimeError) as error:
        raise ValueError(
            f"{path}: not arrays in a .npz file ({' '.join(str(error).split())[:80]})"
        ) from None
    if any(array.dtype.kind not in "fiu" for array in arrays.values()):
        raise ValueError(f"{path}: an array is not of numbers")
    tables = [array for array in arrays.values() if array.ndim == 2]
    if len(arrays) == 1 and tables:
        (table,) = tables
        if table.shape[1] != len(columns):
            raise ValueError(
                f"{path}: an array of shape {list(table.shape)}; a scan is [P, {len(columns)}]: "
                f"{', '.join(columns)}"
            )
        return dict(zip(columns, table.T, strict=True))
    lengths = {len(array) for array in arrays.values() if array.ndim == 1}
    if tables or len(lengths) != 1 or any(array.ndim != 1 for array in arrays.values()):
        shapes = ", ".join(f"{name} {list(array.shape)}" for name, array in arrays.items())
        raise ValueError(
            f"{path}: {shapes[:200] or 'no arrays'}; a scan is one array per column, all equally "
            "long, or one array of all columns"
        )
    return arrays


def find_scans(inputs: Sequence[Path]) -> list[Path]:
    """The clouds named or in the folders named, sorted within a folder.

    Raises FileNotFoundError or ValueError for what is not there, or two scans of one name.
    """
    scans: list[Path] = []
    for path in inputs:
        if path.is_dir():
            found = sorted(file for file in path.iterdir() if file.suffix.lower() in SUFFIXES)
            if not found:
                raise FileNotFoundError(f"{path}: no {', '.join(SUFFIXES)} files in this folder")
            scans += found
        elif path.is_file():
            scans.append(path)
        else:
            raise FileNotFoundError(f"{path}: no such file or folder")
    names: dict[str, Path] = {}
    for scan in scans:
        other = names.setdefault(scan.stem, scan)
        if other is not scan:
            raise ValueError(
                f"{scan}: its results would overwrite those of {other}; detect it separately"
            )
    return scans
