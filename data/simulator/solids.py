"""What a ray can hit: closed meshes of triangles, and volumes that let pulses in.

All builders work in the frame of the thing that they are a part of: x along the heading, y left, z
up from the ground, metres. Triangles run counter-clockwise as seen from outside.
"""

from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

import numpy as np

from data.simulator.materials import Material

Rows = list[tuple[float, ...]]


class Mesh(NamedTuple):
    """Closed surfaces."""

    vertices: np.ndarray  # [V, 3] float32
    triangles: np.ndarray  # [T, 3] int64 indices of vertices
    material: np.ndarray  # [T] int64, `Material`


class Volumes(NamedTuple):
    """Boxes and ellipsoids whose inside a pulse goes into before something returns it."""

    centre: np.ndarray  # [M, 3]
    half: np.ndarray  # [M, 3] half extents, semi-axes of an ellipsoid
    rounded: np.ndarray  # [M] bool: an ellipsoid
    path: np.ndarray  # [M] mean of the exponentially distributed way inside, metres
    material: np.ndarray  # [M] int64, `Material`


class Solids(NamedTuple):
    """All that a thing is made of."""

    mesh: Mesh
    volumes: Volumes

    def bounds(self) -> np.ndarray:
        """The axis-aligned extent, [2, 3]: lowest and highest corner."""
        low = [self.mesh.vertices, self.volumes.centre - self.volumes.half]
        high = [self.mesh.vertices, self.volumes.centre + self.volumes.half]
        return np.array([np.concatenate(low).min(0), np.concatenate(high).max(0)])


NO_MESH = Mesh(np.zeros((0, 3), np.float32), np.zeros((0, 3), np.int64), np.zeros(0, np.int64))
NO_VOLUMES = Volumes(
    np.zeros((0, 3)), np.zeros((0, 3)), np.zeros(0, bool), np.zeros(0), np.zeros(0, np.int64)
)


def solids(*meshes: Mesh, volumes: Volumes = NO_VOLUMES) -> Solids:
    """Meshes joined, and volumes."""
    return Solids(join(meshes) if meshes else NO_MESH, volumes)


def join(meshes: Sequence[Mesh]) -> Mesh:
    """One mesh of several."""
    if len(meshes) == 1:
        return meshes[0]
    starts = np.cumsum([0] + [len(mesh.vertices) for mesh in meshes[:-1]]).tolist()
    return Mesh(
        np.concatenate([mesh.vertices for mesh in meshes]),
        np.concatenate([m.triangles + start for m, start in zip(meshes, starts, strict=True)]),
        np.concatenate([mesh.material for mesh in meshes]),
    )


def boxes(rows: Sequence[tuple], material: Material | Sequence[Material]) -> Mesh:
    """Upright boxes, each (x_min, x_max, y_min, y_max, z_min, z_max), metres."""
    extents = np.array(rows, dtype=np.float32)
    corners = extents[:, _BOX_CORNERS].reshape(-1, 2, 4, 3)
    return loft(corners, material)


# Columns of (x_min, x_max, y_min, y_max, z_min, z_max) at the corners: ring below, ring above.
_BOX_CORNERS = np.array(
    [[[0, 2, z], [1, 2, z], [1, 3, z], [0, 3, z]] for z in (4, 5)], dtype=np.int64
)


def limbs(rows: Sequence[tuple], material, sides: int = 6) -> Mesh:
    """Tapered rods, each (x, y, z of its start, x, y, z of its end, radius there, radius here).

    A radius is a number, the same for all around, or a row has four: across at the start, across
    at the end, deep at the start, deep at the end; 'across' is the direction nearest to y.
    """
    values = np.array(rows, dtype=np.float64)
    start, end = values[:, 0:3], values[:, 3:6]
    radii = values[:, 6:]
    across = radii[:, 0:2]
    deep = radii[:, 2:4] if radii.shape[1] == 4 else across
    axis = end - start
    axis = axis / np.sqrt((axis * axis).sum(1, keepdims=True))
    along_y = np.abs(axis[:, 1:2]) > 0.9
    near = np.where(along_y, (1.0, 0.0, 0.0), (0.0, 1.0, 0.0))
    u = near - (near * axis).sum(1, keepdims=True) * axis
    u = u / np.sqrt((u * u).sum(1, keepdims=True))
    w = np.cross(axis, u)
    cos, sin = _circle(sides)
    ends = np.stack([start, end], axis=1)[:, :, None]
    ring = (across[:, :, None] * cos)[..., None] * u[:, None, None]
    ring = ring + (deep[:, :, None] * sin)[..., None] * w[:, None, None]
    return loft((ends + ring).astype(np.float32), material)


@cache
def _circle(sides: int) -> tuple[np.ndarray, np.ndarray]:
    angle = 2 * np.pi * (np.arange(sides) + 0.5) / sides
    return np.cos(angle), np.sin(angle)


def loft(rings: np.ndarray, material) -> Mesh:
    """Surfaces spanned over closed rings, the first and the last ring closed by a flat fan.

    Args:
        rings: [N, S, K, 3]: N hulls of S rings of K corners, counter-clockwise as seen from the
            side of the last ring.
        material: one for all, one per hull, or one per triangle [N, T].
    """
    count, sections, corners = rings.shape[:3]
    one = _loft_triangles(sections, corners)
    starts = np.arange(count)[:, None, None] * (sections * corners)
    of = np.asarray(material, dtype=np.int64)
    of = of[:, None] if of.ndim == 1 else of
    return Mesh(
        np.ascontiguousarray(rings, dtype=np.float32).reshape(-1, 3),
        (one + starts).reshape(-1, 3),
        np.broadcast_to(of, (count, len(one))).reshape(-1),
    )


@cache
def _loft_triangles(sections: int, corners: int) -> np.ndarray:
    """[T, 3]: two triangles per quad, quad after quad and ring after ring, then both caps."""
    triangles = []
    for s in range(sections - 1):
        for k in range(corners):
            a, b = s * corners + k, s * corners + (k + 1) % corners
            triangles += [(a, b, b + corners), (a, b + corners, a + corners)]
    last = (sections - 1) * corners
    for k in range(1, corners - 1):
        triangles += [(0, k + 1, k), (last, last + k, last + k + 1)]
    return np.array(triangles, dtype=np.int64)


def volumes(rows: Sequence[tuple], rounded: bool, path, material=Material.FOLIAGE) -> Volumes:
    """Volumes of one kind, each (x, y, z of the centre, half extent in x, y, z), metres."""
    values = np.array(rows, dtype=np.float64)
    count = len(values)
    return Volumes(
        values[:, :3],
        values[:, 3:],
        np.full(count, rounded),
        np.broadcast_to(np.asarray(path, dtype=np.float64), count),
        np.full(count, int(material)),
    )


def join_volumes(parts: Sequence[Volumes]) -> Volumes:
    """One set of volumes of several."""
    return Volumes(*(np.concatenate(column) for column in zip(*parts, strict=True)))
