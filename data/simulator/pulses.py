"""What comes back of the pulses of a scan, effect by effect.

Arrays are [B, A], beams by azimuths. Each effect is a function of its own; `docs/sensors.md` has
what each changes against real scans.
"""

from typing import NamedTuple

import numpy as np

from data.simulator.materials import Material
from data.simulator.sensors import Sensor

MISS = np.float32(np.inf)
BLUR = 0.6  # spread of the logarithm of a returned pulse's power, about a factor of 1.8
EDGE = 0.15  # metres between neighbouring rays from which on a pulse that hits both has two echoes
SEPARATE = 1.0  # metres between two echoes from which on a receiver tells them apart
WEAKER = 30.0  # metres at which the noise of the range has grown by the root of two


class Surface(NamedTuple):
    """How a material answers pulses of 905 nm."""

    reflectivity: float  # share of the light that a white, dull surface would return
    spread: float  # of its logarithm, from thing to thing
    lost: float  # share of the pulses that come to nothing at any distance: mirrored away
    # power falls with this power of the cosine of incidence: 1 for a dull, smooth surface; a rough
    # one lies in its own shadow and still sends light back to where it came from
    smooth: float = 1.0


# Typical values for near infrared light. Paint is dark to white: free cars on labelled scans return
# 0.8 of the pulses onto their ends up to 30 m. From 32 to 43 m some return 0.8, most 0.3; with a
# mean of 0.16 nearly all returned 0.8 there. Light passes the glass before an interior twice; 30 to
# 50 % of the pulses into rear screens of real cars come back. Shares of lost pulses: those of the
# free rays inside of cars, and on the ground below 20 m (1 to 3 %), in real scans.
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


class Echoes(NamedTuple):
    """What each ray meets, and how much light that returns."""

    depth: np.ndarray  # [B, A] float32 metres, MISS where nothing is met
    owner: np.ndarray  # [B, A] int32
    material: np.ndarray  # [B, A] int64, `Material`
    cosine: np.ndarray  # [B, A] float32, of the angle of incidence

    def at(self, rays: np.ndarray) -> "Echoes":
        """Those of some rays, numbered beam by beam: arrays [N]."""
        return Echoes(*(values.ravel()[rays] for values in self))

    def put(self, rays: np.ndarray, others: "Echoes") -> "Echoes":
        """A copy in which these rays have other echoes [N]."""
        new = Echoes(*(values.copy() for values in self))
        for values, other in zip(new, others, strict=True):
            values.ravel()[rays] = other
        return new


def through_glass(solid: Echoes, glass: Echoes, rng: np.random.Generator) -> Echoes:
    """A pane mirrors: it answers where a ray meets it squarely, else the pulse goes on inside."""
    drawn = _uniform(glass.depth, rng).ravel()
    panes = np.flatnonzero(glass.depth < solid.depth)
    answers = 0.08 + 0.8 * np.maximum(glass.cosine.ravel()[panes] - 0.9, 0) / 0.1
    panes = panes[drawn[panes] < answers]
    return solid.put(panes, glass.at(panes))


def at_edges(echoes: Echoes, sensor: Sensor, rng: np.random.Generator) -> tuple[Echoes, Echoes]:
    """What pulses over an edge, which hit two surfaces, meet first and second.

    A receiver tells echoes apart that are SEPARATE; the larger share of the pulse is the first one.
    Of closer ones it measures a range between them (a mixed pixel), and there is no second, as
    there is none for a sensor with one return.
    """
    nothing = echoes._replace(depth=np.full_like(echoes.depth, MISS))
    columns = echoes.depth.shape[1]
    if sensor.divergence == 0 or columns < 2:
        return echoes, nothing
    width = np.degrees(sensor.divergence / 1000) / sensor.azimuth_step
    # the edge lies anywhere between the two rays; what is beyond it belongs to the neighbour
    share = (0.5 - _uniform(echoes.depth, rng) / np.float32(max(width, 1e-6))).ravel()
    right = _uniform(echoes.depth, rng).ravel() < 0.5
    depth = echoes.depth.ravel()
    rays = np.flatnonzero((share > 0) & np.isfinite(depth))
    column = rays % columns
    side = np.where(right[rays], 1, -1)
    other = rays + np.clip(column + side, 0, columns - 1) - column
    gap = depth[other] - depth[rays]
    far = np.abs(gap)
    mixed = (far > EDGE) & (far < SEPARATE)
    first = depth.copy()
    first[rays[mixed]] += share[rays[mixed]] * gap[mixed]
    apart = (far >= SEPARATE) & np.isfinite(far)
    second = nothing
    if sensor.returns == 2:
        second = nothing.put(rays[apart], echoes.at(other[apart]))
    return echoes._replace(depth=first.reshape(echoes.depth.shape)), second


class Returns(NamedTuple):
    """The rays whose pulse comes back strong enough, and what they met."""

    ray: np.ndarray  # [N] numbered beam by beam
    depth: np.ndarray  # [N] float32 metres
    owner: np.ndarray  # [N] int32
    cosine: np.ndarray  # [N] float32
    reflected: np.ndarray  # [N] float32: share of the light


def returning(
    echoes: Echoes, sensor: Sensor, tone: np.ndarray, reach: float, rng: np.random.Generator
) -> Returns:
    """The pulses that come back: by material, incidence and range.

    Half of those onto a road come back from `reach` metres; power falls with the square of
    the distance and with the cosine of the angle, see `Surface.smooth`. tone: from `tones`.
    """
    drawn = _uniform(echoes.depth, rng).ravel()
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


def tones(count: int, rng: np.random.Generator) -> np.ndarray:
    """How bright each of `count` things is, in spreads of its material; 0 for the ground, which is
    the last one, of index -1."""
    return np.append(rng.standard_normal(count, dtype=np.float32), np.float32(0))


def noisy_range(depth: np.ndarray, sensor: Sensor, rng: np.random.Generator) -> np.ndarray:
    """Depth [N] as it is measured; far echoes are weak and measured less exactly."""
    sigma = sensor.range_noise * np.sqrt(1 + (depth / np.float32(WEAKER)) ** 2)
    return depth + sigma * rng.standard_normal(len(depth), dtype=np.float32)


def intensity(back: Returns, shape: tuple[int, int], rng: np.random.Generator) -> np.ndarray:
    """Intensity [N] from 0 to 1: reflectivity, less at a grazing angle, and noise.

    shape: of the scan, (beams, azimuths).
    """
    noise = rng.standard_normal(shape, dtype=np.float32).ravel()[back.ray]
    return (back.reflected * (0.5 + 0.5 * back.cosine) * (1 + 0.2 * noise)).clip(0, 1)


def _uniform(like: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    return rng.random(like.shape, dtype=np.float32)
