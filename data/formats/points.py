"""The points of a cloud: columns, named fields, and errors for numbers that no LiDAR measured.

PCD and PLY files and ROS messages have named fields; .bin files and arrays have columns.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count as count_from
from math import gcd
from pathlib import Path
from typing import NamedTuple

import numpy as np

from millisecond.data.files import plain_numbers, require_file
from millisecond.data.schema import nearest, require

AXES = ("x", "y", "z")
INTENSITY = "intensity"
KITTI = (*AXES, INTENSITY)
MOST_COLUMNS = 64  # columns of a file


@dataclass(frozen=True)
class PointColumns:
    """What a point has in the files, and which of it the network takes.

    A scan in memory is [P, width] float32: x, y, z in metres, the intensity from 0 to 1, then the
    other features as they are in the files. The intensity is 0 where it is not a feature.
    """

    columns: tuple[str, ...] = KITTI  # in the order of .bin and .npy; other files name their own
    features: tuple[str, ...] = KITTI  # x, y, z, then intensity if it is one, then others
    intensity_scale: float = 1.0  # intensity in the files that becomes 1

    def __post_init__(self):
        for key in ("columns", "features"):
            names = getattr(self, key)
            few = len(names) <= MOST_COLUMNS
            require(few, key, f"{len(names)} names are more than a point has")
            one_word = all(name.isprintable() and name.split() == [name] for name in names)
            require(one_word, key, f"{list(names)}: a name is one word")
            require(len(set(names)) == len(names), key, f"a name occurs twice in {list(names)}")
        for axis in AXES:
            require(axis in self.columns, "columns", f"{axis} is missing in {list(self.columns)}")
        for name in self.features:
            known = name in self.columns
            require(known, "features", f"{name!r} is not a column{nearest(name, self.columns)}")
        ordered = self.features[:3] == AXES and INTENSITY not in self.features[4:]
        problem = "must begin with x, y, z, and then intensity if it is used"
        require(ordered, "features", f"{list(self.features)} {problem}")
        scale = self.intensity_scale
        require(scale > 0, "intensity_scale", f"{scale} must be positive")

    @property
    def others(self) -> tuple[str, ...]:
        """Features beside x, y, z and intensity."""
        return tuple(name for name in self.features if name not in KITTI)

    @property
    def width(self) -> int:
        """Numbers of a point in memory: 4 and the others."""
        return len(KITTI) + len(self.others)

    def require_plain(self, source: str, remedy: str) -> None:
        """Raises ValueError if the network takes more than x, y, z and intensity of a source."""
        if self.others:
            others = ", ".join(self.others)
            raise ValueError(f"{source}: gives the network no {others}, which it takes; {remedy}")


KITTI_POINTS = PointColumns()


INTENSITY_NAMES = ("intensity", "intensities", "reflectivity", "reflectance", "remission", "i")
PREFIX = "scalar_"  # that CloudCompare gives to fields of its PLY files
LARGEST = 1 << 30  # bytes of a cloud: 67 million points


class Cloud(NamedTuple):
    """A cloud as it stands in a file or a message."""

    points: np.ndarray  # [P, 4] float32: x, y, z, intensity
    intensity: np.dtype | None  # type of the intensities there; None: there are none, they are 0


class Field(NamedTuple):
    """One number of each record; of several of one name the first."""

    name: str
    dtype: np.dtype
    offset: int  # bytes from the start of the record


def require_size(size: int, source: object) -> None:
    """Raises ValueError for more bytes than a scan has."""
    if size > LARGEST:
        raise ValueError(f"{source}: {size} bytes are more than a scan has")


def content_of(path: Path) -> bytes:
    """The bytes of a file. Raises ValueError for more than a scan has."""
    require_file(path)
    require_size(path.stat().st_size, path)
    return path.read_bytes()


def numbers_of(text: bytes | memoryview, source: object) -> np.ndarray:
    """The numbers of an ASCII file, [N] float64. Raises ValueError for a word that is not one."""
    words = bytes(text).decode("ascii", "replace").split()
    return np.array(plain_numbers(words, source), np.float64)


def columns_of_table(
    table: np.ndarray, fields: Sequence[Field], places: Iterable[int]
) -> dict[str, np.ndarray]:
    """The fields of an ASCII file's numbers [N, C] by name, each in its own type. places: the
    column of each field."""
    with np.errstate(over="ignore", invalid="ignore"):  # what a type does not hold is not measured
        return {
            field.name: table[:, place].astype(field.dtype)
            for field, place in zip(fields, places, strict=True)
        }


def columns_of(
    content: bytes | memoryview, fields: Sequence[Field], count: int, size: int, source: object
) -> dict[str, np.ndarray]:
    """The fields of `count` records of `size` bytes, by name; further bytes are passed over.

    Raises ValueError where the records are cut off or a field reaches beyond its record.
    """
    if len(content) < count * size:
        raise ValueError(
            f"{source}: {len(content)} bytes are not {count} points of {size}; it is cut off"
        )
    columns: dict[str, np.ndarray] = {}
    for name, dtype, offset in fields:
        if not 0 <= offset <= size - dtype.itemsize:
            raise ValueError(
                f"{source}: field {name} at byte {offset} is beyond a point of {size} bytes"
            )
        if count:
            column = np.ndarray(count, dtype, content, offset, strides=(size,))
        else:
            column = np.zeros(0, dtype)
        columns.setdefault(name, column)
    return columns


def named_columns(columns: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """By names in lower case, without the prefix of CloudCompare; `intensity` by any usual name."""
    named = {name.lower().removeprefix(PREFIX): column for name, column in columns.items()}
    usual = next((name for name in INTENSITY_NAMES if name in named), None)
    return named if usual is None else named | {"intensity": named[usual]}


def cloud_of(columns: Mapping[str, np.ndarray], source: object) -> Cloud:
    """The columns x, y, z and intensity (by any of its usual names; 0 where there is none).

    A point whose x, y or z is not finite is left out: it stands for a ray without an echo. Raises
    ValueError where x, y or z is missing.
    """
    named = named_columns(columns)
    missing = next((axis for axis in "xyz" if axis not in named), None)
    if missing:
        raise ValueError(
            f"{source}: no field {missing}; a cloud has the fields x, y, z and intensity, this one "
            f"has {', '.join(columns)[:200] or 'none'}"
        )
    intensity = named.get("intensity")
    points = np.zeros((len(named["x"]), 4), np.float32)
    with np.errstate(over="ignore", invalid="ignore"):
        for column, axis in enumerate("xyz"):
            points[:, column] = named[axis]
        if intensity is not None:
            points[:, 3] = intensity
    measured = np.isfinite(points[:, :3]).all(axis=1)
    return Cloud(
        points if measured.all() else points[measured],
        None if intensity is None else intensity.dtype,
    )


FARTHEST = 500.0  # metres: half of a scan's points are nearer than that
MAP = 1e4  # metres of x or y, of all points alike: a map has such coordinates, not a sensor
ON_AXIS = 0.25  # share of points with y = z = 0 from which every other one is filling
LEAST, MOST = 1e-6, 1e6  # metres: no LiDAR measures smaller or larger numbers
WRONG = 0.05  # share of such values from which on it is not a scan
LOOKED_AT = 1000  # points that tell of most scans that nothing is wrong


def require_scan(
    points: np.ndarray, source: object, columns: Sequence[str] = KITTI_POINTS.columns
) -> None:
    """Raises ValueError for points [P, 4] (x, y, z, intensity) that no LiDAR measured: read from
    another kind of file, with other columns, in another unit. columns: the file was taken to have
    them."""
    if not len(points) or _beyond_doubt(points):
        return
    finite = points if np.isfinite(points).all() else points[np.isfinite(points).all(axis=1)]
    if 2 * len(finite) < len(points):
        bare = np.isfinite(points[:, :3]).all(axis=1).mean() > 0.5
        wild = "intensities" if bare else "points"
        count = f"{len(points) - len(finite)} of {len(points)} {wild}"
        raise ValueError(
            f"{source}: {count} are not finite numbers; this is not a scan of float32 "
            "(x, y, z, intensity)"
        )
    _require_no_map(finite, source)
    size = np.abs(finite)
    absurd = float(((size > MOST) | ((size > 0) & (size < LEAST))).mean())
    if absurd > WRONG:
        raise ValueError(
            f"{source}: {absurd:.0%} of its numbers are far too large or too small; this is not a "
            "scan of little-endian float32 (x, y, z, intensity)"
        )
    if (finite[:, 3] < 0).mean() > WRONG:
        raise ValueError(
            f"{source}: {(finite[:, 3] < 0).mean():.0%} of its intensities are negative; "
            f"{_columns(points, columns)}"
        )
    x, y, z = finite[:, :3].T.astype(np.float64)
    on_axis = (x != 0) & (y == 0) & (z == 0)
    if len(finite) == len(points) > 99 and not finite[1::2, :3].any() and finite[::2, :3].any():
        raise ValueError(
            f"{source}: every second point is 0, 0, 0; the file seems to have 8 columns, write it "
            "with the four x, y, z, intensity"
        )
    if on_axis.mean() > ON_AXIS:
        raise ValueError(
            f"{source}: {on_axis.mean():.0%} of its points have y = z = 0; the file seems to have "
            "8 columns, write it with the four x, y, z, intensity"
        )
    distance = np.sqrt(x * x + y * y + z * z)
    if np.median(distance) > FARTHEST:
        raise ValueError(
            f"{source}: half of its points are over {np.median(distance):.0f} away from the "
            "sensor; coordinates are in metres"
        )
    if (distance < LEAST).mean() > 1 - WRONG:
        raise ValueError(f"{source}: nearly all points are 0, 0, 0; nothing was measured")


def some_of(points: np.ndarray) -> np.ndarray:
    """About 1,000 of the points, from all over the scan. The step shares no factor with usual
    numbers of beams, nor with numbers of columns for which four may have been taken."""
    steps = count_from(max(1, len(points) // LOOKED_AT))
    return points[:: next(step for step in steps if gcd(step, 30) == 1)]


def _beyond_doubt(points: np.ndarray) -> bool:
    """Whether every number is of a scan's size, and some of the points are so far from each limit
    of `require_scan` that all of them keep to it."""
    if not (points.min() >= -MOST and points.max() <= MOST):  # also where one is not a number
        return False
    some = some_of(points)
    x, y, z, intensity = some.T[:4]
    across = y * y + z * z
    distance = across + x * x  # squared
    most, count = len(some) / 2, np.count_nonzero  # mean and median take five times as long
    return bool(
        count((some != 0) & (np.abs(some) < LEAST)) <= WRONG * 4 * most
        and count(intensity < 0) <= WRONG * most
        and count((across == 0) & (x != 0)) <= ON_AXIS * most
        and count(distance > (FARTHEST / 2) ** 2) < most
        and count(distance < LEAST**2) < 0.8 * most  # of 8 columns half are filling
    )


def _require_no_map(points: np.ndarray, source: object) -> None:
    """Raises ValueError for points that are nearly all at one far place: coordinates of a map,
    such as UTM."""
    low, middle, high = np.percentile(points[:, :2].astype(np.float64), (5, 50, 95), axis=0)
    if np.abs(middle).max() > MAP and (high - low).max() < FARTHEST:
        x, y = middle.round() + 0.0  # no -0
        raise ValueError(
            f"{source}: all points are around x = {x:.0f} m, y = {y:.0f} m, which are coordinates "
            "of a map (UTM?), not of the sensor; subtract the sensor's place in float64 before "
            f"they are written as float32, e.g. points[:, :2] -= ({x:.0f}, {y:.0f})"
        )


def _columns(points: np.ndarray, columns: Sequence[str]) -> str:
    """Which number of columns would make intensities of the fourth."""
    if tuple(columns) != KITTI_POINTS.columns:
        return f"are its columns {', '.join(columns)}, as points.columns says?"
    for width in (5, 6, 3):
        rest = points.size % width
        rows = points.reshape(-1)[: points.size - rest].reshape(-1, width)
        if not rest and (width == 3 or (rows[:, 3:] >= 0).all()):
            return (
                f"the file seems to have {width} columns, write it with the four "
                "x, y, z, intensity or name them in points.columns"
            )
    return "a point has the four columns x, y, z, intensity"
