"""A sensor by its clouds: their columns, the scale of their intensities, and how it is mounted."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
from torch import Tensor

from millisecond.data.checks.scans import Note
from millisecond.data.formats.clouds import ROWS, mapped_array, read_fields, read_scan
from millisecond.data.formats.points import (
    AXES,
    INTENSITY,
    KITTI,
    Cloud,
    PointColumns,
    named_columns,
)
from millisecond.ops.transfer import FEW, SCALES

LOOKED_AT = 20  # clouds
MOST_WIDTH = 8  # columns of a file without names
AS_UNLIKE = 0.8  # of the most unlike columns: a multiple of the right number is not much worse
RINGS = 256  # a column of whole numbers below is the number of a beam


class Guess(NamedTuple):
    """The columns, and why."""

    points: PointColumns
    columns_reason: str
    scale_reason: str


def guess_points(files: Sequence[Path], named: Sequence[str] = ()) -> Guess:
    """files: the clouds; named: the columns of .bin and .npy, where the user knows them.

    Raises ValueError for clouds that cannot be read, are of different kinds, or have no column that
    could be x, y or z.
    """
    kinds = sorted({path.suffix.lower() for path in files})
    if len(kinds) > 1:
        raise ValueError(
            f"{files[0].parent}: clouds of different kinds, {', '.join(kinds)}; write them as one"
        )
    places = np.linspace(0, len(files) - 1, min(LOOKED_AT, len(files))).round().astype(int)
    chosen = [files[place] for place in places]
    if named:
        columns, reason = tuple(named), "as given by --columns"
    elif kinds[0] in ROWS:
        columns, reason = _of_rows(files, chosen)
    else:
        fields = named_columns(read_fields(chosen[0], KITTI))
        columns = tuple(name for name in fields if name.split() == [name])
        reason = f"the fields of {chosen[0].name}"
    has_intensity = INTENSITY in columns
    features = (*AXES, INTENSITY) if has_intensity else AXES
    points = PointColumns(columns, features)
    if not has_intensity:
        return Guess(points, reason, "there is no intensity")
    highest, scale = 0.0, 1.0
    for path in chosen:
        intensity = read_scan(path, points)[:, 3]
        intensity = intensity[np.isfinite(intensity)]
        highest = max(highest, float(intensity.max(initial=0)))
        scale = max(scale, full_intensity(intensity))
    return Guess(
        replace(points, intensity_scale=scale), reason, f"the largest intensity is {highest:.4g}"
    )


def _of_rows(files: Sequence[Path], chosen: Sequence[Path]) -> tuple[tuple[str, ...], str]:
    """Of files without names: the number of columns that makes them most unlike one another."""
    if (first := chosen[0]).suffix.lower() == ".npy":
        table = mapped_array(first)
        shape = list(table.shape)
        if len(shape) != 2 or not 3 <= shape[1] <= MOST_WIDTH:
            raise ValueError(f"{first}: an array of shape {shape}; a scan is [P, columns]")
        return _names(table), f"an array of {table.shape[1]} columns"
    sizes = [path.stat().st_size for path in files]
    if not any(sizes):
        raise ValueError(f"{files[0].parent}: all clouds are empty files; get them again")
    widths = [n for n in range(3, MOST_WIDTH + 1) if all(size % (4 * n) == 0 for size in sizes)]
    if not widths:
        widths = [n for n in range(3, MOST_WIDTH + 1) if sizes[0] % (4 * n) == 0]
        wrong = next((f for f, s in zip(files, sizes, strict=True) if s % 4), files[0])
        raise ValueError(
            f"{wrong}: no number of columns from 3 to {MOST_WIDTH} fits the sizes of all clouds; "
            f"{files[0].name} would have {' or '.join(map(str, widths)) or 'none'} (mixed columns, "
            "or files that are cut off)"
        )
    full = [path for path, size in zip(files, sizes, strict=True) if size]
    numbers = np.concatenate([np.fromfile(path, "<f4") for path in full[:3]])
    unlike = {width: _unlikeness(numbers, width) for width in widths}
    width = min(w for w in widths if unlike[w] >= AS_UNLIKE * max(unlike.values()))
    return _names(numbers.reshape(-1, width)), f"{width} columns by their numbers"


def _unlikeness(numbers: np.ndarray, width: int) -> float:
    """How far the spreads of the columns are apart: read with a wrong number of columns, each
    column is a mixture of all."""
    table = numbers[: len(numbers) // width * width].reshape(-1, width)
    table = np.nan_to_num(table, posinf=0, neginf=0).astype(np.float64)  # a cast may warn of NaN
    spread = np.log(np.abs(table - np.median(table, axis=0)).mean(axis=0) + 1e-6)
    return float(spread.max() - spread.min())


def _names(table: np.ndarray) -> tuple[str, ...]:
    """x, y, z, intensity, ring, time as far as the numbers allow it; `columnN` for others."""
    names = list(KITTI[: table.shape[1]])
    for place in range(4, table.shape[1]):
        column = table[:, place]
        whole = bool((column == np.floor(column)).all() and (column >= 0).all())
        beams = whole and bool((column < RINGS).all()) and "ring" not in names
        name = "ring" if beams else "time" if not whole and "time" not in names else ""
        names.append(name or f"column{place + 1}")
    return tuple(names)


class IntensityScale:
    """Brings the intensities of all clouds of one source to [0, 1].

    A field of unsigned 8 bits has 255 as its largest intensity. For any other type that is 1, 255
    or 65535: the least of them to which all but one in a hundred intensities keep. The largest one
    so far counts, so that a dark scan is divided by the same number as a bright one.
    """

    def __init__(self):
        self._full = 1.0  # intensity that becomes 1

    def __call__(self, cloud: Cloud) -> tuple[np.ndarray, list[Note]]:
        """Points [P, 4] with intensities in [0, 1], and what a user should know of it."""
        if cloud.intensity is None:
            return cloud.points, []
        intensity, notes = cloud.points[:, 3], []
        if cloud.intensity == np.uint8:
            full = 255.0
        else:
            full = max(self._full, full_intensity(intensity))
            if full != self._full:
                seen = f"intensities up to {np.nanmax(intensity):.4g}"
                text = f"{seen}; from here on they are divided by {full:g}"
                notes.append(Note("intensity", text))
            self._full = full
        points = cloud.points.copy()
        with np.errstate(invalid="ignore"):  # a signalling NaN
            points[:, 3] = np.clip(intensity / np.float32(full), 0, 1)
        return points, notes


def full_intensity(intensity: np.ndarray) -> float:
    """[P] -> 1, 255 or 65535, the least to which all but one in a hundred keep."""
    for scale in SCALES:
        if np.count_nonzero(intensity > scale) <= FEW * len(intensity):
            return scale
    return SCALES[-1]


Rows = TypeVar("Rows", np.ndarray, Tensor, np.ndarray | Tensor)
FIRST_YAW = math.pi / 4  # of a detector's boxes: from there on a turn


@dataclass(frozen=True)
class Mounting:
    """The way from the frame of the clouds to that in which the network was trained: a tilt until
    the ground is level, a turn, a rise.

    A sensor 3.0 m above the ground, and a network whose sensor was at 1.7 m: shift_z is 1.3. A
    sensor whose x axis points to the right: the car's front is to its left, turn is -90. A sensor
    that looks down, so that the road rises by 0.05 m per metre ahead: slopes are (0.05, 0). Raises
    ValueError for what is not finite.
    """

    shift_z: float = 0.0  # metres that are added to z
    turn: float = 0.0  # degrees, counter-clockwise seen from above
    slopes: tuple[float, float] = (0.0, 0.0)  # metres that the ground rises per metre of x and y

    def __post_init__(self):
        for name in ("shift_z", "turn", "slopes"):
            value = getattr(self, name)
            if not np.isfinite(value).all():
                raise ValueError(f"{name}: expected a finite number, got {value}")

    def __bool__(self) -> bool:
        return bool(self.shift_z or self.turn or any(self.slopes))

    @cached_property
    def rotation(self) -> np.ndarray:
        """[3, 3] float64, of directions in the clouds; the shortest way to a level ground, then the
        turn."""
        normal = np.array([-self.slopes[0], -self.slopes[1], 1.0])
        x, y, z = (normal / np.sqrt(normal @ normal)).tolist()
        share = 1 / (1 + z)
        level = [[1 - share * x * x, -share * x * y, -x], [-share * x * y, 1 - share * y * y, -y]]
        cos, sin = math.cos(math.radians(self.turn)), math.sin(math.radians(self.turn))
        return np.array([*([[cos, -sin], [sin, cos]] @ np.array(level)), [x, y, z]])

    def to_network(self, rows: Rows) -> Rows:
        """A copy of points [P, 3 or more], or of the centres of boxes [M, 7], in the network's
        frame; the same array where nothing is to be moved."""
        return _moved(rows, 0.0, self.rotation, self.shift_z) if self else rows

    def from_network(self, rows: Rows) -> Rows:
        """The way back of `to_network`."""
        return _moved(rows, self.shift_z, self.rotation.T, 0.0) if self else rows

    def boxes_to_network(self, boxes: Rows) -> Rows:
        """Boxes [M, 7] in the network's frame; they are upright in every frame."""
        return _headed(self.to_network(boxes), math.radians(self.turn))

    def boxes_from_network(self, boxes: Rows) -> Rows:
        """Boxes [M, 7] of the network, or [M, 9] with velocities, in the frame of the clouds, as
        they are if nothing moves."""
        moved: Any = _headed(self.from_network(boxes), -math.radians(self.turn))
        if self and boxes.shape[1] > 7:
            (a, b), (c, d) = self.rotation[:2, :2].tolist()
            vx, vy = boxes[:, 7], boxes[:, 8]
            moved[:, 7], moved[:, 8] = a * vx + c * vy, b * vx + d * vy
        return moved

    def velocities_to_network(self, velocities: np.ndarray) -> np.ndarray:
        """Velocities [M, 2] along x and y in the network's frame."""
        return (velocities @ self.rotation[:2, :2].T).astype(velocities.dtype)

    def reach(self, point_range: tuple[float, ...]) -> tuple[float, ...]:
        """The smallest range of the clouds' frame (x0, y0, z0, x1, y1, z1) that holds one of the
        network's; the tilt is left out."""
        low, high = np.array(point_range[:3]), np.array(point_range[3:])
        corners = np.array([(x, y, 0) for x in (low[0], high[0]) for y in (low[1], high[1])])
        corners = Mounting(turn=self.turn).from_network(corners)
        ends = [corners.min(axis=0), corners.max(axis=0)]
        for end, z in zip(ends, (low[2], high[2]), strict=True):
            end[2] = z - self.shift_z
        return tuple((np.concatenate(ends).round(6) + 0.0).tolist())


def _moved(rows: Rows, fall: float, rotation: np.ndarray, rise: float) -> Rows:
    moved: Any = rows.clone() if isinstance(rows, Tensor) else np.array(rows)
    with np.errstate(over="ignore", invalid="ignore"):  # what is not finite is left out later
        given = rows[:, 0], rows[:, 1], rows[:, 2] - fall
        for axis, shares in enumerate(rotation.tolist()):
            moved[:, axis] = sum(s * v for s, v in zip(shares, given, strict=True) if s)
        moved[:, 2] += rise
    return moved


def _headed(boxes: Rows, angle: float) -> Rows:
    """Boxes that belong to the caller, turned by an angle about their own axes."""
    if angle:
        yaws: Any = boxes[:, 6]  # a view
        yaws[:] = (yaws + angle - FIRST_YAW) % (2 * math.pi) + FIRST_YAW
    return boxes
