"""What the rays of a sensor hit first: every surface of a street in one pass."""

from typing import NamedTuple

import numpy as np

from data.simulator import fast_casting, plain_casting
from data.simulator.layers import GROUND, MISS, Layer
from data.simulator.seen import Seen, in_sight, meshes_of, volumes_of
from data.simulator.street import Street
from data.simulator.windows import Grid
from ops.ray_casting import has_kernels

__all__ = ["GROUND", "Hits", "Layer", "cast"]


class Hits(NamedTuple):
    """What R rays meet; a pulse that goes through glass meets what lies behind it."""

    solid: Layer  # the first surface that is not glass
    glass: Layer  # the first glass in front of that
    reachable: np.ndarray  # [T] rays that would hit the thing if it stood alone


def cast(street: Street, time: float, grid: Grid, reach: float, rng: np.random.Generator) -> Hits:
    """What every ray meets within `reach` metres at `time` seconds.

    rng draws how far a pulse goes into each volume.
    """
    rays = grid.directions.shape[1]
    solid, glass = Layer.empty(rays), Layer.empty(rays)
    casting = fast_casting if has_kernels() else plain_casting
    casting.cast_ground(street.ground, street.ego_speed * time, grid.directions, reach, solid)
    seen = in_sight(street, time, grid, reach, casting.met_cylinders)
    reachable = np.zeros(len(street.placed), dtype=np.int64)
    if len(seen.thing):
        touched = np.zeros((len(seen.thing), rays), dtype=bool)
        casting.cast_meshes(meshes_of(street, seen), grid, (solid, glass), touched)
        _cast_volumes(street, seen, grid, casting.cross_volumes, solid, touched, rng)
        reachable[seen.thing] = np.count_nonzero(touched, axis=1)
    solid.depth[solid.depth > reach] = MISS
    behind = (glass.depth >= solid.depth) | (glass.depth > reach)
    glass.depth[behind] = MISS
    glass.owner[behind] = GROUND
    return Hits(solid, glass, reachable)


def _cast_volumes(street, seen: Seen, grid: Grid, cross_volumes, solid: Layer, touched, rng):
    """Lets pulses into the volumes; each ends after a way that is drawn, or comes out again."""
    volumes = volumes_of(street, seen)
    if volumes is None:
        return
    i, ray, near, far = cross_volumes(volumes, grid)
    depth = near + rng.standard_exponential(len(i), np.float32) * volumes.path[i]
    ends = depth < far
    i, ray, depth = i[ends], ray[ends], depth[ends]
    part = volumes.part[i]
    touched[part, ray] = True
    one = np.ones(len(i), np.float32)
    solid.put(ray, depth, seen.thing[part], volumes.material[i], one)
