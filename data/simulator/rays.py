"""The rays of a sensor, and the first hits."""

from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from millisecond.data.simulator.sensors import Sensor

MISS = np.float32(np.inf)
GROUND = -1  # owner of a ray that ends on the ground
ROSETTE = 120  # turns of the first prism in a scan


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


class Grid(NamedTuple):
    """Rays of every elevation with every azimuth, both ascending.

    Slopes are for a tilted sensor: the world is sheared until the sensor stands upright. z is
    higher by slopes[0] * x + slopes[1] * y.
    """

    azimuths: np.ndarray  # [A] float64 radians
    tangents: np.ndarray  # [B] float64 of the elevations
    directions: np.ndarray  # [3, B * A] float32 unit vectors, all azimuths of a beam together
    slopes: tuple[float, float] = (0.0, 0.0)

    @classmethod
    def of(
        cls, elevations: np.ndarray, azimuths: np.ndarray, slopes: tuple[float, float] = (0.0, 0.0)
    ) -> "Grid":
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
            slopes,
        )

    @property
    def level(self) -> np.ndarray:
        """[3, B * A] float32 the rays in the upright world; not of unit length if tilted."""
        if not any(self.slopes):
            return self.directions
        x, y, z = self.directions
        a, b = np.array(self.slopes, np.float32)
        return np.stack([x, y, z - a * x - b * y])

    @property
    def shape(self) -> tuple[int, int]:
        """(beams, azimuths)."""
        return len(self.tangents), len(self.azimuths)


class BeamBlock(NamedTuple):
    """Neighbouring beams whose lasers are equally high."""

    beams: slice
    height: float  # above the origin of the points, metres
    grid: Grid


class Rays(NamedTuple):
    """One turn of a sensor: B beams, A azimuths."""

    directions: np.ndarray  # [3, B, A] float32, see `Grid.level`; azimuths rise, beams in a block
    heights: np.ndarray  # [B] float32 of the lasers above the origin of the points, metres
    blocks: tuple[BeamBlock, ...]
    blocked: np.ndarray  # [B, A] bool: rays that meet the own car's roof, or are never sent


@lru_cache(maxsize=8)
def sensor_rays(sensor: Sensor, degrees: float = 360.0) -> Rays:
    """The rays of a turn, or of the middle `degrees` of the sensor's field of view."""
    elevations, azimuths = np.radians(sensor.elevations), sensor.azimuths(degrees)
    heights, slopes = np.array(sensor.laser_heights), sensor.slopes
    edges = np.flatnonzero(np.diff(heights)) + 1
    parts = [slice(*ends) for ends in pairwise([0, *edges.tolist(), len(heights)])]
    blocks = tuple(
        BeamBlock(part, float(heights[part.start]), Grid.of(elevations[part], azimuths, slopes))
        for part in parts
    )
    grids = [block.grid.level.reshape(3, -1, len(azimuths)) for block in blocks]
    directions = np.concatenate(grids, axis=1)
    blocked = _own_car(sensor, directions)
    if sensor.rosette:
        blocked |= ~_rosette(*blocked.shape)
    return Rays(directions, heights.astype(np.float32), blocks, blocked)


def _rosette(beams: int, columns: int) -> np.ndarray:
    """The rays [B, A] bool near the path of two turning prisms: dense in the middle, round."""
    turns = np.linspace(0, 2 * np.pi * ROSETTE, beams * columns // 4)
    across, up = np.cos(turns) + np.cos(-2.618 * turns), np.sin(turns) + np.sin(-2.618 * turns)
    seen = np.zeros((beams, columns), bool)
    row, column = ((2 + way) / 4 * n for way, n in ((up, beams), (across, columns)))
    seen[row.astype(int).clip(0, beams - 1), column.astype(int).clip(0, columns - 1)] = True
    return seen


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
