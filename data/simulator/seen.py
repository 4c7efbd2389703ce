"""The things of a street that a sensor may see, and what they are made of."""

from typing import NamedTuple

import numpy as np

from data.simulator.street import Street
from data.simulator.windows import Grid, sphere_windows


class Seen(NamedTuple):
    """S things and where they are."""

    thing: np.ndarray  # [S] int32: its index
    pose: np.ndarray  # [S, 5] x, y, z of the ground, cosine and sine of the yaw, sensor frame


class SeenMeshes(NamedTuple):
    """The surfaces of S things, each in its own frame: V vertices, T triangles."""

    vertices: np.ndarray  # [V, 3] float32
    corners: np.ndarray  # [T, 3] int64 numbers of the thing's own vertices
    material: np.ndarray  # [T] int64
    vertex_ends: np.ndarray  # [S] int64
    triangle_ends: np.ndarray  # [S] int64
    pose: np.ndarray  # [S, 5] float64
    owner: np.ndarray  # [S] int32


class SeenVolumes(NamedTuple):
    """M volumes of things."""

    centre: np.ndarray  # [3, M] float32, sensor frame
    half: np.ndarray  # [M, 3] float64
    turn: np.ndarray  # [M, 2] float64 cosine and sine of the yaw
    rounded: np.ndarray  # [M] bool
    part: np.ndarray  # [M] which of the things in sight
    path: np.ndarray  # [M] float32
    material: np.ndarray  # [M] int64

    @property
    def radius(self) -> np.ndarray:
        """[M] of upright cylinders around them."""
        half = self.half
        return np.where(self.rounded, half[:, :2].max(1), np.hypot(half[:, 0], half[:, 1]))


def in_sight(street: Street, time: float, grid: Grid, reach: float) -> Seen:
    """The things whose surrounding cylinder has a ray."""
    if not street.placed:
        return Seen(np.zeros(0, np.int32), np.zeros((0, 5)))
    pose = street.poses(time)
    low, high = street.extents[:, :3], street.extents[:, 3:]
    radius = np.hypot(np.maximum(-low[:, 0], high[:, 0]), np.maximum(-low[:, 1], high[:, 1]))
    middle, rise = (low[:, 2] + high[:, 2]) / 2, (high[:, 2] - low[:, 2]) / 2
    centre = np.array([pose[:, 0], pose[:, 1], pose[:, 2] + middle])
    index = np.unique(sphere_windows(grid, centre, radius, rise).item)
    index = index[np.hypot(*centre[:2, index]) - radius[index] < reach]
    x, y, z, yaw = pose[index].T
    return Seen(index.astype(np.int32), np.stack([x, y, z, np.cos(yaw), np.sin(yaw)], axis=1))


def meshes_of(street: Street, seen: Seen) -> SeenMeshes:
    """All surfaces of the things in sight."""
    parts = [street.placed[i].thing.solids.mesh for i in seen.thing.tolist()]
    return SeenMeshes(
        np.concatenate([mesh.vertices for mesh in parts]),
        np.concatenate([mesh.triangles for mesh in parts]),
        np.concatenate([mesh.material for mesh in parts]),
        np.cumsum([len(mesh.vertices) for mesh in parts]),
        np.cumsum([len(mesh.triangles) for mesh in parts]),
        *(seen.pose, seen.thing),
    )


def volumes_of(street: Street, seen: Seen) -> SeenVolumes | None:
    """All volumes of the things in sight; None where there is none."""
    parts = [street.placed[i].thing.solids.volumes for i in seen.thing.tolist()]
    count = [len(part.path) for part in parts]
    if not sum(count):
        return None
    part = np.arange(len(parts)).repeat(count)
    local, half, rounded, path, material = (
        np.concatenate(column) for column in zip(*parts, strict=True)
    )
    x, y, z = local.T
    at_x, at_y, at_z, cos, sin = seen.pose[part].T
    centre = np.array([cos * x - sin * y + at_x, sin * x + cos * y + at_y, z + at_z], np.float32)
    turn = np.stack([cos, sin], axis=1)
    return SeenVolumes(centre, half, turn, rounded, part, path.astype(np.float32), material)
