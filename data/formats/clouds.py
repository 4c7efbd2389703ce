"""Clouds in files of any kind that this project reads: .bin, .npy, .npz, PCD, PLY, LAS.

KITTI's .bin is little-endian float32, 4 per point: x, y, z, intensity.
"""

import struct
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from tokenize import TokenError
from zipfile import BadZipFile, ZipFile

import numpy as np

from millisecond.data.files import require, require_file
from millisecond.data.formats.pcd import pcd_fields
from millisecond.data.formats.ply import ply_fields
from millisecond.data.formats.points import (
    AXES,
    INTENSITY,
    KITTI,
    KITTI_POINTS,
    Cloud,
    PointColumns,
    cloud_of,
    named_columns,
    require_scan,
    require_size,
)

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
OTHERS = {  # the first bytes of other files, four at least: fewer may be a number
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

    Raises ValueError for a file that is not a scan: another kind of file, other columns, numbers
    that no LiDAR measured.
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
    require_size(size, path)
    if path.suffix.lower() == ".npy":
        return _read_npy(path, columns)
    content = np.empty(size, np.uint8)
    with path.open("rb", buffering=0) as file:
        content = content[: file.readinto(content.data)]
    _require_rows(path, len(content), content[:4096].tobytes(), columns)
    return content.view("<f4").astype(np.float32, copy=False).reshape(-1, len(columns))


def _require_rows(path: Path, size: int, start: bytes, columns: Sequence[str]) -> None:
    """Raises ValueError for a file that begins so and is not one of these columns."""
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


def mapped_array(path: Path) -> np.ndarray:
    """The array of a .npy file. Raises ValueError for another file."""
    try:
        # mapped: a header that promises more than the file has then fails before it takes memory
        return np.load(path, mmap_mode="r", allow_pickle=False)
    except NO_ARRAY as error:
        raise ValueError(
            f"{path}: not an array in a .npy file ({' '.join(str(error).split())[:80]})"
        ) from None


def _require_columns(table: np.ndarray, columns: Sequence[str], path: Path) -> None:
    if table.ndim != 2 or table.shape[1] != len(columns):
        raise ValueError(
            f"{path}: an array of shape {list(table.shape)}; a scan is [P, {len(columns)}]: "
            f"{', '.join(columns)}"
        )


def _read_npy(path: Path, columns: Sequence[str]) -> np.ndarray:
    points = mapped_array(path)
    if not isinstance(points, np.ndarray) or points.dtype.kind != "f":
        raise ValueError(f"{path}: not an array of floating-point numbers")
    bare = tuple(columns) == KITTI and points.ndim == 2 and points.shape[1] == len(AXES)
    _require_columns(points, AXES if bare else columns, path)
    scan = np.zeros((len(points), len(columns)), np.float32)  # without intensities they are 0
    with np.errstate(over="ignore"):
        scan[:, : points.shape[1]] = points
    return scan


def las_fields(path: Path) -> dict[str, np.ndarray]:
    """Coordinates in metres as the file scales them, and its other dimensions by name.

    Raises ValueError for a file that is not a LAS file, and where laspy is not installed.
    """
    require_file(path)
    require_size(path.stat().st_size, path)
    _require_header(path)
    laspy = require("laspy", f"{path}: a .las file, unlike a .pcd file,")
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


SUFFIXES = (".bin", ".npy", ".npz", ".pcd", ".ply", ".las")
ROWS = (".bin", ".npy")  # columns without names


def read_cloud(path: Path | str) -> Cloud:
    """Read a file by its suffix, the first four columns of a file without names. Intensities stay
    as they are there: see data.intensity.

    Raises ValueError for a file that is not a scan: another kind of file, a cut-off file, numbers
    that no LiDAR measured.
    """
    path = Path(path)
    if path.suffix.lower() in ROWS:
        return Cloud(read_points(path), np.dtype(np.float32))
    cloud = cloud_of(read_fields(path, KITTI_POINTS.columns), path)
    require_scan(cloud.points, path)
    return cloud


def read_scan(path: Path | str, points: PointColumns = KITTI_POINTS) -> np.ndarray:
    """Read a file by its suffix as [P, points.width] float32: x, y, z, intensity / its scale (0
    where it is not a feature, or the file has none), other features.

    A point of a file with named fields whose x, y or z is not finite is left out: it stands for a
    ray without an echo. Raises ValueError as `read_cloud`, and for features that the file lacks.
    """
    path = Path(path)
    as_stored = points.columns == KITTI + points.others and INTENSITY in points.features
    if as_stored and path.suffix.lower() in ROWS:
        scan = read_rows(path, points.columns)
    else:
        scan = _arranged(path, points)
    require_scan(scan[:, :4], path, points.columns)
    if points.intensity_scale != 1:
        scan[:, 3] /= np.float32(points.intensity_scale)
    return scan


def _arranged(path: Path, points: PointColumns) -> np.ndarray:
    """The columns that the network takes, in its order."""
    named = named_columns(read_fields(path, points.columns))
    missing = [name for name in points.features if name.lower() not in named and name != INTENSITY]
    if missing:
        raise ValueError(
            f"{path}: no field {missing[0]}, which points.features of the configuration names; the "
            f"file has {', '.join(named)[:200] or 'none'}"
        )
    scan = np.zeros((len(named["x"]), points.width), np.float32)
    with np.errstate(over="ignore", invalid="ignore"):
        for place, name in enumerate((*AXES, INTENSITY, *points.others)):
            if name in points.features and name.lower() in named:
                scan[:, place] = named[name.lower()]
    if path.suffix.lower() not in ROWS:
        scan = scan[np.isfinite(scan[:, :3]).all(axis=1)]
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
        _require_columns(table, columns, path)
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
                f"{scan}: its results would overwrite the results of {other}; detect it separately"
            )
    return scans
