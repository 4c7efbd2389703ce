"""The directions in which a sensor fires."""

from functools import cache
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from data.simulator.sensors import Sensor
from data.simulator.windows import Grid


class Block(NamedTuple):
    """Neighbouring beams whose lasers are equally high."""

    beams: slice
    height: float  # above the origin of the points, metres
    grid: Grid


class Rays(NamedTuple):
    """One turn of a sensor: B beams, A azimuths."""

    directions: np.ndarray  # [3, B, A] float32 unit vectors, beams and azimuths rising
    heights: np.ndarray  # [B] float32 of the lasers above the origin of the points, metres
    blocks: tuple[Block, ...]
    blocked: np.ndarray  # [B, A] bool: rays that meet the roof of the sensor's own car


@cache
def sensor_rays(sensor: Sensor, degrees: float = 360.0) -> Rays:
    """The rays of a turn, or of the middle `degrees` of the sensor's field of view."""
    elevations, azimuths = np.radians(sensor.elevations), sensor.azimuths(degrees)
    heights = np.array(sensor.laser_heights)
    edges = np.flatnonzero(np.diff(heights)) + 1
    blocks = tuple(
        Block(slice(*ends), float(heights[ends[0]]), Grid.of(elevations[slice(*ends)], azimuths))
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
