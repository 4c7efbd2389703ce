"""A 64-beam LiDAR: the rays of its forward field of view, and a scan of a street with them.

The elevations are those of a Velodyne HDL-64E: 32 beams from +2 down to -8.33 degrees in steps of
a third, 32 more from -8.83 to -24.8 degrees in steps of about a half.
"""

from functools import cache
from typing import NamedTuple

import numpy as np

from data.simulator.solids import MISS, Material
from data.simulator.street import ASPHALT, PAINT, PAVEMENT, Street
from data.simulator.things import Thing

ELEVATIONS = np.radians(
    np.concatenate([np.linspace(-24.8, -8.83, 32), np.linspace(-8.33, 2, 32)])
).astype(np.float32)
AZIMUTHS = np.radians(np.arange(-42, 42, 0.18)).astype(np.float32)
MAX_RANGE = 80.0  # metres
RANGE_NOISE = 0.02  # standard deviation, metres
GROUND = -1  # owner of a point on the ground


class Scan(NamedTuple):
    """Points and what they hit."""

    points: np.ndarray  # [P, 4] float32 (x, y, z, intensity), LiDAR frame
    owner: np.ndarray  # [P] int: index of the thing hit, GROUND for the ground
    reachable: np.ndarray  # [T] rays that would hit the thing if it stood alone
    seen: np.ndarray  # [T] rays that hit it first


@cache
def directions() -> np.ndarray:
    """Unit vectors of all rays, [3, beams, azimuths] float32."""
    elevation, azimuth = np.meshgrid(ELEVATIONS, AZIMUTHS, indexing="ij")
    flat = np.cos(elevation)
    return np.stack([flat * np.cos(azimuth), flat * np.sin(azimuth), np.sin(elevation)])


def scan(street: Street, time: float, rng: np.random.Generator) -> Scan:
    """What one turn of the sensor measures at `time` seconds, noise and lost pulses included."""
    rays = directions()
    depth, material = _ground(street, rays)
    owner = np.full(depth.shape, GROUND, dtype=np.int32)
    reachable = np.zeros(len(street.placed), dtype=np.int64)
    materials = [ASPHALT, PAVEMENT, PAINT]
    for index, placed in enumerate(street.placed):
        pose = street.pose(placed, time)
        window = _window(placed.thing, pose)
        if window is None:
            continue
        nearest, solid = _enter(placed.thing, pose, rays[(slice(None), *window)])
        reachable[index] = np.count_nonzero(nearest < MAX_RANGE)
        closer = nearest < depth[window]
        depth[window][closer] = nearest[closer]
        owner[window][closer] = index
        material[window][closer] = solid[closer] + len(materials)
        materials += [part.material for part in placed.thing.solids]
    seen = np.bincount(owner[owner >= 0], minlength=len(street.placed))
    points, kept = _measure(rays, depth, material, materials, rng)
    return Scan(points, owner[kept], reachable, seen)


def _ground(street: Street, rays: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Depth of the ground plane along every ray, and its material: 0 road, 1 pavement, 2 paint."""
    normal, offset = street.plane[:3], street.plane[3]
    slope = np.tensordot(normal, rays, 1)
    depth = np.where(slope < 0, -offset / np.minimum(slope, -1e-6), MISS).astype(np.float32)
    depth[depth > MAX_RANGE] = MISS
    reached = np.minimum(depth, MAX_RANGE)
    v = street.lateral(rays[0] * reached, rays[1] * reached)
    material = ((v < street.kerbs[0]) | (v > street.kerbs[1])).astype(np.int32)
    for line in street.lines:
        material[np.abs(v - line) < 0.08] = 2
    return depth, material


def _window(thing: Thing, pose: tuple[float, float, float, float]) -> tuple[slice, slice] | None:
    """Beams and azimuths that can hit the thing; None when it is out of sight."""
    x, y, z, yaw = pose
    low, high = thing.bounds()
    sides = np.array([(u, v) for u in (low[0], high[0]) for v in (low[1], high[1])])
    cos, sin = np.cos(yaw), np.sin(yaw)
    corners = sides @ np.array([(cos, sin), (-sin, cos)]) + (x, y)
    azimuth = np.arctan2(corners[:, 1], corners[:, 0])
    # A thing straight behind the sensor straddles +-pi; all of it is out of the forward view.
    if azimuth.max() - azimuth.min() > np.pi:
        return None
    columns = np.searchsorted(AZIMUTHS, (azimuth.min(), azimuth.max()), side="right")
    middle = corners.mean(0)
    reach = np.linalg.norm(corners - middle, axis=1).max()
    distance = np.hypot(*middle)
    near, far = max(distance - reach, 1e-3), distance + reach
    if near > MAX_RANGE or columns[0] == columns[1]:
        return None
    bottom, top = z + low[2], z + high[2]
    lowest = np.arctan2(bottom, near if bottom < 0 else far)
    highest = np.arctan2(top, near if top > 0 else far)
    rows = np.searchsorted(ELEVATIONS, (lowest, highest), side="right")
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


def _measure(rays, depth, material, materials: list[Material], rng: np.random.Generator):
    """Points [P, 4] of the rays that come back, and the mask [beams, azimuths] of those rays."""
    mean, spread, dropout = np.array(materials, dtype=np.float32).T
    lost = dropout[material]
    # Far ground is met at a grazing angle and sends little back.
    ground = material < 3
    lost = np.where(ground, np.maximum(lost, (depth - 25) / 50), lost)
    kept = (depth < MAX_RANGE) & (rng.random(depth.shape, dtype=np.float32) >= lost)
    noise = rng.standard_normal((2, np.count_nonzero(kept)), dtype=np.float32)
    reached = depth[kept] + RANGE_NOISE * noise[0]
    intensity = mean[material[kept]] + spread[material[kept]] * noise[1]
    points = np.concatenate([rays[:, kept] * reached, intensity.clip(0, 1)[None]])
    return np.ascontiguousarray(points.T, dtype=np.float32), kept
