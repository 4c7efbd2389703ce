"""The ground below a sensor: the plane that the lowest points of a scan lie near."""

import math
from typing import NamedTuple

import numpy as np
from torch import Tensor

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
UNDER = 0.28  # of the points within WITHIN of the ground: so many lie below the plane
DENSE = 0.5  # of the number of points up to WITHIN above the ground: fewer lie next above them
DOUBT = 20.0  # square metres: as many as these hold the plane level where the points do not tell


class GroundPlane(NamedTuple):
    """The ground around a sensor: z = x * slope_x + y * slope_y - height, metres."""

    slope_x: float
    slope_y: float
    height: float  # of the origin above the ground


class Fit(NamedTuple):
    """The plane that most of the lowest points lie near, be it the ground or not."""

    slope_x: float
    slope_y: float
    level: float  # z of the plane at the origin, metres
    on: float  # share of the lowest points that lie on the plane; near ones have more weight
    below: float  # share that lies below it

    def above(self, points: np.ndarray) -> np.ndarray:
        """The heights of points [P, 3 or more] above the plane [P], metres along z."""
        return points[:, 2] - points[:, :2] @ (self.slope_x, self.slope_y) - self.level


def ground_of(points: Tensor) -> GroundPlane | str:
    """The ground of a scan [P, 3 or more] (x, y, z), or why it cannot be told, as part of a line.

    The same points give the same ground.
    """
    fit = plane_of(points)
    if isinstance(fit, str):
        return fit
    tilt = math.degrees(math.atan(math.hypot(fit.slope_x, fit.slope_y)))
    height = -fit.level * math.cos(math.radians(tilt))
    if fit.on < SHARE or fit.below > fit.on / 2:
        return f"{fit.on:.0%} of the lowest points lie on one plane, {fit.below:.0%} below it"
    if tilt > TILTED:
        return f"the sensor seems to be tilted by {tilt:.0f} degrees, more than {TILTED:g}"
    if not HEIGHTS[0] < height < HEIGHTS[1]:
        return f"the ground seems to be at z = {-height:.1f}"
    if _is_edge(fit, points):
        return "the points end above a plane, as if the ground had been cut away"
    return GroundPlane(fit.slope_x, fit.slope_y, height)


def plane_of(points: Tensor) -> Fit | str:
    """The plane of the lowest points of a scan [P, 3 or more], or why there is none.

    The lowest points of cells of 1 m; of planes through three of them the one that most of them lie
    near and few below; then weighted least squares (Tukey's weights).
    """
    x, y, z = _lowest(points)
    if len(x) < FEW:
        return f"only {len(x)} m2 within {NEAR[1]:g} m have points"
    weight = 1 / (1 + (x * x + y * y) / 10**2)
    plane = _likeliest(x, y, z, weight)
    if plane is None:
        return "its points lie along a line"
    rows = np.stack([x, y, np.ones_like(x)]).astype(np.float64)
    hold = np.diag([DOUBT, DOUBT, 0.0])
    for within in np.linspace(*WITHIN, 5):
        off = _above(plane, rows[0], rows[1], z)
        own = weight * (1 - (off / (2 * within)) ** 2).clip(min=0) ** 2
        products = (rows[:, None] * rows * own).sum(axis=2)
        plane = np.linalg.solve(products + hold, (rows * own * z).sum(axis=1))
    off = _above(plane, rows[0], rows[1], z)
    on = float((weight * (np.abs(off) < WITHIN[0])).sum() / weight.sum())
    below = float((weight * (off < -BELOW)).sum() / weight.sum())
    slope_x, slope_y, level = plane.tolist()
    return Fit(slope_x, slope_y, level, on, below)


def _is_edge(fit: Fit, points: Tensor) -> bool:
    """Whether the plane is the lower end of walls and other objects: few points lie below it, and
    farther above it they lie nearly as densely as next to it."""
    above, within = fit.above(_near(points).T), WITHIN[0]
    under = np.count_nonzero((above > -within) & (above < 0))
    next_to = np.count_nonzero((above >= 0) & (above < within))
    farther = np.count_nonzero((above >= within) & (above < 2 * within))
    return bool(under < UNDER * (under + next_to) and farther > DENSE * next_to)


def _above(planes: np.ndarray, x: np.ndarray, y: np.ndarray, z: np.ndarray) -> np.ndarray:
    """Heights of points above a plane [3] or each of planes [3, N, 1]."""
    return z - (planes[0] * x + planes[1] * y + planes[2])


def _near(points: Tensor) -> np.ndarray:
    """[3, N] float32 x, y, z: the points at a distance where the ground is looked for, or some.

    This and what follows is numpy, because torch would have all cores of a machine work together on
    so little, and wait for the last of them.
    """
    step = next(step for step in STEPS if len(points) <= step * LOOKED_AT or step == STEPS[-1])
    found = np.ascontiguousarray(points[::step, :3].cpu().numpy().T, np.float32)
    away = np.hypot(*found[:2].clip(-1e9, 1e9))  # products of larger numbers overflow
    near = (away > NEAR[0]) & (away < NEAR[1]) & (np.abs(found[2]) < 1e9)
    return found[:, near]


def _lowest(points: Tensor) -> np.ndarray:
    """[3, N] float32 x, y, z: the lowest near point of each cell; all where several are as low."""
    x, y, z = found = _near(points)
    side = 2 * int(NEAR[1] / CELL)
    key = (x / CELL + side / 2).astype(np.int64) * side + (y / CELL + side / 2).astype(np.int64)
    lowest = np.full(side * side, np.inf, np.float32)
    np.minimum.at(lowest, key, z)
    return found[:, z == lowest[key]]


def _likeliest(
    x: np.ndarray, y: np.ndarray, z: np.ndarray, weight: np.ndarray
) -> np.ndarray | None:
    """[3] float64 (slope along x and y, z of the origin): of planes through three of the points the
    one that most lie near and few below. None where all lie along a line."""
    drawn = np.random.default_rng(0).random((3, TRIED))
    three = (drawn * len(z)).astype(np.int64)
    (x0, x1, x2), (y0, y1, y2), (z0, z1, z2) = x[three], y[three], z[three]
    area = (x1 - x0) * (y2 - y0) - (x2 - x0) * (y1 - y0)
    usual = np.abs(area) > 4
    area = np.where(usual, area, 1)
    a = ((z1 - z0) * (y2 - y0) - (z2 - z0) * (y1 - y0)) / area
    b = ((x1 - x0) * (z2 - z0) - (x2 - x0) * (z1 - z0)) / area
    usual &= np.hypot(a, b) < STEEPEST
    planes = np.stack([a, b, z0 - a * x0 - b * y0])[:, usual]
    if not planes.size:
        return None
    some = slice(None, None, -(-len(z) // SCORED))
    above = _above(planes[:, :, None], x[some], y[some], z[some])
    score = (1 - (above / WITHIN[0]) ** 2).clip(min=0) - 0.5 * (above < -BELOW)
    return planes[:, (score * weight[some]).sum(axis=1).argmax()].astype(np.float64)
