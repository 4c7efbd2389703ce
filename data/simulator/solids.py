"""Things that a ray can hit, and their materials: closed hulls of triangles, and volumes that let
pulses in.

All builders work in the frame of the thing that they are a part of: x along the heading, y left, z
up from the ground, metres. Triangles run counter-clockwise as seen from outside. A builder only
notes its arguments: the vertices of all hulls in sight are computed together.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import cache, cached_property
from typing import NamedTuple

import numpy as np


class Material(IntEnum):
    """Every surface of a street has one of these; foliage is a volume into which pulses go."""

    PAINT = 0
    GLASS = 1
    RUBBER = 2
    METAL = 3
    CLOTH = 4
    SKIN = 5
    FOLIAGE = 6
    WOOD = 7
    ASPHALT = 8
    MARKING = 9
    GRASS = 10
    CONCRETE = 11
    SIGN = 12
    PLASTIC = 13
    INTERIOR = 14  # of a vehicle, behind its glass


Rows = list[tuple[float, ...]]


class Kind(NamedTuple):
    """Hulls of one kind have the same triangles, and their vertices are computed together."""

    # from rows and corners to [N, rings * corners, 3] float32
    vertices: Callable[[Sequence | np.ndarray, int], np.ndarray]
    rings: int
    corners: int  # of a ring
    numbers: int = 0  # of a row

    @property
    def triangles(self) -> np.ndarray:
        """[T, 3] int64 indices of the vertices of one hull."""
        return _loft_triangles(self.rings, self.corners)


class Hulls(NamedTuple):
    """Closed hulls, see `boxes`, `limbs` and `loft`."""

    kind: Kind
    rows: Sequence | np.ndarray  # N
    materials: Sequence | np.ndarray  # N, `Material`: of each hull, or [N, T] of its triangles


class Volumes(NamedTuple):
    """Boxes and ellipsoids whose inside a pulse goes into before something returns it."""

    centre: np.ndarray  # [M, 3]
    half: np.ndarray  # [M, 3] half extents, semi-axes of an ellipsoid
    rounded: np.ndarray  # [M] bool: an ellipsoid
    path: np.ndarray  # [M] mean of the exponentially distributed way inside, metres
    material: np.ndarray  # [M] int64, `Material`


class Solids(NamedTuple):
    """All hulls and volumes of a thing."""

    hulls: tuple[Hulls, ...]
    volumes: Volumes


NO_VOLUMES = Volumes(
    np.zeros((0, 3)), np.zeros((0, 3)), np.zeros(0, bool), np.zeros(0), np.zeros(0, np.int64)
)


def solids(*hulls: Hulls, volumes: Volumes = NO_VOLUMES) -> Solids:
    """Hulls, and volumes."""
    return Solids(tuple(part for part in hulls if len(part.rows)), volumes)


def joined(*parts: Solids) -> Solids:
    """One thing of several."""
    inside = zip(*(part.volumes for part in parts), strict=True)
    hulls = tuple(hull for part in parts for hull in part.hulls)
    return Solids(hulls, Volumes(*map(np.concatenate, inside)))


def boxes(rows: Sequence[tuple], material: Material | Sequence[Material]) -> Hulls:
    """Upright boxes, each (x_min, x_max, y_min, y_max, z_min, z_max), metres."""
    return Hulls(Kind(_box_vertices, 2, 4), rows, _each(material, len(rows)))


def limbs(rows: Sequence[tuple], material: Material, sides: int = 6) -> Hulls:
    """Tapered rods, each (x, y, z of its start, x, y, z of its end, radius there, radius here).

    A radius is one number, equal all around. Or a row has the radii across at the start and at the
    end, then the radii deep there. 'Across' is the direction nearest to y. A limb that bends has
    more rings: x, y, z of each, all radii across, all radii deep.
    """
    numbers = len(rows[0])
    kind = Kind(_rod_vertices, max(numbers // 5, 2), sides, numbers)
    return Hulls(kind, rows, _each(material, len(rows)))


def tube(*rings: tuple[float, ...]) -> tuple[float, ...]:
    """A row of `limbs` through rings (x, y, z, radius across, radius deep)."""
    x, y, z, across, deep = zip(*rings, strict=True)
    places = [value for place in zip(x, y, z, strict=True) for value in place]
    return (*places, *across, *deep)


def loft(rings: np.ndarray, material: np.ndarray) -> Hulls:
    """Surfaces spanned over closed rings, the first and the last ring closed by a flat fan.

    rings: [N, S, K, 3]: N hulls of S rings of K corners, counter-clockwise as seen from the side of
    the last ring. material: [N, T] of the triangles, quad after quad and ring after ring, then both
    caps.
    """
    return Hulls(Kind(_loft_vertices, *rings.shape[1:3]), rings, material)


def _each(material: Material | Sequence[Material], count: int) -> Sequence[int]:
    return [int(material)] * count if isinstance(material, Material) else material


# Columns of (x_min, x_max, y_min, y_max, z_min, z_max) at the corners: ring below, ring above.
_BOX_CORNERS = np.array([[x, y, z] for z in (4, 5) for x, y in ((0, 2), (1, 2), (1, 3), (0, 3))])


def _box_vertices(rows: Sequence | np.ndarray, _: int) -> np.ndarray:
    return np.array(rows, dtype=np.float32)[:, _BOX_CORNERS]


def _loft_vertices(rows: Sequence | np.ndarray, _: int) -> np.ndarray:
    return np.array(rows, dtype=np.float32).reshape(len(rows), -1, 3)


def _rod_vertices(rows: Sequence | np.ndarray, sides: int) -> np.ndarray:
    values = np.array(rows, dtype=np.float64).T  # [8 or 5 R, N] for R rings
    count = max(len(values) // 5, 2)
    places, radii = values[: 3 * count].reshape(count, 3, -1), values[3 * count :, :, None]
    x, y, z = _unit(*(places[1:] - places[:-1]).swapaxes(0, 1))
    if count > 2:  # a ring between two parts lies in the plane that halves their angle
        halves = _unit(*(way[1:] + way[:-1] for way in (x, y, z)))
        ends = zip((x, y, z), halves, strict=True)
        x, y, z = (np.concatenate([way[:1], half, way[-1:]]) for way, half in ends)
    # u is the axis of x or y made square to the rod, w is square to both
    by_x = (np.abs(y) > 0.9).any(axis=0)
    by_y, main = ~by_x, np.where(by_x, x, y)
    size = np.sqrt(1 - main * main)
    u = (by_x - main * x) / size, (by_y - main * y) / size, -main * z / size
    w = -z * by_y / size, z * by_x / size, (x * by_y - y * by_x) / size
    cos, sin = _circle(sides)
    right, up = radii[:count] * cos, radii[-count:] * sin  # [R or 1, N, sides]
    rings = np.empty((places.shape[2], count, sides, 3), np.float32)
    for axis, (a, b) in enumerate(zip(u, w, strict=True)):
        ring = places[:, axis, :, None] + right * a[..., None] + up * b[..., None]
        rings[..., axis] = ring.swapaxes(0, 1)
    return rings.reshape(-1, count * sides, 3)


def _unit(x: np.ndarray, y: np.ndarray, z: np.ndarray) -> tuple[np.ndarray, ...]:
    length = np.sqrt(x * x + y * y + z * z)
    return x / length, y / length, z / length


@cache
def _circle(sides: int) -> tuple[np.ndarray, np.ndarray]:
    angle = 2 * np.pi * (np.arange(sides) + 0.5) / sides
    return np.cos(angle), np.sin(angle)


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


Extent = tuple[float, float, float, float, float, float]  # x, y, z, x, y, z: lowest, highest


@dataclass(eq=False)  # not frozen: a frozen one would take four times as long to make
class Thing:
    """A thing in its own frame: x along the heading, y left, z up from the ground below the origin.

    Its solids are made when something needs them: most things of a street are never in sight.
    """

    make: Callable[[], Solids]
    extent: Extent  # no solid reaches out of it
    kind: str | None = None  # KITTI type, None for scenery
    box: Extent | None = None  # as an annotator draws it; None without a label
    # metres that annotators leave out of its tail, nose or side where the sensor never sees these
    unseen: tuple[float, float, float] = (0.0, 0.0, 0.0)
    stem: tuple[float, float] | None = None  # length, width at the ground, metres
    # things that stand with it: each with its x, y and heading in the frame of this one
    company: tuple[tuple["Thing", float, float, float], ...] = ()

    @cached_property
    def solids(self) -> Solids:
        """Made once."""
        return self.make()

    @property
    def foot(self) -> tuple[float, float, float, float]:
        """Its area on the ground: x_min, y_min, x_max, y_max."""
        if self.stem is not None:
            x, y = self.stem[0] / 2, self.stem[1] / 2
            return -x, -y, x, y
        return self.extent[0], self.extent[1], self.extent[3], self.extent[4]

    def label_bounds(self) -> np.ndarray:
        """The box of the label of a thing in full sight, [2, 3]: lowest and highest corner,
        metres."""
        return np.array(self.box if self.box is not None else self.extent).reshape(2, 3)


def upright(length: float, width: float, height: float, bottom: float = 0.0) -> Extent:
    """A box of this size around the origin."""
    return (-length / 2, -width / 2, bottom, length / 2, width / 2, bottom + height)
