"""A scan of a street by a LiDAR: where its pulses end, and which of them come back."""

from functools import cache
from typing import NamedTuple

import numpy as np

from data.simulator.casting import GROUND, cast_blocks
from data.simulator.pulses import (
    Echoes,
    Returns,
    at_edges,
    intensity,
    noisy_range,
    returning,
    through_glass,
    tones,
)
from data.simulator.rays import Rays, sensor_rays
from data.simulator.sensors import Sensor, find_sensor
from data.simulator.street import SENSOR_HEIGHT, Street

__all__ = ["GROUND", "Scan", "as_scanned", "default_sensor", "scan"]


class Scan(NamedTuple):
    """Points and what they hit."""

    points: np.ndarray  # [P, 4] float32 (x, y, z, intensity), LiDAR frame
    owner: np.ndarray  # [P] int: index of the thing hit, GROUND for the ground
    reachable: np.ndarray  # [T] rays that would hit the thing if it stood alone
    seen: np.ndarray  # [T] rays that hit it first


@cache
def default_sensor() -> Sensor:
    """KITTI's."""
    return find_sensor("hdl-64e")


def as_scanned(street: Street, time: float, sensor: Sensor) -> Street:
    """The street in the frame of a sensor of that height and pitch, and each thing where it is when
    the turning sensor looks at it.

    A turn begins and ends behind the sensor and runs clockwise, from left to right; it looks
    straight ahead at `time`. A thing is met in one moment: its shear, of millimetres, is left out.
    """
    raised = street.tilted(sensor.pitch).raised(sensor.height - SENSOR_HEIGHT)
    if sensor.turn == 0 or not street.placed:
        return raised
    x, y, _, _ = raised.poses(time).T
    return raised.later(-np.degrees(np.arctan2(y, x)) / sensor.field_of_view * sensor.turn)


def scan(
    street: Street,
    time: float,
    rng: np.random.Generator,
    sensor: Sensor | None = None,
    degrees: float = 360.0,
) -> Scan:
    """What one turn measures at `time` seconds, noise and lost pulses included.

    Args:
        street: in the sensor's frame, see `as_scanned`.
        time: seconds.
        rng: draws all that is left to chance.
        sensor: KITTI's unless given.
        degrees: the middle of the field of view, which alone is scanned.
    """
    sensor = sensor or default_sensor()
    rays = sensor_rays(sensor, degrees)
    reach = sensor.asphalt_range * np.exp(sensor.range_spread * rng.standard_normal())
    solid, glass, reachable = _cast(street, time, rays, sensor.max_range, rng)
    count = len(street.placed)
    echoes = through_glass(solid, glass, rng)
    front = np.where(np.isfinite(glass.depth), glass.owner, solid.owner)
    seen = np.bincount(front[front >= 0], minlength=count)
    tone = tones(count, rng)
    first, second = at_edges(echoes, sensor, rng)
    offset = sensor.beam_noise * rng.standard_normal(len(rays.heights), dtype=np.float32)
    points, owner = _measure(first, rays, sensor, tone, reach, offset, rng)
    if sensor.returns == 2:
        more = _measure(second, rays, sensor, tone, reach, offset, rng)
        points, owner = np.concatenate([points, more[0]]), np.concatenate([owner, more[1]])
    return Scan(points, owner, reachable, seen)


def _measure(
    echoes: Echoes,
    rays: Rays,
    sensor: Sensor,
    tone: np.ndarray,
    reach: float,
    offset: np.ndarray,
    rng: np.random.Generator,
) -> tuple[np.ndarray, np.ndarray]:
    """Points [P, 4] of the echoes that are strong enough, beam by beam, and their owners [P].

    reach: at which half of the pulses onto a road come back, metres; offset: [B] error of the
    ranges of each beam, metres.
    """
    back = returning(echoes, sensor, tone, reach, rng)
    if rays.blocked.any():
        free = ~rays.blocked.ravel()[back.ray]
        back = Returns(*(values[free] for values in back))
    beam = back.ray // rays.directions.shape[2]
    depth = noisy_range(back.depth, sensor, rng)
    depth += offset[beam]
    points = np.zeros((len(depth), 4), dtype=np.float32)
    for axis, way in enumerate(rays.directions.reshape(3, -1)):
        points[:, axis] = way[back.ray] * depth
    points[:, 2] += rays.heights[beam]
    if sensor.intensity:
        points[:, 3] = intensity(back, echoes.depth.shape, rng)
    return points, back.owner


def _cast(
    street: Street, time: float, rays: Rays, reach: float, rng: np.random.Generator
) -> tuple[Echoes, Echoes, np.ndarray]:
    """What all rays meet: the solid surfaces, the glass before them, and reachable rays [T]."""
    width = rays.directions.shape[2]
    blocks = [(block.height, block.grid) for block in rays.blocks]
    hits = cast_blocks(street, time, blocks, reach, rng)
    solid, glass = (
        Echoes(*(values.reshape(-1, width) for values in layer))
        for layer in (hits.solid, hits.glass)
    )
    return solid, glass, hits.reachable
