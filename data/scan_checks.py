"""Checks of scans: errors for numbers that no LiDAR measured, notes on anything unusual."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch

from data.point_columns import KITTI_POINTS
from ops.reference.load_points import intensity_scale

FARTHEST = 500.0  # metres: half of a scan's points are nearer than that
NEAREST = 0.5  # metres: half of a scan's points are farther than that
ON_AXIS = 0.25  # share of points with y = z = 0 from which every other one is filling
LEAST, MOST = 1e-6, 1e6  # metres: no LiDAR measures smaller or larger numbers
WRONG = 0.05  # share of such values from which on it is no scan
NEAR = (3.0, 25.0)  # metres from the sensor where most points are on the ground
LEVEL, PLANE = 0.5, 1 / 3  # metres of height, and share of the near points in them: the ground
GROUND_OFF = 0.9  # metres between the ground and the feet of objects
SECTOR = 0.5  # length of the mean direction from which a scan looks one way
TALL = 15.0  # metres


class Note(NamedTuple):
    """Something odd about a scan."""

    kind: str  # a word, the same for the same oddity
    text: str  # a line for the user


class ScanWarning(UserWarning):
    """A scan that is not as the network's training had them."""


def require_scan(
    points: np.ndarray, source: object, columns: Sequence[str] = KITTI_POINTS.columns
) -> None:
    """Raises ValueError for points [P, 4] (x, y, z, intensity) that no LiDAR measured: read from
    another kind of file, with other columns, in another unit. columns: the file was taken to have
    them."""
    if not len(points):
        return
    finite = points if np.isfinite(points).all() else points[np.isfinite(points).all(axis=1)]
    if 2 * len(finite) < len(points):
        raise ValueError(
            f"{source}: {len(points) - len(finite)} of {len(points)} points are not finite "
            "numbers; this is no scan of float32 (x, y, z, intensity)"
        )
    size = np.abs(finite)
    absurd = float(((size > MOST) | ((size > 0) & (size < LEAST))).mean())
    if absurd > WRONG:
        raise ValueError(
            f"{source}: {absurd:.0%} of its numbers are far too large or too small; this is no "
            "scan of little-endian float32 (x, y, z, intensity)"
        )
    if (finite[:, 3] < 0).mean() > WRONG:
        raise ValueError(
            f"{source}: {(finite[:, 3] < 0).mean():.0%} of its intensities are negative; "
            f"{_columns(points, columns)}"
        )
    x, y, z = finite[:, :3].T.astype(np.float64)
    on_axis = (x != 0) & (y == 0) & (z == 0)
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


def oddities(points: np.ndarray, point_range: Sequence[float], ground_z: float) -> list[Note]:
    """Notes on what is unusual about points [P, 4], e.g. another unit or other axes.

    point_range: of the network's grid (x0, y0, z0, x1, y1, z1); ground_z: the height at which its
    objects stand, both in metres in the LiDAR frame.
    """
    points = points[np.isfinite(points).all(axis=1)].astype(np.float64)
    if not len(points):
        return []
    notes = (
        _intensity_note(points[:, 3]),
        _unit_note(points),
        _grid_note(points, point_range),
        _axes_note(points),
        _ground_note(points, ground_z),
    )
    return [note for note in notes if note]


def _intensity_note(intensity: np.ndarray) -> Note | None:
    beyond = int(((intensity < 0) | (intensity > 1)).sum())
    if not beyond:
        return None
    scale = intensity_scale(torch.from_numpy(intensity))
    if scale == 1:
        return Note(
            "wild intensity",
            f"{beyond} points have an intensity out of 0 to 1, such as "
            f"{intensity[np.argmax(np.abs(intensity))]:g}; it was cut to that",
        )
    highest = intensity[intensity <= scale].max(initial=-np.inf)
    highest = highest if np.isfinite(highest) else intensity.max()
    return Note(
        "intensity",
        f"intensity up to {highest:.4g}, the network expects 0 to 1; divide it by {scale:g}",
    )


