"""The first hits of a sensor's rays: every surface of a street in one pass."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from millisecond.data.simulator import fast_casting, plain_casting
from millisecond.data.simulator.fast_casting import has_kernels
from millisecond.data.simulator.rays import GROUND, MISS, FirstHits, Grid
from millisecond.data.simulator.seen import SeenVolumes, in_sight, surfaces_of, volumes_of
from millisecond.data.simulator.street import Street


class Hits(NamedTuple):
    """The hits of R rays; a pulse that goes through glass meets the surface behind it."""

    solid: FirstHits  # the first surface that is not glass
    glass: FirstHits  # the first glass in front of that
    reachable: np.ndarray  # [T] rays that would hit the thing if it stood alone


def cast(
    street: Street,
    time: float,
    blocks: Sequence[tuple[float, Grid]],
    reach: float,
    rng: np.random.Generator,
) -> Hits:
    """The hits of every ray within `reach` metres at `time` seconds, block after block.

    blocks: heights above the origin, and the rays from there. rng draws how far a pulse goes into
    each volume.
    """
    casting = fast_casting if has_kernels() else plain_casting
    ends = np.cumsum([grid.directions.shape[1] for _, grid in blocks]).tolist()
    solid, glass = FirstHits.empty(ends[-1]), FirstHits.empty(ends[-1])
    streets = [street.raised(height) for height, _ in blocks]
    poses = [raised.poses(time) for raised in streets]
    for pose, (_, grid) in zip(poses, blocks, strict=True):
        pose[:, 2] += pose[:, 0] * grid.slopes[0] + pose[:, 1] * grid.slopes[1]
    seen = [
        in_sight(street, pose, grid, reach, casting.met_cylinders)
        for pose, (_, grid) in zip(poses, blocks, strict=True)
    ]
    number = np.unique(np.concatenate(seen)).astype(np.int32)
    things = [street.placed[i].thing for i in number.tolist()]
    surfaces, volumes = surfaces_of(things), volumes_of(things)
    reachable = np.zeros(len(street.placed), dtype=np.int64)
    for raised, pose, (_, grid), first, last in zip(
        streets, poses, blocks, [0, *ends[:-1]], ends, strict=True
    ):
        layers = solid.at(slice(first, last)), glass.at(slice(first, last))
        way = street.ego_speed * time
        casting.cast_ground(raised.ground, way, grid.level, reach, layers[0])
        touched = np.zeros((len(things), last - first), dtype=bool)
        x, y, z, yaw = pose[number].T
        cos, sin, (a, b) = np.cos(yaw), np.sin(yaw), grid.slopes
        at = np.stack([x, y, z, cos, sin, a * cos + b * sin, b * cos - a * sin], axis=1)
        casting.cast_meshes(surfaces, at, number, grid, layers, touched)
        if volumes is not None:
            crossed = casting.cross_volumes(volumes.placed(at), grid)
            _enter(volumes, number, crossed, layers[0], touched, rng)
        rows = (np.count_nonzero(row) for row in touched)  # by axis it is slow
        reachable[number] += np.fromiter(rows, np.int64, len(things))
    solid.depth[solid.depth > reach] = MISS
    behind = (glass.depth >= solid.depth) | (glass.depth > reach)
    glass.depth[behind] = MISS
    glass.owner[behind] = GROUND
    return Hits(solid, glass, reachable)


def _enter(
    volumes: SeenVolumes, number: np.ndarray, crossed, solid: FirstHits, touched, rng
) -> None:
    """Lets pulses into the volumes; each ends after a random way, or comes out again."""
    i, ray, near, far = crossed
    depth = near + rng.standard_exponential(len(i), np.float32) * volumes.path[i]
    ends = depth < far
    i, ray, depth = i[ends], ray[ends], depth[ends]
    part = volumes.part[i]
    touched[part, ray] = True
    solid.put(ray, depth, number[part], volumes.material[i], np.ones(len(i), np.float32))
