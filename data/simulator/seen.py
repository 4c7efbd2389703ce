"""The things of a street that a sensor may see, and their surfaces and volumes."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from millisecond.data.simulator.rays import Grid
from millisecond.data.simulator.solids import Kind, Thing
from millisecond.data.simulator.street import Street

# from cylinders (grid, centre [3, M], radius [M], half the height [M]) to the numbers of cylinders
# with a ray
Cylinders = Callable[[Grid, np.ndarray, np.ndarray, np.ndarray], np.ndarray]


class Surfaces(NamedTuple):
    """The surfaces of S things: H closed hulls, each in the frame of its thing.

    A row of `hulls` is: thing, first vertex, vertices, first triangle, triangles, first material,
    materials per triangle (0 where the hull has one, 1 where each of its triangles has one).
    """

    vertices: np.ndarray  # [V, 3] float32
    corners: np.ndarray  # [T, 3] int64 numbers of the hull's own vertices; hulls of a kind share
    material: np.ndarray  # [M] int64
    hulls: np.ndarray  # [H, 7] int64


class SeenVolumes(NamedTuple):
    """M volumes of things, in the frames of these or in the sensor's."""

    centre: np.ndarray  # [3, M]; float32 in the sensor's frame
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

    def placed(self, pose: np.ndarray) -> "SeenVolumes":
        """In the sensor's frame, of things at pose [S, 7], see `plain_casting.cast_meshes`. In a
        sheared world volumes stand where they belong, but are not sheared."""
        x, y, z = self.centre
        at_x, at_y, at_z, cos, sin, ahead, left = pose[self.part].T
        z = z + at_z + ahead * x + left * y
        centre = [cos * x - sin * y + at_x, sin * x + cos * y + at_y, z]
        turn = np.stack([cos, sin], axis=1)
        return self._replace(centre=np.array(centre, np.float32), turn=turn)


def in_sight(
    street: Street, poses: np.ndarray, grid: Grid, reach: float, cylinders: Cylinders
) -> np.ndarray:
    """The numbers of the things whose surrounding cylinder has a ray, by plain or fast casting.

    poses: [T, 4], see `Street.poses`.
    """
    low, high = street.extents[:, :3], street.extents[:, 3:]
    radius = np.hypot(np.maximum(-low[:, 0], high[:, 0]), np.maximum(-low[:, 1], high[:, 1]))
    middle, rise = (low[:, 2] + high[:, 2]) / 2, (high[:, 2] - low[:, 2]) / 2
    centre = np.array([poses[:, 0], poses[:, 1], poses[:, 2] + middle])
    rise = rise + radius * np.hypot(*grid.slopes)
    index = cylinders(grid, centre, radius, rise)
    return index[np.hypot(*centre[:2, index]) - radius[index] < reach]


def surfaces_of(things: Sequence[Thing]) -> Surfaces:
    """All surfaces of the things in sight."""
    kinds: dict[Kind, tuple[list, list, list[int]]] = {}
    for number, thing in enumerate(things):
        for hulls in thing.solids.hulls:
            rows, materials, owners = kinds.setdefault(hulls.kind, ([], [], []))
            rows.extend(hulls.rows)
            materials.extend(hulls.materials)
            owners.extend([number] * len(hulls.rows))
    nothing = Surfaces(
        np.zeros((0, 3), np.float32),
        np.zeros((0, 3), np.int64),
        np.zeros(0, np.int64),
        np.zeros((0, 7), np.int64),
    )
    parts, at = [nothing], (0, 0, 0)  # vertices, triangles, materials so far
    for kind, columns in kinds.items():
        part = _of_kind(kind, *columns, at)
        parts.append(part)
        at = at[0] + len(part.vertices), at[1] + len(part.corners), at[2] + len(part.material)
    return Surfaces(*(np.concatenate(part) for part in zip(*parts, strict=True)))


def _of_kind(
    kind: Kind, rows: list, materials: list, things: list[int], at: tuple[int, int, int]
) -> Surfaces:
    """things: of each hull; at: how many vertices, triangles and materials come before."""
    points, triangles = kind.vertices(rows, kind.corners), kind.triangles
    material = np.array(materials, dtype=np.int64)
    count, size = points.shape[:2]
    each = material.size // count
    hulls = np.empty((count, 7), np.int64)
    hulls[:, 0] = things
    hulls[:, 1] = at[0] + size * np.arange(count)
    hulls[:, 2:5] = size, at[1], len(triangles)
    hulls[:, 5] = at[2] + each * np.arange(count)
    hulls[:, 6] = material.ndim - 1
    return Surfaces(points.reshape(-1, 3), triangles, material.reshape(-1), hulls)


def volumes_of(things: Sequence[Thing]) -> SeenVolumes | None:
    """All volumes of the things in sight, in their own frames; None where there is none."""
    every = [thing.solids.volumes for thing in things]
    count = [len(part.path) for part in every]
    if not sum(count):
        return None
    part = np.arange(len(every)).repeat(count)
    local, half, rounded, path, material = (
        np.concatenate(column) for column in zip(*(v for v in every if len(v.path)), strict=True)
    )
    turn = np.tile((1.0, 0.0), (len(part), 1))
    return SeenVolumes(local.T, half, turn, rounded, part, path.astype(np.float32), material)