def _unit_note(points: np.ndarray) -> Note | None:
    distance = np.linalg.norm(points[:, :3], axis=1)
    measured = distance[distance > 0]
    if not len(measured) or np.median(measured) > NEAREST:
        return None
    return Note(
        "unit",
        f"half of the points are within {np.median(measured):.2g} m of the sensor; coordinates are "
        "in metres",
    )


def _grid_note(points: np.ndarray, point_range: Sequence[float]) -> Note | None:
    low, high = np.array(point_range[:3]), np.array(point_range[3:])
    inside = ((points[:, :3] >= low) & (points[:, :3] < high)).all(axis=1)
    if inside.any():
        return None
    reach = np.percentile(points[:, :3], (1, 99), axis=0).T
    return Note(
        "grid",
        f"no point in the grid of {_ranges(np.stack([low, high], axis=1))} m, most are at "
        f"{_ranges(reach)}; the frame is x forward, y left, z up from the sensor",
    )


def _axes_note(points: np.ndarray) -> Note | None:
    (x, y, z) = np.diff(np.percentile(points[:, :3], (1, 99), axis=0), axis=0)[0]
    if z > TALL and z > min(x, y):
        return Note(
            "axes",
            f"the scan is {z:.0f} m tall and {min(x, y):.0f} m wide; z must be the axis that "
            "points up",
        )
    ahead = points[:, :2] / np.maximum(np.linalg.norm(points[:, :2], axis=1, keepdims=True), 1e-6)
    mean = ahead.mean(axis=0)
    angle = float(np.degrees(np.arctan2(mean[1], mean[0])))
    if np.hypot(*mean) > SECTOR and abs(angle) > 60:
        return Note(
            "axes",
            f"the scan looks {abs(angle):.0f} degrees to the {'left' if angle > 0 else 'right'}; x "
            "must point forward, y to the left",
        )
    return None


def _ground_note(points: np.ndarray, ground_z: float) -> Note | None:
    away = np.hypot(points[:, 0], points[:, 1])
    height = points[(away > NEAR[0]) & (away < NEAR[1]), 2]
    if len(height) < 200:
        return None
    bins = np.arange(-10, 10.01, LEVEL / 5)
    counts = np.histogram(height, bins)[0]
    level = np.convolve(counts, np.ones(5), "same")
    place = int(level.argmax())
    ground = (bins[place] + bins[place + 1]) / 2
    below = float((height < ground - LEVEL).mean())
    above = float((height > ground + LEVEL).mean())
    if level[place] > PLANE * len(height) and above < 0.1 * below and ground > 0:
        return Note(
            "axes",
            f"the ground seems to be overhead, at z = {ground:.1f}; z must be the axis that points "
            "up",
        )
    # no plane that nearly all the rest stands on
    if level[place] < PLANE * len(height) or below > 0.15 or abs(ground - ground_z) < GROUND_OFF:
        return None
    return Note(
        "ground",
        f"the ground seems to be at z = {ground:.1f}, where the network's objects stand at "
        f"{ground_z:g}; z is measured upwards from the sensor",
    )


def _ranges(ends: np.ndarray) -> str:
    pairs = zip("xyz", ends, strict=True)
    return ", ".join(f"{axis} {low:.4g} to {high:.4g}" for axis, (low, high) in pairs)


class Tally:
    """Notes on many scans: of each kind the first, and how many there are."""

    def __init__(self):
        self._first: dict[str, str] = {}
        self._count: Counter[str] = Counter()

    def add(self, name: str, notes: Sequence[Note]) -> None:
        """name: of the scan."""
        for note in notes:
            self._first.setdefault(note.kind, f"{name}: {note.text}")
            self._count[note.kind] += 1

    def lines(self) -> list[str]:
        """One line per kind."""
        return [
            text + (f" (so in {self._count[kind]} scans)" if self._count[kind] > 1 else "")
            for kind, text in self._first.items()
        ]
