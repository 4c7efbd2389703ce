"""A scan of a street by a LiDAR: where pulses end, and which pulses come back.

Rays are numbered beam by beam. Each effect on the pulses is a function of its own;
docs/sensors.md has the change that each makes against real scans.
"""

from typing import NamedTuple

import numpy as np

from millisecond.data.simulator.casting import cast
from millisecond.data.simulator.rays import FirstHits, Rays, sensor_rays
from millisecond.data.simulator.sensors import KITTI, Sensor, find_sensor
from millisecond.data.simulator.solids import Material
from millisecond.data.simulator.street import SENSOR_HEIGHT, Street

BLUR = 0.6  # spread of the logarithm of a returned pulse's power, about a factor of 1.8
EDGE = 0.15  # metres between neighbouring rays from which on a pulse that hits both has two echoes
SEPARATE = 1.0  # metres between two echoes from which on a receiver separates them
WEAKER = 30.0  # metres at which the noise of the range has grown by the root of two


class Surface(NamedTuple):
    """How a material answers pulses of 905 nm."""

    reflectivity: float  # share of the light that a white, dull surface would return
    spread: float  # of its logarithm, from thing to thing
    lost: float  # share of the pulses mirrored away, without an echo at any distance
    # exponent: the light falls with this power of the cosine of incidence. It is 1 for a dull,
    # smooth surface. A rough surface shadows itself and still sends light back to its source
    smooth: float = 1.0


# Typical values for near infrared light. Paint is dark to white: free cars on labelled scans return
# 0.8 of the pulses onto their ends up to 30 m. From 32 to 43 m some return 0.8, most 0.3; with a
# mean of 0.16 nearly all returned 0.8 there. Light passes the glass before an interior twice; 30 to
# 50 % of the pulses into rear screens of real cars come back. Shares of lost pulses are measured on
# real scans: the rays without a return inside of cars, and on the ground below 20 m (1 to 3 %).
SURFACES = {
    Material.PAINT: Surface(0.07, 1.2, 0.04),
    Material.GLASS: Surface(0.10, 0.2, 0.0),
    Material.RUBBER: Surface(0.06, 0.2, 0.05),
    Material.METAL: Surface(0.40, 0.3, 0.05),
    Material.CLOTH: Surface(0.35, 0.4, 0.01),
    Material.SKIN: Surface(0.40, 0.1, 0.01),
    Material.FOLIAGE: Surface(0.35, 0.2, 0.0),
    Material.WOOD: Surface(0.30, 0.2, 0.01),
    Material.ASPHALT: Surface(0.18, 0.0, 0.03, 0.3),
    Material.MARKING: Surface(0.60, 0.0, 0.01, 0.3),
    Material.GRASS: Surface(0.35, 0.0, 0.02, 0.3),
    Material.CONCRETE: Surface(0.35, 0.2, 0.01, 0.5),
    Material.SIGN: Surface(0.90, 0.1, 0.0),
    Material.PLASTIC: Surface(0.30, 0.3, 0.02),
    Material.INTERIOR: Surface(0.03, 0.7, 0.35),
}
_REFLECTIVITY, _SPREAD, _LOST, _SMOOTH = np.array(
    [SURFACES[material] for material in sorted(Material)], dtype=np.float32
).T


def through_glass(solid: FirstHits, glass: FirstHits, rng: np.random.Generator) -> None:
    """Writes the panes that return a pulse into `solid`: a pane mirrors, it returns a pulse that
    meets it squarely; another pulse goes on inside."""
    drawn = rng.random(len(glass.depth), np.float32)
    panes = np.flatnonzero(glass.depth < solid.depth)
    answers = 0.08 + 0.8 * np.maximum(glass.cosine[panes] - 0.9, 0) / 0.1
    panes = panes[drawn[panes] < answers]
    solid.put(panes, *glass.at(panes))


def at_edges(
    echoes: FirstHits, columns: int, sensor: Sensor, rng: np.random.Generator
) -> tuple[FirstHits, FirstHits]:
    """The first and the second echo of pulses over an edge, which hit two surfaces.

    A receiver separates two echoes that are SEPARATE metres apart; the larger share of the pulse is
    the first echo. For closer echoes it measures one range between them (a mixed pixel), without a
    second echo. A sensor with one return never has a second echo. columns: rays of a beam.
    """
    depth = echoes.depth
    second = FirstHits.empty(len(depth))
    if sensor.divergence == 0 or columns < 2:
        return echoes, second
    width = np.degrees(sensor.divergence / 1000) / sensor.azimuth_step
    # the edge lies anywhere between the two rays; the part beyond it hits the neighbour's surface
    share = 0.5 - rng.random(len(depth), np.float32) / np.float32(max(width, 1e-6))
    right = rng.random(len(depth), np.float32) < 0.5
    rays = np.flatnonzero((share > 0) & np.isfinite(depth))
    column = rays % columns
    side = np.where(right[rays], 1, -1)
    other = rays + np.clip(column + side, 0, columns - 1) - column
    gap = depth[other] - depth[rays]
    far = np.abs(gap)
    mixed = (far > EDGE) & (far < SEPARATE)
    first = depth.copy()
    first[rays[mixed]] += share[rays[mixed]] * gap[mixed]
    if sensor.returns == 2:
        apart = (far >= SEPARATE) & np.isfinite(far)
        second.put(rays[apart], *echoes.at(other[apart]))
    return echoes._replace(depth=first), second


