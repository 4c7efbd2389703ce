"""The ground of a street made from its sides."""

import numpy as np

from data.simulator.ground import Ground
from data.simulator.materials import Material
from data.simulator.sides import Side
from data.simulator.street import SENSOR_HEIGHT

LINE_WIDTH = 0.14  # of painted lines, metres


def make_ground(
    rng: np.random.Generator,
    sides: tuple[Side, Side],
    lines: list[float],
    yaw: float,
    bend: float,
) -> Ground:
    """Cross-section of both sides, the camber of the road, painted lines, hills and bumps."""
    right, left = sides
    profile = [(-d, h) for d, h in reversed(right.heights)] + [(0.0, 0.0)] + left.heights
    v, height = np.array(profile).T
    v = v + 1e-4 * np.arange(len(v))
    middle, camber = (left.inner - right.inner) / 2, rng.uniform(0.0, 0.02)
    knots = np.unique([*v, middle, middle - 4, middle + 4])
    drop = camber * (np.minimum(np.abs(knots - middle), 4) - min(abs(middle), 4))
    across = np.array([knots, np.interp(knots, v, height) - drop])
    bounds, materials = _strips(right, left, lines)
    # Hills: labelled cars 10 to 70 m away lie as high and as low as on these.
    a, b = rng.normal(0, 0.006, 2)
    size = rng.uniform(0.004, 0.025, 5) * np.array([5.0, 2.0, 1.0, 0.6, 0.4])
    length = np.array([60.0, 25.0, 9.0, 4.0, 2.5]) * rng.uniform(0.7, 1.4, 5)
    turn = rng.uniform(-0.6, 0.6, 5)
    waves = np.array([size, 2 / length, 2 * turn / length, rng.uniform(0, 2, 5)])
    plane = np.array([a, b, 1.0, SENSOR_HEIGHT + rng.normal(0, 0.05)], dtype=np.float32)
    return Ground(plane, yaw, across, bounds, materials, waves, bend)


def _strips(right: Side, left: Side, lines: list[float]) -> tuple[np.ndarray, np.ndarray]:
    """Where the material changes, v ascending, and the materials in between."""
    bounds = [-d for d, _ in reversed(right.strips)] + [-right.inner, left.inner]
    bounds += [d for d, _ in left.strips]
    kinds = [Material.GRASS, *(m for _, m in reversed(right.strips)), Material.ASPHALT]
    kinds += [m for _, m in left.strips] + [Material.GRASS]
    half = LINE_WIDTH / 2
    for line in lines:
        at = min(max(line, -right.inner + half + 0.05), left.inner - half - 0.05)
        k = int(np.searchsorted(bounds, at))
        bounds[k:k] = [at - half, at + half]
        kinds[k:k] = [kinds[k], Material.MARKING]
    return np.array(bounds), np.array(kinds, dtype=np.int64)
