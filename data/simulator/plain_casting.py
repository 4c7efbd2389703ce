"""Rays against triangles and volumes in plain numpy. It is the reference of fast_casting, and
replaces it where fast_casting cannot be built.

A triangle is looked for only in the window of beams and azimuths that can see it. All rays start in
the sensor. So a ray d is inside the triangle (a, b, c) where d . (a x b), d . (b x c) and d .
(c x a) have one sign. It meets the plane at a . (b x c) / d . (a x b + b x c + c x a). No sum runs
through a library whose order of adding differs between machines.
"""

from typing import NamedTuple

import numpy as np

from millisecond.data.simulator.ground import Ground
from millisecond.data.simulator.rays import MISS, FirstHits, Grid
from millisecond.data.simulator.seen import SeenVolumes, Surfaces
from millisecond.data.simulator.solids import Material

PI = np.pi
MARGIN = 1e-5  # radians and tangents; a window may be too large, never too small
CHUNK = 1 << 16  # pairs of item and ray at once, so that they stay in the cache


def cast_ground(
    ground: Ground, way: float, directions: np.ndarray, reach: float, layer: FirstHits
) -> None:
    """Writes the ground into a layer; see Ground.cast."""
    layer.depth[:], layer.material[:], layer.cosine[:] = ground.cast(way, directions, reach)


def met_cylinders(
    grid: Grid, centre: np.ndarray, radius: np.ndarray, rise: np.ndarray
) -> np.ndarray:
    """The numbers of the upright cylinders [3, M] that a ray may hit; some come twice."""
    return sphere_windows(grid, centre, radius, rise).item


def cast_meshes(
    meshes: Surfaces,
    pose: np.ndarray,
    owner: np.ndarray,
    grid: Grid,
    layers: tuple[FirstHits, FirstHits],
    touched: np.ndarray,
) -> None:
    """Puts the triangles that face the sensor into the layers (solid, glass).

    Args:
        meshes: of S things.
        pose: [S, 7] x, y, z, cosine and sine of the yaw, in the sensor's frame; how much z rises
            per metre along the thing and to its left, in a sheared world.
        owner: [S] int32 their numbers.
        grid: the rays.
        layers: solid, glass.
        touched: [S, R] bool, set where a ray would meet the thing if it stood alone.
    """
    corners, part, material = _triangles(meshes, pose)
    a, b, c = corners
    edges = np.stack([_cross(a, b), _cross(b, c), _cross(c, a)])  # [3, 3, T]
    volume = _dot(a, edges[1])
    facing = volume < 0
    found = triangle_windows(grid, corners[..., facing])
    edges, volume = edges[..., facing], volume[facing]
    normal = edges[0] + edges[1] + edges[2]
    length = np.sqrt(_dot(normal, normal))
    nearest, farthest = _reach(corners[..., facing])
    part, material = part[facing], material[facing]
    item, ray = pairs(found, grid.shape[1])
    rows = np.ascontiguousarray(edges.reshape(9, -1).T)
    for start in range(0, len(item), CHUNK):
        i, r = item[start : start + CHUNK], ray[start : start + CHUNK]
        d = grid.directions[:, r]
        e = rows[i].T
        s0, s1, s2 = (e[k] * d[0] + e[k + 1] * d[1] + e[k + 2] * d[2] for k in (0, 3, 6))
        total = s0 + s1 + s2
        inside = (s0 <= 0) & (s1 <= 0) & (s2 <= 0) & (total < 0)
        i, r, total = i[inside], r[inside], total[inside]
        depth = np.minimum(np.maximum(volume[i] / total, nearest[i]), farthest[i])
        cosine = -total / np.maximum(length[i], 1e-12)
        touched[part[i], r] = True
        pane = material[i] == Material.GLASS
        for layer, mine in zip(layers, (~pane, pane), strict=True):
            j = i[mine]
            layer.put(r[mine], depth[mine], owner[part[j]], material[j], cosine[mine])


