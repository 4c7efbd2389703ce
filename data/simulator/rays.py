"""The rays of a sensor, the window of rays that can hit an item, and the first hits."""

from functools import cache
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from millisecond.data.simulator.sensors import Sensor

MISS = np.float32(np.inf)
GROUND = -1  # owner of a ray that ends on the ground


class FirstHits(NamedTuple):
    """The first surface of a kind along each of R rays."""

    depth: np.ndarray  # [R] float32 metres, `MISS` where there is none
    owner: np.ndarray  # [R] int32: index of the thing, `GROUND` for the ground
    material: np.ndarray  # [R] int64, `Material`
    cosine: np.ndarray  # [R] float32, of the angle of incidence; 1 in a volume

    @classmethod
    def empty(cls, count: int) -> "FirstHits":
        """Nothing along any ray."""
        return cls(
            np.full(count, MISS),
            np.full(count, GROUND, dtype=np.int32),
            np.zeros(count, dtype=np.int64),
            np.ones(count, dtype=np.float32),
        )

    def at(self, rays: slice | np.ndarray) -> "FirstHits":
        """Some rays: a view for a slice, a copy for numbers."""
        return FirstHits(*(values[rays] for values in self))

    def put(self, ray, depth, owner, material, cosine) -> None:
        """Hits [H], each written if it is not farther than the ray's hit so far; of equal ones the
        last stays."""
        nearer = depth <= self.depth[ray]
        ray, depth = ray[nearer], depth[nearer]
        np.minimum.at(self.depth, ray, depth)
        first = depth == self.depth[ray]
        ray = ray[first]
        self.owner[ray] = owner[nearer][first]
        self.material[ray] = material[nearer][first]
        self.cosine[ray] = cosine[nearer][first]


PI = np.pi
MARGIN = 1e-5  # radians and tangents; a window may be too large, never too small


class Grid(NamedTuple):
    """Rays of every elevation with every azimuth, both ascending."""

    azimuths: np.ndarray  # [A] float64 radians
    tangents: np.ndarray  # [B] float64 of the elevations
    directions: np.ndarray  # [3, B * A] float32 unit vectors, all azimuths of a beam together

    @classmethod
    def of(cls, elevations: np.ndarray, azimuths: np.ndarray) -> "Grid":
        """Rays of these elevations and azimuths, radians."""
        elevation, azimuth = np.meshgrid(
            elevations.astype(np.float64), azimuths.astype(np.float64), indexing="ij"
        )
        flat = np.cos(elevation)
        unit = np.stack([flat * np.cos(azimuth), flat * np.sin(azimuth), np.sin(elevation)])
        return cls(
            azimuths.astype(np.float64),
            np.tan(elevations.astype(np.float64)),
            unit.reshape(3, -1).astype(np.float32),
        )

    @property
    def shape(self) -> tuple[int, int]:
        """(beams, azimuths)."""
        return len(self.tangents), len(self.azimuths)


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


class BeamBlock(NamedTuple):
    """Neighbouring beams whose lasers are equally high."""

    beams: slice
    height: float  # above the origin of the points, metres
    grid: Grid


class Rays(NamedTuple):
    """One turn of a sensor: B beams, A azimuths."""

    directions: np.ndarray  # [3, B, A] float32 unit vectors, beams and azimuths rising
    heights: np.ndarray  # [B] float32 of the lasers above the origin of the points, metres
    blocks: tuple[BeamBlock, ...]
    blocked: np.ndarray  # [B, A] bool: rays that meet the roof of the sensor's own car


@cache
def sensor_rays(sensor: Sensor, degrees: float = 360.0) -> Rays:
    """The rays of a turn, or of the middle `degrees` of the sensor's field of view."""
    elevations, azimuths = np.radians(sensor.elevations), sensor.azimuths(degrees)
    heights = np.array(sensor.laser_heights)
    edges = np.flatnonzero(np.diff(heights)) + 1
    blocks = tuple(
        BeamBlock(
            slice(*ends), float(heights[ends[0]]), Grid.of(elevations[slice(*ends)], azimuths)
        )
        for ends in pairwise([0, *edges.tolist(), len(heights)])
    )
    grids = [block.grid.directions.reshape(3, -1, len(azimuths)) for block in blocks]
    directions = np.concatenate(grids, axis=1)
    return Rays(directions, heights.astype(np.float32), blocks, _own_car(sensor, directions))


def _own_car(sensor: Sensor, directions: np.ndarray) -> np.ndarray:
    """The rays [B, A] that meet the roof below the sensor."""
    if not sensor.roof:
        return np.zeros(directions.shape[1:], dtype=bool)
    front, back, side, roof = sensor.roof
    x, y, z = directions.astype(np.float64)
    drop = (np.array(sensor.laser_heights) + sensor.height - roof)[:, None]
    reached = drop / np.maximum(-z, 1e-6)
    x, y = x * reached, y * reached
    return (z < 0) & (x < front) & (x > back) & (np.abs(y) < side)
