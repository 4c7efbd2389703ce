"""What the rays of a sensor hit first: every surface of a street in one pass.

A triangle is looked for only in the window of beams and azimuths that can see it. All rays start in
the sensor, so a ray d is inside the triangle (a, b, c) where d . (a x b), d . (b x c) and
d . (c x a) have one sign, and it meets the plane at a . (b x c) / d . (a x b + b x c + c x a).
No sum runs through a library whose order of adding differs between machines.
"""

from typing import NamedTuple

import numpy as np

from data.simulator.materials import Material
from data.simulator.street import Street
from data.simulator.windows import Grid, pairs, sphere_windows, triangle_windows

MISS = np.float32(np.inf)
GROUND = -1  # owner of a ray that ends on the ground
CHUNK = 1 << 16  # pairs of item and ray at once, so that they stay in the cache


class Layer(NamedTuple):
    """The first surface of a kind along each of R rays."""

    depth: np.ndarray  # [R] float32 metres, `MISS` where there is none
    owner: np.ndarray  # [R] int32: index of the thing, `GROUND` for the ground
    material: np.ndarray  # [R] int64, `Material`
    cosine: np.ndarray  # [R] float32, of the angle of incidence; 1 in a volume

    @classmethod
    def empty(cls, count: int) -> "Layer":
        """Nothing along any ray."""
        return cls(
            np.full(count, MISS),
            np.full(count, GROUND, dtype=np.int32),
            np.zeros(count, dtype=np.int64),
            np.ones(count, dtype=np.float32),
        )

    def put(self, ray, depth, owner, material, cosine) -> None:
        """Hits [H], each where it is nearer than what its ray has."""
        nearer = depth < self.depth[ray]
        ray, depth = ray[nearer], depth[nearer]
        np.minimum.at(self.depth, ray, depth)
        first = depth == self.depth[ray]
        ray = ray[first]
        self.owner[ray] = owner[nearer][first]
        self.material[ray] = material[nearer][first]
        self.cosine[ray] = cosine[nearer][first]


class Hits(NamedTuple):
    """What R rays meet; a pulse that goes through glass meets what lies behind it."""

    solid: Layer  # the first surface that is not glass
    glass: Layer  # the first glass in front of that
    reachable: np.ndarray  # [T] rays that would hit the thing if it stood alone


def cast(street: Street, time: float, grid: Grid, reach: float, rng: np.random.Generator) -> Hits:
    """What every ray meets within `reach` metres at `time` seconds.

    rng draws how far a pulse goes into each volume.
    """
    count = grid.directions.shape[1]
    solid, glass = Layer.empty(count), Layer.empty(count)
    depth, material, cosine = street.ground.cast(street.ego_speed * time, grid.directions, reach)
    solid.depth[:], solid.material[:], solid.cosine[:] = depth, material, cosine
    touched = np.zeros((len(street.placed), count), dtype=bool)
    seen = _in_sight(street, time, grid, reach)
    if len(seen.thing):
        _cast_meshes(street, seen, grid, (solid, glass), touched)
        _cast_volumes(street, seen, grid, solid, touched, rng)
    solid.depth[solid.depth > reach] = MISS
    behind = (glass.depth >= solid.depth) | (glass.depth > reach)
    glass.depth[behind] = MISS
    glass.owner[behind] = GROUND
    return Hits(solid, glass, np.count_nonzero(touched, axis=1))


class _InSight(NamedTuple):
    """Things that a sensor may see, and where they are."""

    thing: np.ndarray  # [S] its index
    pose: np.ndarray  # [S, 4] x, y, z of the ground, yaw


def _in_sight(street: Street, time: float, grid: Grid, reach: float) -> _InSight:
    """The things whose surrounding cylinder has a ray."""
    if not street.placed:
        return _InSight(np.zeros(0, np.int64), np.zeros((0, 4)))
    pose = street.poses(time)
    low, high = street.extents[:, :3], street.extents[:, 3:]
    radius = np.hypot(np.maximum(-low[:, 0], high[:, 0]), np.maximum(-low[:, 1], high[:, 1]))
    middle, rise = (low[:, 2] + high[:, 2]) / 2, (high[:, 2] - low[:, 2]) / 2
    centre = np.array([pose[:, 0], pose[:, 1], pose[:, 2] + middle])
    index = np.unique(sphere_windows(grid, centre, radius, rise).item)
    index = index[np.hypot(*centre[:2, index]) - radius[index] < reach]
    return _InSight(index, pose[index])