class Returns(NamedTuple):
    """The rays whose pulse comes back strong enough, and the surfaces that they met."""

    ray: np.ndarray  # [N] numbered beam by beam
    depth: np.ndarray  # [N] float32 metres
    owner: np.ndarray  # [N] int32
    cosine: np.ndarray  # [N] float32
    reflected: np.ndarray  # [N] float32: share of the light


def returning(
    echoes: FirstHits, sensor: Sensor, tone: np.ndarray, reach: float, rng: np.random.Generator
) -> Returns:
    """The pulses that come back: by material, incidence and range.

    Half of the pulses onto a road come back from `reach` metres. Power falls with the square of the
    distance and with the cosine of the angle, see `Surface.smooth`. tone: see `scan`.
    """
    drawn = rng.random(len(echoes.depth), np.float32)
    near, far = np.float32(sensor.min_range), np.float32(sensor.max_range)
    ray = np.flatnonzero((echoes.depth >= near) & (echoes.depth <= far))
    depth, owner, material, cosine = echoes.at(ray)
    # reflectivity of each material on each thing, by the thing's own tone
    every = np.minimum(_REFLECTIVITY * np.exp(_SPREAD * tone[:, None]), 1)
    bright = every.ravel()[owner * len(_REFLECTIVITY) + material]
    road = SURFACES[Material.ASPHALT]
    least = road.reflectivity * (sensor.height / reach) ** road.smooth / reach**2
    power = bright * np.maximum(cosine, 1e-3) ** _SMOOTH[material] / (depth * depth)
    # the logistic curve is the cumulative normal one to 1 %, and cheaper; a power of float32 is not
    chance = 1 / (1 + np.exp(np.float32(1.7 / BLUR) * np.log(np.float32(least) / power)))
    chance *= 1 - _LOST[material]
    kept = drawn[ray] < chance
    return Returns(*(values[kept] for values in (ray, depth, owner, cosine, bright)))


def noisy_range(depth: np.ndarray, sensor: Sensor, rng: np.random.Generator) -> np.ndarray:
    """Measured depth [N]; far echoes are weak and measured less exactly."""
    sigma = sensor.range_noise * np.sqrt(1 + (depth / np.float32(WEAKER)) ** 2)
    return depth + sigma * rng.standard_normal(len(depth), dtype=np.float32)


def intensity(back: Returns, rays: int, rng: np.random.Generator) -> np.ndarray:
    """Intensity [N] from 0 to 1: reflectivity, less at a grazing angle, and noise.

    rays: of the scan.
    """
    noise = rng.standard_normal(rays, dtype=np.float32)[back.ray]
    return (back.reflected * (0.5 + 0.5 * back.cosine) * (1 + 0.2 * noise)).clip(0, 1)


class Scan(NamedTuple):
    """Points and the things that they hit."""

    points: np.ndarray  # [P, 4] float32 (x, y, z, intensity), LiDAR frame
    owner: np.ndarray  # [P] int: index of the thing hit, GROUND for the ground
    reachable: np.ndarray  # [T] rays that would hit the thing if it stood alone
    seen: np.ndarray  # [T] rays that hit it first


def default_sensor() -> Sensor:
    """KITTI's."""
    return find_sensor(KITTI)


def as_scanned(street: Street, time: float, sensor: Sensor) -> Street:
    """The street in the frame of a sensor of that height and pitch. Each thing has its place at the
    moment when the turning sensor looks at it.

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
    """The measurement of one turn at `time` seconds, noise and lost pulses included.

    street: in the sensor's frame, see `as_scanned`; points come in it too, upright where the sensor
    is tilted. sensor: KITTI's unless given. degrees: only this middle part of the field of view is
    scanned.
    """
    sensor = sensor or default_sensor()
    rays = sensor_rays(sensor, degrees)
    reach = sensor.asphalt_range * np.exp(sensor.range_spread * rng.standard_normal())
    blocks = [(block.height, block.grid) for block in rays.blocks]
    solid, glass, reachable = cast(street, time, blocks, sensor.max_range, rng)
    count = len(street.placed)
    front = np.where(np.isfinite(glass.depth), glass.owner, solid.owner)
    seen = np.bincount(front[front >= 0], minlength=count)
    through_glass(solid, glass, rng)
    # brightness of each thing, in spreads of its material; the last one (-1) is the ground
    tone = np.append(rng.standard_normal(count, dtype=np.float32), np.float32(0))
    first, second = at_edges(solid, rays.directions.shape[2], sensor, rng)
    offset = sensor.beam_noise * rng.standard_normal(len(rays.heights), dtype=np.float32)
    points, owner = _measure(first, rays, sensor, tone, reach, offset, rng)
    if sensor.returns == 2:
        more = _measure(second, rays, sensor, tone, reach, offset, rng)
        points, owner = np.concatenate([points, more[0]]), np.concatenate([owner, more[1]])
    return Scan(points, owner, reachable, seen)


def _measure(
    echoes: FirstHits,
    rays: Rays,
    sensor: Sensor,
    tone: np.ndarray,
    reach: float,
    offset: np.ndarray,
    rng: np.random.Generator,
) -> tuple[np.ndarray, np.ndarray]:
    """Points [P, 4] of the echoes that are strong enough, beam by beam, and their owners [P].

    reach: metres from which half of the pulses onto a road come back; offset: [B] error of the
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
        light = intensity(back, len(echoes.depth), rng)
        if sensor.intensity_power != 1:
            light **= np.float32(sensor.intensity_power)
        points[:, 3] = np.float32(sensor.full_intensity) * light
    return points, back.owner
