"""A 64-beam LiDAR: the rays of its forward field of view, and a scan of a street with them.

The elevations are those of a Velodyne HDL-64E: 32 beams from +2 down to -8.33 degrees in steps of
a third, 32 more from -8.83 to -24.8 degrees in steps of about a half.
"""

from functools import cache
from typing import NamedTuple

import numpy as np

from data.simulator.casting import GROUND, MISS, cast
from data.simulator.materials import RESPONSE
from data.simulator.street import Street
from data.simulator.windows import Grid

__all__ = ["AZIMUTHS", "ELEVATIONS", "GROUND", "Scan", "directions", "scan"]

ELEVATIONS = np.radians(
    np.concatenate([np.linspace(-24.8, -8.83, 32), np.linspace(-8.33, 2, 32)])
).astype(np.float32)
AZIMUTHS = np.radians(np.arange(-42, 42, 0.18)).astype(np.float32)
MAX_RANGE = 80.0  # metres
RANGE_NOISE = 0.02  # standard deviation, metres


class Scan(NamedTuple):
    """Points and what they hit."""

    points: np.ndarray  # [P, 4] float32 (x, y, z, intensity), LiDAR frame
    owner: np.ndarray  # [P] int: index of the thing hit, GROUND for the ground
    reachable: np.ndarray  # [T] rays that would hit the thing if it stood alone
    seen: np.ndarray  # [T] rays that hit it first


@cache
def _grid() -> Grid:
    return Grid.of(ELEVATIONS, AZIMUTHS)


def directions() -> np.ndarray:
    """Unit vectors of all rays, [3, beams, azimuths] float32."""
    return _grid().directions.reshape(3, *_grid().shape)


def scan(street: Street, time: float, rng: np.random.Generator) -> Scan:
    """What one turn of the sensor measures at `time` seconds, noise and lost pulses included."""
    solid, glass, reachable = cast(street, time, _grid(), MAX_RANGE, rng)
    mean, spread, lost = np.array(RESPONSE, dtype=np.float32).T
    # A pane returns a pulse or lets it through to what lies behind.
    pane = np.isfinite(glass.depth) & (rng.random(len(glass.depth)) >= lost[glass.material])
    depth, owner, material = (
        np.where(pane, ours, theirs) for ours, theirs in zip(glass[:3], solid[:3], strict=True)
    )
    front = np.where(np.isfinite(glass.depth), glass.owner, solid.owner)
    seen = np.bincount(front[front >= 0], minlength=len(street.placed))
    share = np.where(pane, 0, lost[material])
    # Far ground is met at a grazing angle and sends little back.
    share = np.where(owner == GROUND, np.maximum(share, (depth - 25) / 50), share)
    kept = (depth < MISS) & (rng.random(depth.shape, dtype=np.float32) >= share)
    noise = rng.standard_normal((2, np.count_nonzero(kept)), dtype=np.float32)
    reached = depth[kept] + RANGE_NOISE * noise[0]
    intensity = mean[material[kept]] + spread[material[kept]] * noise[1]
    points = np.empty((len(reached), 4), dtype=np.float32)
    points[:, :3] = (_grid().directions[:, kept] * reached).T
    points[:, 3] = intensity.clip(0, 1)
    return Scan(points, owner[kept], reachable, seen)