def _reach(corners: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Bounds [T]: each point of a triangle is at least and at most so far away. Where a triangle is
    seen edge-on, rounding ruins the depth itself. With weights w of the corners, |p|^2 = sum w
    |corner|^2 - sum w w' |side|^2, and the sum of all w w' is at most a third.
    """
    squares = [_dot(corner, corner) for corner in corners]
    sides = [corners[k] - corners[(k + 1) % 3] for k in range(3)]
    longest = np.maximum.reduce([_dot(side, side) for side in sides])
    nearest = np.minimum.reduce(squares) - longest / np.float32(3)
    return np.sqrt(np.maximum(nearest, np.float32(0))), np.sqrt(np.maximum.reduce(squares))


def _triangles(meshes: Surfaces, pose: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The triangles of placed things: corners [3 corners, 3 coordinates, T] in the sensor's frame,
    the number of the thing [T] and the material [T]."""
    hulls = meshes.hulls
    sizes, count = hulls[:, 2], hulls[:, 4]
    x, y, z = meshes.vertices.T
    at_x, at_y, at_z, cos, sin, ahead, left = pose[hulls[:, 0]].T.repeat(sizes, axis=1)
    z = z + at_z + ahead * x + left * y
    vertices = np.array([cos * x - sin * y + at_x, sin * x + cos * y + at_y, z], np.float32)
    number = np.arange(count.sum()) - (np.cumsum(count) - count).repeat(count)  # within its hull
    triangles = meshes.corners[number + hulls[:, 3].repeat(count)]
    triangles += hulls[:, 1].repeat(count)[:, None]
    material = meshes.material[hulls[:, 5].repeat(count) + number * hulls[:, 6].repeat(count)]
    return vertices[:, triangles.T].transpose(1, 0, 2), hulls[:, 0].repeat(count), material


def cross_volumes(
    volumes: SeenVolumes, grid: Grid
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Where rays go through volumes: item, ray [H], depths [H] at which they enter and leave."""
    half, (cos, sin) = volumes.half, volumes.turn.T
    found = sphere_windows(grid, volumes.centre, volumes.radius, half[:, 2])
    item, ray = pairs(found, grid.shape[1])
    # Rotated into its own frame and divided by the half extents, a volume is a unit ball or cube.
    into = np.array([cos / half[:, 0], sin / half[:, 0], -sin / half[:, 1], cos / half[:, 1]])
    into = np.vstack([into, 1 / half[:, 2]]).astype(np.float32)
    x, y, z = -volumes.centre
    at = np.array([into[0] * x + into[1] * y, into[2] * x + into[3] * y, into[4] * z])
    columns = []
    for start in range(0, len(item), CHUNK):
        i, r = item[start : start + CHUNK], ray[start : start + CHUNK]
        d = grid.directions[:, r]
        m, o = into[:, i], at[:, i]
        d = np.array([m[0] * d[0] + m[1] * d[1], m[2] * d[0] + m[3] * d[1], m[4] * d[2]])
        near, far = _ball(o, d)
        square = ~volumes.rounded[i]
        if square.any():
            near[square], far[square] = _cube(o[:, square], d[:, square])
        hit = (near < far) & (far > 0)
        columns.append((i[hit], r[hit], np.maximum(near[hit], 0), far[hit]))
    if not columns:
        return item, ray, np.zeros(0, np.float32), np.zeros(0, np.float32)
    i, r, near, far = (np.concatenate(column) for column in zip(*columns, strict=True))
    return i, r, near, far


def _ball(origin: np.ndarray, direction: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Where rays enter and leave the unit ball; near is not below far where they miss."""
    a, b = _dot(direction, direction), _dot(origin, direction)
    square = b * b - a * (_dot(origin, origin) - 1)
    root = np.sqrt(np.maximum(square, 0))
    miss = square <= 0
    return np.where(miss, MISS, (-b - root) / a), np.where(miss, -MISS, (-b + root) / a)


def _cube(origin: np.ndarray, direction: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Where rays enter and leave the cube from -1 to 1."""
    slope = np.where(direction == 0, np.float32(1e-12), direction)
    one, other = (-1 - origin) / slope, (1 - origin) / slope
    return np.minimum(one, other).max(0), np.maximum(one, other).min(0)


def _cross(u: np.ndarray, v: np.ndarray) -> np.ndarray:
    return np.array(
        [u[1] * v[2] - u[2] * v[1], u[2] * v[0] - u[0] * v[2], u[0] * v[1] - u[1] * v[0]]
    )


def _dot(u: np.ndarray, v: np.ndarray) -> np.ndarray:
    return u[0] * v[0] + u[1] * v[1] + u[2] * v[2]


class Windows(NamedTuple):
    """Beams row[0] to row[1] and azimuths column[0] to column[1] of an item, ends excluded."""

    item: np.ndarray  # [W]; an item behind the sensor has two windows
    row: np.ndarray  # [2, W]
    column: np.ndarray  # [2, W]


def windows(grid: Grid, azimuth: np.ndarray, height: np.ndarray, distance: np.ndarray) -> Windows:
    """Windows of items.

    Args:
        grid: the rays.
        azimuth: [2, W] lowest and highest, radians. They are more than half a turn apart where the
            item lies across the azimuth pi, and a whole turn apart where it is above or below the
            sensor.
        height: [2, W] lowest and highest, metres above the sensor.
        distance: [2, W] nearest and farthest, metres in the horizontal plane.
    """
    near, far = np.maximum(distance[0], 1e-3), np.maximum(distance[1], 1e-3)
    low = height[0] / np.where(height[0] < 0, near, far) - MARGIN
    high = height[1] / np.where(height[1] > 0, near, far) + MARGIN
    row = np.array([np.searchsorted(grid.tangents, low), np.searchsorted(grid.tangents, high)])
    first = np.searchsorted(grid.azimuths, azimuth[0] - MARGIN)
    last = np.searchsorted(grid.azimuths, azimuth[1] + MARGIN)
    index = np.arange(len(low))
    width = azimuth[1] - azimuth[0]
    # From the higher azimuth up to pi, and from -pi up to the lower one.
    behind = np.flatnonzero((width > PI) & (width < 2 * PI - 1e-9))
    ends = np.searchsorted(grid.azimuths, azimuth[1, behind] - MARGIN)
    starts = np.searchsorted(grid.azimuths, azimuth[0, behind] + MARGIN)
    last[behind], first[behind] = len(grid.azimuths), ends
    index = np.concatenate([index, behind])
    column = np.array(
        [np.concatenate([first, np.zeros_like(starts)]), np.concatenate([last, starts])]
    )
    row = row[:, index]
    kept = (row[1] > row[0]) & (column[1] > column[0])
    return Windows(index[kept], row[:, kept], column[:, kept])


def triangle_windows(grid: Grid, corners: np.ndarray) -> Windows:
    """Windows of triangles [3, 3, T] (corner, coordinate, triangle), sensor frame."""
    x, y, z = corners[:, 0], corners[:, 1], corners[:, 2]
    azimuth = np.arctan2(y.astype(np.float64), x)
    turned = np.roll(np.arange(3), -1)
    u, v = x[turned] - x, y[turned] - y
    along = -(x * u + y * v) / np.maximum(u * u + v * v, 1e-12)
    along = np.clip(along, 0, 1)
    nearest = np.hypot(x + along * u, y + along * v).min(0)
    side = x * v - y * u
    around = ((side >= 0).all(0) | (side <= 0).all(0)) & (nearest < 30)
    # Edge-on and outside, all sides may be near zero: then the corners span less than half a turn.
    around &= azimuth.max(0) - azimuth.min(0) > PI - 1e-6
    nearest = np.where(around, 0.0, nearest)
    limits = np.where(around, [[-PI], [PI]], [azimuth.min(0), azimuth.max(0)])
    farthest = np.hypot(x, y).max(0)
    return windows(grid, limits, np.array([z.min(0), z.max(0)]), np.array([nearest, farthest]))


def sphere_windows(grid: Grid, centre: np.ndarray, radius: np.ndarray, rise: np.ndarray) -> Windows:
    """Windows of upright cylinders [3, M] (coordinate, cylinder) of a radius and half a height."""
    x, y, z = centre
    away = np.hypot(x, y)
    middle = np.arctan2(y, x)
    half = np.where(away > radius, np.arcsin(np.minimum(radius / np.maximum(away, 1e-6), 1)), PI)
    low, high = middle - half, middle + half
    inside = half >= PI
    wrapped = ((low < -PI) | (high > PI)) & ~inside
    lower = np.where(
        inside, -PI, np.where(low < -PI, high, np.where(high > PI, high - 2 * PI, low))
    )
    upper = np.where(inside, PI, np.where(low < -PI, low + 2 * PI, np.where(high > PI, low, high)))
    # A wrapped item spans less than half a turn through pi, so its limits lie further apart.
    upper = np.where(wrapped & (upper - lower <= PI), lower + PI + 1e-6, upper)
    distance = np.array([np.maximum(away - radius, 0), away + radius])
    return windows(grid, np.array([lower, upper]), np.array([z - rise, z + rise]), distance)


def pairs(found: Windows, width: int) -> tuple[np.ndarray, np.ndarray]:
    """Every (item, ray) of the windows; a ray's number is beam * width + azimuth."""
    rows = found.row[1] - found.row[0]
    item = np.repeat(np.arange(len(rows)), rows)
    ends = np.cumsum(rows)
    beam = np.arange(len(item)) - np.repeat(ends - rows, rows) + found.row[0][item]
    columns = (found.column[1] - found.column[0])[item]
    base = beam * width + found.column[0][item]
    ends = np.cumsum(columns)
    ray = np.arange(ends[-1] if len(ends) else 0) + np.repeat(base - (ends - columns), columns)
    return np.repeat(found.item[item], columns), ray
