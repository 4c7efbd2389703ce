"""What the rays of a sensor hit first."""

from typing import NamedTuple

import numpy as np

from data.simulator import things
from data.simulator.materials import Material
from data.simulator.street import Street
from data.simulator.things import Thing
from data.simulator.windows import Grid

MISS = np.float32(np.inf)
GROUND = -1  # owner of a ray that ends on the ground
_MATERIALS = {
    things.GLASS: Material.GLASS,
    things.TYRE: Material.RUBBER,
    things.CLOTH: Material.CLOTH,
    things.SKIN: Material.SKIN,
    things.BARK: Material.WOOD,
    things.LEAVES: Material.FOLIAGE,
    things.METAL: Material.METAL,
    things.GREY: Material.CONCRETE,
}


class Layer(NamedTuple):
    """The first surface of a kind along each of R rays."""

    depth: np.ndarray  # [R] float32 metres, `MISS` where there is none
    owner: np.ndarray  # [R] int32: index of the thing, `GROUND` for the ground
    material: np.ndarray  # [R] int64, `Material`
    cosine: np.ndarray  # [R] float32, of the angle of incidence; 1 in a volume


class Hits(NamedTuple):
    """What R rays meet; a pulse that goes through glass meets what lies behind it."""

    solid: Layer  # the first surface that is not glass
    glass: Layer  # the first glass in front of that
    reachable: np.ndarray  # [T] rays that would hit the thing if it stood alone


def cast(street: Street, time: float, grid: Grid, reach: float, rng: np.random.Generator) -> Hits:
    """What every ray meets within `reach` metres at `time` seconds."""
    rays = grid.directions.reshape(3, *grid.shape)
    depth, material, cosine = _ground(street, rays, reach)
    owner = np.full(depth.shape, GROUND, dtype=np.int32)
    reachable = np.zeros(len(street.placed), dtype=np.int64)
    for index, placed in enumerate(street.placed):
        pose = street.pose(placed, time)
        window = _window(placed.thing, pose, grid, reach)
        if window is None:
            continue
        nearest, part = _enter(placed.thing, pose, rays[(slice(None), *window)])
        reachable[index] = np.count_nonzero(nearest < reach)
        closer = nearest < depth[window]
        depth[window][closer] = nearest[closer]
        owner[window][closer] = index
        kinds = np.array(
            [_MATERIALS.get(each.material, Material.PAINT) for each in placed.thing.solids]
        )
        material[window][closer] = kinds[part[closer]]
        cosine[window][closer] = 0.7
    depth[depth > reach] = MISS
    solid = Layer(depth.ravel(), owner.ravel(), material.ravel(), cosine.ravel())
    glass = Layer(
        np.full(depth.size, MISS), solid.owner, np.full(depth.size, Material.GLASS), solid.cosine
    )
    return Hits(solid, glass, reachable)


def _ground(street: Street, rays: np.ndarray, reach: float):
    normal, offset = street.plane[:3], street.plane[3]
    slope = np.tensordot(normal, rays, 1)
    depth = np.where(slope < 0, -offset / np.minimum(slope, -1e-6), MISS).astype(np.float32)
    depth[depth > reach] = MISS
    reached = np.minimum(depth, reach)
    v = street.lateral(rays[0] * reached, rays[1] * reached)
    paved = (v < street.kerbs[0]) | (v > street.kerbs[1])
    material = np.where(paved, Material.CONCRETE, Material.ASPHALT).astype(np.int64)
    for line in street.lines:
        material[np.abs(v - line) < 0.08] = Material.MARKING
    return depth, material, np.maximum(-slope, 0).astype(np.float32)


def _window(thing: Thing, pose: tuple[float, float, float, float], grid: Grid, reach: float):
    """Beams and azimuths that can hit the thing; None when it is out of sight."""
    x, y, z, yaw = pose
    low, high = thing.bounds()
    sides = np.array([(u, v) for u in (low[0], high[0]) for v in (low[1], high[1])])
    cos, sin = np.cos(yaw), np.sin(yaw)
    corners = sides @ np.array([(cos, sin), (-sin, cos)]) + (x, y)
    azimuth = np.arctan2(corners[:, 1], corners[:, 0])
    # A thing straight behind the sensor straddles +-pi.
    across = azimuth.max() - azimuth.min() > np.pi
    columns = np.searchsorted(grid.azimuths, (azimuth.min(), azimuth.max()), side="right")
    if across:
        columns = np.array([0, len(grid.azimuths)])
    middle = corners.mean(0)
    radius = np.linalg.norm(corners - middle, axis=1).max()
    distance = np.hypot(*middle)
    near, far = max(distance - radius, 1e-3), distance + radius
    if near > reach or columns[0] == columns[1]:
        return None
    bottom, top = z + low[2], z + high[2]
    lowest = bottom / (near if bottom < 0 else far)
    highest = top / (near if top > 0 else far)
    rows = np.searchsorted(grid.tangents, (lowest, highest), side="right")
    return (slice(*rows), slice(*columns)) if rows[0] < rows[1] else None


def _enter(thing: Thing, pose, rays: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Depth of the nearest solid of the thing along rays [3, h, w], and which solid it is."""
    x, y, z, yaw = pose
    cos, sin = np.cos(yaw), np.sin(yaw)
    to_local = np.array([(cos, sin, 0), (-sin, cos, 0), (0, 0, 1)], dtype=np.float32)
    origin = to_local @ np.array([-x, -y, -z], dtype=np.float32)
    local = to_local @ rays.reshape(3, -1)
    nearest = np.full(local.shape[1], MISS, dtype=np.float32)
    solid = np.zeros(local.shape[1], dtype=np.int32)
    for index, part in enumerate(thing.solids):
        depth = part.enter(origin, local)
        solid[depth < nearest] = index
        nearest = np.minimum(nearest, depth)
    return nearest.reshape(rays.shape[1:]), solid.reshape(rays.shape[1:])