def _cast_meshes(street: Street, seen: _InSight, grid: Grid, layers, touched: np.ndarray) -> None:
    meshes = [street.placed[i].thing.solids.mesh for i in seen.thing.tolist()]
    sizes = [len(mesh.vertices) for mesh in meshes]
    vertices = _to_sensor(
        np.concatenate([mesh.vertices for mesh in meshes]), seen.pose.repeat(sizes, axis=0)
    )
    starts = np.cumsum([0, *sizes[:-1]])
    count = [len(mesh.triangles) for mesh in meshes]
    triangles = np.concatenate([mesh.triangles for mesh in meshes]) + starts.repeat(count)[:, None]
    a, b, c = corners = vertices[:, triangles.T].transpose(1, 0, 2)  # [corner, coordinate, T]
    edges = np.stack([_cross(a, b), _cross(b, c), _cross(c, a)])  # [3, 3, T]
    volume = _dot(a, edges[1])
    facing = volume < 0
    found = triangle_windows(grid, corners[..., facing])
    edges, volume = edges[..., facing], volume[facing]
    normal = edges[0] + edges[1] + edges[2]
    length = np.sqrt(_dot(normal, normal))
    owner = seen.thing.repeat(count)[facing].astype(np.int32)
    material = np.concatenate([mesh.material for mesh in meshes])[facing]
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
        depth, cosine = volume[i] / total, -total / np.maximum(length[i], 1e-12)
        touched[owner[i], r] = True
        pane = material[i] == Material.GLASS
        for layer, mine in zip(layers, (~pane, pane), strict=True):
            j = i[mine]
            layer.put(r[mine], depth[mine], owner[j], material[j], cosine[mine])


def _cast_volumes(street, seen: _InSight, grid: Grid, solid: Layer, touched, rng) -> None:
    parts = [street.placed[i].thing.solids.volumes for i in seen.thing.tolist()]
    count = [len(part.path) for part in parts]
    if not sum(count):
        return
    pose = seen.pose.repeat(count, axis=0)
    owner = seen.thing.repeat(count).astype(np.int32)
    local, half, rounded, path, material = (
        np.concatenate(column) for column in zip(*parts, strict=True)
    )
    centre = _to_sensor(local, pose)
    radius = np.where(rounded, half[:, :2].max(1), np.hypot(half[:, 0], half[:, 1]))
    found = sphere_windows(grid, centre, radius, half[:, 2])
    item, ray = pairs(found, grid.shape[1])
    cos, sin = np.cos(pose[:, 3]), np.sin(pose[:, 3])
    # Rotated into its own frame and divided by the half extents, a volume is a unit ball or cube.
    into = np.array([cos / half[:, 0], sin / half[:, 0], -sin / half[:, 1], cos / half[:, 1]])
    into = np.vstack([into, 1 / half[:, 2]]).astype(np.float32)
    x, y, z = (-centre).astype(np.float32)
    at = np.array([into[0] * x + into[1] * y, into[2] * x + into[3] * y, into[4] * z])
    for start in range(0, len(item), CHUNK):
        i, r = item[start : start + CHUNK], ray[start : start + CHUNK]
        d = grid.directions[:, r]
        m, o, round_ = into[:, i], at[:, i], rounded[i]
        d = np.array([m[0] * d[0] + m[1] * d[1], m[2] * d[0] + m[3] * d[1], m[4] * d[2]])
        near, far = _ball(o, d)
        square = ~round_
        if square.any():
            near[square], far[square] = _cube(o[:, square], d[:, square])
        hit = (near < far) & (far > 0)
        i, r, near, far = i[hit], r[hit], np.maximum(near[hit], 0), far[hit]
        depth = near + rng.standard_exponential(len(i), np.float32) * path[i].astype(np.float32)
        kept = depth < far
        i, r, depth = i[kept], r[kept], depth[kept]
        touched[owner[i], r] = True
        solid.put(r, depth, owner[i], material[i], np.ones(len(i), np.float32))


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


def _to_sensor(points: np.ndarray, pose: np.ndarray) -> np.ndarray:
    """Points [N, 3] of things at poses [N, 4] as float32 [3, N] of the sensor's frame."""
    cos, sin = np.cos(pose[:, 3]), np.sin(pose[:, 3])
    x, y, z = points.T
    x, y = cos * x - sin * y + pose[:, 0], sin * x + cos * y + pose[:, 1]
    return np.array([x, y, z + pose[:, 2]], dtype=np.float32)


def _cross(u: np.ndarray, v: np.ndarray) -> np.ndarray:
    return np.array(
        [u[1] * v[2] - u[2] * v[1], u[2] * v[0] - u[0] * v[2], u[0] * v[1] - u[1] * v[0]]
    )


def _dot(u: np.ndarray, v: np.ndarray) -> np.ndarray:
    return u[0] * v[0] + u[1] * v[1] + u[2] * v[2]
