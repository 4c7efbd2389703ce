"""Checks of scans: notes on anything unusual, e.g. another unit or other axes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch

from millisecond.data.checks.ground import plane_of
from millisecond.data.formats.points import INTENSITY, KITTI_POINTS, some_of
from millisecond.ops.transfer import intensity_scale

NEAREST = 0.5  # metres: half of a scan's points are farther than that
NEAR = (3.0, 25.0)  # metres from the sensor where most points are on the ground
LEVEL, PLANE = 0.5, 0.4  # metres of height, and share of the lowest points in them: the ground
GROUND_OFF = 0.6  # metres between the ground and the feet of objects
SECTOR = 0.5  # length of the mean direction from which a scan looks one way
TALL = 15.0  # metres


NO_INTENSITY = (
    "no intensities, they are taken as 0: fewer objects are found than with them; networks can be "
    "trained without, by points.features: [x, y, z]"
)


class Note(NamedTuple):
    """Something odd about a scan."""

    kind: str  # a word, the same for the same oddity
    text: str  # a line for the user


class ScanWarning(UserWarning):
    """A scan that is not as the network's training had them."""


def oddities(
    points: np.ndarray,
    point_range: Sequence[float],
    ground_z: float,
    features: Sequence[str] = KITTI_POINTS.features,
) -> list[Note]:
    """Notes on what is unusual about points [P, 4], e.g. another unit or other axes.

    point_range: of the network's grid (x0, y0, z0, x1, y1, z1); ground_z: the height at which its
    objects stand, both in metres in the LiDAR frame. features: that the network takes.
    """
    points = points[np.isfinite(points).all(axis=1)].astype(np.float64)
    if not len(points):
        return []
    notes = (
        _intensity_note(points[:, 3]) if INTENSITY in features else None,
        _unit_note(points),
        _grid_note(points, point_range),
        _axes_note(points),
        _ground_note(points, ground_z),
    )
    return [note for note in notes if note]


def is_usual(
    points: np.ndarray,
    point_range: Sequence[float],
    features: Sequence[str] = KITTI_POINTS.features,
) -> bool:
    """Whether a quick look at points [P, 4 or more] finds nothing that `oddities` would note: their
    numbers, unit, intensities and place in the grid. Axes and ground take a whole examination."""
    if not len(points):
        return True
    if not (-np.inf < points.min() and points.max() < np.inf):  # also where one is not a number
        return False
    if INTENSITY in features:
        intensity = np.ascontiguousarray(points[:, 3])
        if intensity.min() < 0 or not 0 < intensity.max() <= 1:
            return False
    x, y, z = some_of(points).T[:3]
    x0, y0, z0, x1, y1, z1 = point_range
    inside = (x >= x0) & (x < x1) & (y >= y0) & (y < y1) & (z >= z0) & (z < z1)
    far = x * x + y * y + z * z > NEAREST**2
    return bool(inside.any() and 2 * np.count_nonzero(far) > len(x))


def _intensity_note(intensity: np.ndarray) -> Note | None:
    if not intensity.any():
        return Note("no intensity", NO_INTENSITY)
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
            f"must point forward, y to the left: --turn {-90 * round(angle / 90)}",
        )
    return None


def _ground_note(points: np.ndarray, ground_z: float) -> Note | None:
    away = np.hypot(points[:, 0], points[:, 1])
    near = points[(away > NEAR[0]) & (away < NEAR[1]), :3]
    if len(near) < 200:
        return None
    fit = plane_of(torch.from_numpy(points))
    if isinstance(fit, str):
        return None
    above = fit.above(near)
    share = float((np.abs(above) < LEVEL / 2).mean())
    if fit.level > 0 and share > PLANE and (above > LEVEL).mean() < 0.1 * (above < -LEVEL).mean():
        return Note(
            "axes",
            f"the ground seems to be overhead, at z = {fit.level:.1f}; z must be the axis that "
            "points up",
        )
    ground, off = fit.level, ground_z - fit.level
    if fit.on < PLANE or fit.below > fit.on / 2 or abs(off) < GROUND_OFF:
        return None
    return Note(
        "ground",
        f"the ground seems to be at z = {ground:.1f}, {abs(off):.1f} m "
        f"{'below' if off > 0 else 'above'} the feet of the network's objects, z = {ground_z:.2f}; "
        f"z is measured upwards from the sensor: --shift-z {off:.1f}",
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
        """name: of the scan, which counts once for each kind."""
        for note in notes:
            self._first.setdefault(note.kind, f"{name}: {note.text}")
        self._count.update({note.kind for note in notes})

    def update(self, other: Tally) -> None:
        """What another one has noted."""
        for kind, text in other._first.items():
            self._first.setdefault(kind, text)
        self._count.update(other._count)

    def lines(self, examined: int | None = None) -> list[str]:
        """One line per kind. examined: of so many scans only the notes were asked for."""
        rest = "" if examined is None else f" of the {examined} that were examined whole"
        return [
            text + (f" (so in {self._count[kind]} scans{rest})" if self._count[kind] > 1 else "")
            for kind, text in self._first.items()
        ]
