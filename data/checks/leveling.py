"""Clouds of any LiDAR as networks for every LiDAR take them: the ground level at -1.73 m, and
intensities of one scale; whether a cloud looks like KITTI's."""

import math
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from millisecond.data.checks.ground import BELOW, FEW, NEAR, WITHIN, GroundPlane, ground_of
from millisecond.data.checks.sensor import Mounting
from millisecond.data.frame import Frame
from millisecond.ops.transfer import Move, move_points

HEIGHT = 1.73  # metres above the ground of KITTI's sensor, to which clouds are lifted
SCANS = 10  # whose grounds and intensities are averaged
BRIGHT = 2.0  # times the intensity that 95 of 100 points do not exceed becomes 1
FLAT = 1e-3  # spread of intensities, of the largest, up to which none were measured
AROUND = 20.0  # metres: the ground there is looked at in every scan
APART = (0.02, 0.02, 0.15)  # slopes and metres by which the ground of a recording stays the same
THERE, MOST_BELOW = 0.04, 0.12  # shares of near points on the ground where it was before, and below


@dataclass(frozen=True)
class Placement:
    """How the clouds of a recording become the network's."""

    mounting: Mounting
    full: float = 1.0  # intensity that becomes 1; infinite: there are none, all become 0
    doubt: str = ""  # why the ground cannot be told, as part of a line

    @cached_property
    def move(self) -> Move:
        """The same as numbers, which the network's first kernel takes with the points."""
        rows = np.column_stack([self.mounting.rotation, (0, 0, self.mounting.shift_z)])
        return np.append(rows, 1 / self.full).astype(np.float32).tolist()

    def __call__(self, points: Tensor) -> Tensor:
        """A copy of points [P, 4 or more] float32. Mirrors may exceed 1; see `clamp_intensity`."""
        return move_points(points, self.move)


class Leveling:
    """Levels the clouds of a recording: the ground comes to z = -1.73 m, intensities to 0 to 1.

    Height, tilt and full intensity are the medians of the first SCANS scans, then they stay. A scan
    with its ground elsewhere begins anew: it is another sensor's. A scan whose ground cannot be
    told stays as it is, or as the mounting has it; its placement says why.
    """

    def __init__(self, mounting: Mounting | None = None):
        """mounting: the user's. Its turn always holds; where it lifts, no ground is looked for."""
        self._given = mounting or Mounting()
        self._known = bool(self._given.shift_z or any(self._given.slopes))
        self.now = Placement(self._given, math.inf)
        self._grounds: list[GroundPlane] = []
        self._fulls: list[float] = []

    def __call__(self, points: Tensor) -> Placement:
        """How the next scan [P, 4 or more] of the recording becomes the network's."""
        if not self.holds(points):
            self._grounds, self._fulls = [], []
        if self.settled:
            return self.now
        if len(points):
            self._fulls = [*self._fulls, full_of(points[:, 3])][-SCANS:]
        found = "" if self._known else ground_of(points)
        if isinstance(found, GroundPlane):
            moved = np.abs(found - np.median(self._grounds or [found], axis=0))
            if not (moved <= APART).all():
                self._grounds, self._fulls = [], self._fulls[-1:]
            self._grounds.append(found)
        doubt = found if isinstance(found, str) and not self._grounds else ""
        mounting = self._given
        if self._grounds:
            x, y, height = np.median(self._grounds, axis=0).tolist()
            mounting = Mounting(height - HEIGHT, mounting.turn, (x, y))
        self.now = Placement(mounting, float(np.median(self._fulls or [math.inf])), doubt)
        return self.now

    @property
    def settled(self) -> bool:
        """Whether the placement `now` is the next scan's as well, if it `holds` for it."""
        return len(self._fulls) >= SCANS and (self._known or len(self._grounds) >= SCANS)

    def holds(self, points: Tensor) -> bool:
        """Whether the ground of a scan [P, 4 or more] is where it was, if it was anywhere."""
        return not self._grounds or on_ground(points, self.now.mounting, THERE)


