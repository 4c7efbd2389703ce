"""Clouds of any LiDAR as networks for every LiDAR take them: the ground level at -1.73 m, and
intensities of one scale; whether a cloud looks like KITTI's."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from millisecond.data.checks.sensor import Mounting
from millisecond.data.frame import Frame
from millisecond.ops.transfer import Move, move_points

HEIGHT = 1.73  # metres above the ground of KITTI's sensor, to which clouds are lifted
NEAR = (3.0, 30.0)  # metres from the sensor where the ground is looked for
CELL = 1.0  # metres: the lowest point of most cells is on the ground
FEW = 60  # cells with fewer tell nothing
LOOKED_AT, STEPS = 40_000, (1, 3, 7, 11, 17, 23, 37)  # points; no divisors of numbers of beams
TRIED, SCORED = 128, 512  # planes through three lowest points each, and points that judge them
WITHIN = (0.25, 0.12)  # metres from the plane of a point of the ground, at first and at last
BELOW = 0.4  # metres below the ground, where no point should be
STEEPEST = 1.2  # rise per metre of planes that are tried
TILTED = 10.0  # degrees from which on a sensor is not levelled
HEIGHTS = (-0.7, 5.0)  # metres of the origin above the ground
SHARE = 0.25  # of the lowest points: so many must be on the ground
DOUBT = 20.0  # square metres: as many as these hold the plane level where the points do not tell


class GroundPlane(NamedTuple):
    """The ground around a sensor: z = x * slope_x + y * slope_y - height, metres."""

    slope_x: float
    slope_y: float
    height: float  # of the origin above the ground


def ground_of(points: Tensor) -> GroundPlane | str:
    """The ground of a scan [P, 3 or more] (x, y, z), or why it cannot be told, as part of a line.

    The lowest points of cells of 1 m; of planes through three of them the one that most of them lie
    near and few below; then weighted least squares (Tukey's weights). The same points give the same
    ground.
    """
    x, y, z = _lowest(points)
    if len(x) < FEW:
        return f"only {len(x)} m2 within {NEAR[1]:g} m have points"
    weight = 1 / (1 + (x * x + y * y) / 10**2)
    rows = torch.stack([x, y, torch.ones_like(x)], 1)
    plane = _likeliest(rows, z, weight)
    if plane is None:
        return "its points lie along a line"
    rows, z, weight = rows.double(), z.double(), weight.double()
    hold = torch.diag(rows.new_tensor([DOUBT, DOUBT, 0.0]))
    for within in np.linspace(*WITHIN, 5):
        off = z - rows @ plane
        own = weight * (1 - (off / (2 * within)) ** 2).clamp(min=0) ** 2
        plane = torch.linalg.solve(rows.T @ (own[:, None] * rows) + hold, rows.T @ (own * z))
    off = z - rows @ plane
    on = float((weight * (off.abs() < WITHIN[0])).sum() / weight.sum())
    below = float((weight * (off < -BELOW)).sum() / weight.sum())
    slope_x, slope_y, level = plane.tolist()
    tilt = math.degrees(math.atan(math.hypot(slope_x, slope_y)))
    height = -level * math.cos(math.radians(tilt))
    if on < SHARE or below > on / 2:
        return f"{on:.0%} of the lowest points lie on one plane, {below:.0%} below it"
    if tilt > TILTED:
        return f"the sensor seems to be tilted by {tilt:.0f} degrees, more than {TILTED:g}"
    if not HEIGHTS[0] < height < HEIGHTS[1]:
        return f"the ground seems to be at z = {-height:.1f}"
    return GroundPlane(slope_x, slope_y, height)


def _lowest(points: Tensor) -> Tensor:
    """[3, N] float32 x, y, z: the lowest near point of each cell; all where several are as low."""
    step = next(step for step in STEPS if len(points) <= step * LOOKED_AT or step == STEPS[-1])
    found = points[::step, :3].float().T.contiguous()
    away = torch.hypot(found[0], found[1])
    near = torch.nonzero((away > NEAR[0]) & (away < NEAR[1]) & found[2].isfinite())[:, 0]
    x, y, z = found = found[:, near]
    side = 2 * int(NEAR[1] / CELL)
    key = (x / CELL + side / 2).int() * side + (y / CELL + side / 2).int()
    lowest = z.new_full((side * side,), math.inf)
    lowest = lowest.scatter_reduce(0, key.long(), z, "amin")
    return found[:, torch.nonzero(z == lowest[key])[:, 0]]


def _likeliest(rows: Tensor, z: Tensor, weight: Tensor) -> Tensor | None:
    """[3] float64 (slope along x and y, z of the origin): of planes through three of the points the
    one that most lie near and few below. rows: [N, 3] x, y, 1. None where all lie along a line."""
    drawn = np.random.default_rng(0).random((3, TRIED))
    three = torch.from_numpy((drawn * len(z)).astype(np.int64)).to(z.device)
    (x, y), (z0, z1, z2) = rows.T[:2], z[three]
    (x0, x1, x2), (y0, y1, y2) = x[three], y[three]
    area = (x1 - x0) * (y2 - y0) - (x2 - x0) * (y1 - y0)
    a = ((z1 - z0) * (y2 - y0) - (z2 - z0) * (y1 - y0)) / area
    b = ((x1 - x0) * (z2 - z0) - (x2 - x0) * (z1 - z0)) / area
    usual = (area.abs() > 4) & (torch.hypot(a, b) < STEEPEST)
    planes = torch.stack([a, b, z0 - a * x0 - b * y0], 1)[usual]
    if not len(planes):
        return None
    some = torch.arange(0, len(z), -(-len(z) // SCORED), device=z.device)
    above = torch.addmm(z[some], planes, rows[some].T, alpha=-1)
    score = (1 - (above / WITHIN[0]) ** 2).clamp(min=0) - 0.5 * (above < -BELOW).float()
    return planes[(score @ weight[some]).argmax()].double()


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
    told stays as it is, or as the mounting has it; `doubt` says why, as part of a line.
    """

    def __init__(self, mounting: Mounting | None = None):
        """mounting: the user's. Its turn always holds; where it lifts, no ground is looked for."""
        self._given = mounting or Mounting()
        self._now, self.doubt = Placement(self._given, math.inf), ""
        self._grounds: list[GroundPlane] = []
        self._fulls: list[float] = []

    def __call__(self, points: Tensor) -> Placement:
        """How the next scan [P, 4 or more] of the recording becomes the network's."""
        known = bool(self._given.shift_z or any(self._given.slopes))
        if self._grounds and not on_ground(points, self._now.mounting, THERE):
            self._grounds, self._fulls = [], []
        if len(self._fulls) >= SCANS and (known or len(self._grounds) >= SCANS):
            return self._now
        if len(points):
            self._fulls = [*self._fulls, full_of(points[:, 3])][-SCANS:]
        found = "" if known else ground_of(points)
        if isinstance(found, GroundPlane):
            if self._grounds and not _alike(found, self._grounds):
                self._grounds, self._fulls = [], self._fulls[-1:]
            self._grounds.append(found)
        self.doubt = found if isinstance(found, str) and not self._grounds else ""
        mounting = self._given
        if self._grounds:
            x, y, height = np.median(self._grounds, axis=0).tolist()
            mounting = Mounting(height - HEIGHT, mounting.turn, (x, y))
        self._now = Placement(mounting, float(np.median(self._fulls or [math.inf])))
        return self._now


def _alike(ground: GroundPlane, others: list[GroundPlane]) -> bool:
    return bool((np.abs(ground - np.median(others, axis=0)) <= APART).all())


def on_ground(
    points: Tensor, mounting: Mounting, share: float, most_below: float = MOST_BELOW
) -> bool:
    """Whether so many of the near points lie at -1.73 m as mounted, and few below; True where few
    are near. A look at 2,000 points."""
    some = points[:: max(1, len(points) // 2000) | 1, :3].cpu().numpy()
    x, y, z = np.ascontiguousarray(some.T)  # the rest is then twice as fast
    away, (by_x, by_y, by_z) = x * x + y * y, mounting.rotation[2].tolist()
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
    return replace(frame, points=level(points).numpy(), boxes=boxes, plane=None), level.mounting


KITTI_TOP, TOPS = 4.0, 0.02  # degrees above which KITTI's sensor sees less than this share
KITTI_DENSE = 150.0  # points per degree of azimuth: half of KITTI's
KITTI_GROUND = 0.2  # share of its near points


def unlike_kitti(points: Tensor) -> str:
    """How a scan [P, 4 or more] differs from KITTI's, as a part of a line; empty where it does not,
    and of few points, which tell nothing. A look at 2,000 points."""
    some = points[:: max(1, len(points) // 2000) | 1, :4].cpu().numpy()
    x, y, z, intensity = some[np.isfinite(some).all(axis=1)].T
    away = np.hypot(x, y)
    if np.count_nonzero(away > NEAR[0]) < 10 * FEW:
        return ""
    up = np.degrees(np.arctan2(z, away))[away > NEAR[0]]
    wide = 5 * np.count_nonzero(np.histogram(np.arctan2(y, x), 72, (-np.pi, np.pi))[0] > 2)
    if (up > KITTI_TOP).mean() > TOPS:
        return f"its beams go up to {np.quantile(up, 0.995):.0f} degrees"
    if len(points) < KITTI_DENSE * wide:
        return f"it has {len(points) / wide:.0f} points per degree"
    if not on_ground(points, Mounting(), KITTI_GROUND, 1.0):
        return "the ground is not 1.73 m below it"
    if full_of(points[:, 3]) == math.inf:
        return "it measures no intensity"
    return f"its intensities go up to {intensity.max():.4g}" if intensity.max() > 1 else ""