def on_ground(
    points: Tensor, mounting: Mounting, share: float, most_below: float = MOST_BELOW
) -> bool:
    """Whether so many of the near points lie at -1.73 m as mounted, and few below; True where few
    are near. A look at 2,000 points."""
    some = points[:: max(1, len(points) // 2000) | 1, :3].cpu().numpy()
    x, y, z = np.ascontiguousarray(some.T)  # the rest is then twice as fast
    by_x, by_y, by_z = mounting.rotation[2].tolist()
    with np.errstate(over="ignore", invalid="ignore"):  # what is so far is not near
        away = x * x + y * y
        low = x * by_x + y * by_y + z * by_z + (mounting.shift_z + HEIGHT)
    low = low[(away > NEAR[0] ** 2) & (away < AROUND**2)]
    on, below = np.count_nonzero(np.abs(low) < WITHIN[0]), np.count_nonzero(low < -BELOW)
    return bool(len(low) < FEW or (on >= share * len(low) and below <= most_below * len(low)))


def full_of(intensity: Tensor) -> float:
    """[P] -> the intensity that becomes 1, infinite where none were measured."""
    some = intensity[:: max(1, len(intensity) // 4000) | 1].cpu().numpy()
    some = some[np.isfinite(some)]
    if not len(some) or np.ptp(some) <= FLAT * np.abs(some).max():
        return math.inf
    bright = BRIGHT * float(np.quantile(some, 0.95))
    return bright if bright > 0 else math.inf


def leveled(frame: Frame, wanted: bool = True) -> tuple[Frame, Mounting]:
    """A frame as a network for every LiDAR takes it, with its boxes, and how it was mounted; the
    frame itself where that is not wanted."""
    if not wanted:
        return frame, Mounting()
    points = torch.from_numpy(frame.points)
    level = Leveling()(points)
    boxes = level.mounting.boxes_to_network(frame.boxes)
    velocities = frame.velocities
    if velocities is not None:
        velocities = level.mounting.velocities_to_network(velocities)
    moved = replace(frame, points=level(points).numpy(), boxes=boxes, velocities=velocities)
    return replace(moved, plane=None), level.mounting


KITTI_TOP, TOPS = 4.0, 0.02  # degrees above which KITTI's sensor sees less than this share
KITTI_DENSE = 150.0  # points per degree of azimuth: half of KITTI's
KITTI_GROUND = 0.2  # share of its near points
KITTI_CLOSE = 0.5  # share of its points that are nearer than where the ground is looked for
NOTHING = 0.5  # metres: what is nearer was not measured


def unlike_kitti(points: Tensor) -> str | None:
    """How a scan [P, 4 or more] differs from KITTI's, as a part of a line: empty where it does not,
    None where too few points were measured to tell. A look at 2,000 points, at all if few of these
    were measured."""
    for step in (max(1, len(points) // 2000) | 1, 1):
        some = points[::step, :4].cpu().numpy()
        some = some[np.isfinite(some).all(axis=1)]
        with np.errstate(over="ignore"):
            away = np.hypot(*some.T[:2])
        measured = (away > NOTHING) & (away < np.inf)  # of larger numbers it overflows
        (x, y, z, intensity), away = some[measured].T, away[measured]
        if len(away) >= 10 * FEW:
            break
    else:
        return None
    if (close := (away < NEAR[0]).mean()) > KITTI_CLOSE:
        return f"{close:.0%} of its points are within {NEAR[0]:g} m"
    up = np.degrees(np.arctan2(z, away))[away > NEAR[0]]
    wide = 5 * np.count_nonzero(np.histogram(np.arctan2(y, x), 72, (-np.pi, np.pi))[0] > 2)
    if (up > KITTI_TOP).mean() > TOPS:
        return f"its beams go up to {np.quantile(up, 0.995):.0f} degrees"
    if step * len(away) < KITTI_DENSE * wide:
        return f"it has {step * len(away) / wide:.0f} points per degree"
    if not on_ground(points, Mounting(), KITTI_GROUND, 1.0):
        return "the ground is not 1.73 m below it"
    if full_of(points[:, 3]) == math.inf:
        return "it measures no intensity"
    return f"its intensities go up to {intensity.max():.4g}" if intensity.max() > 1 else ""
