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


# Typical values for near infrared light. Paint is black (0.04) to white. Light passes the glass
# before an interior twice. Shares of lost pulses: those of the free rays inside of cars, and on the
# ground below 20 m (1 to 3 %), in real scans.
SURFACES = {
    Material.PAINT: Surface(0.16, 0.9, 0.04),
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
    Material.INTERIOR: Surface(0.03, 0.7, 0.1),
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


def through_glass(solid: Echoes, glass: Echoes, rng: np.random.Generator) -> Echoes:
    """A pane mirrors: it answers where a ray meets it squarely, else the pulse goes on inside."""
    answers = 0.08 + 0.8 * np.maximum(glass.cosine - 0.9, 0) / 0.1
    first = (glass.depth < solid.depth) & (_uniform(glass.depth, rng) < answers)
    return Echoes(*(np.where(first, g, s) for g, s in zip(glass, solid, strict=True)))


def at_edges(echoes: Echoes, sensor: Sensor, rng: np.random.Generator) -> tuple[Echoes, Echoes]:
    """What pulses over an edge, which hit two surfaces, meet first and second.

    A receiver tells echoes apart that are SEPARATE; the larger share of the pulse is the first one.
    Of closer ones it measures a range between them (a mixed pixel), and there is no second.
    """
    depth = echoes.depth
    nothing = echoes._replace(depth=np.full_like(depth, MISS))
    if sensor.divergence == 0 or depth.shape[1] < 2:
        return echoes, nothing
    width = np.degrees(sensor.divergence / 1000) / sensor.azimuth_step
    # the edge lies anywhere between the two rays; what is beyond it belongs to the neighbour
    share = 0.5 - _uniform(depth, rng) / np.float32(max(width, 1e-6))
    side = np.where(_uniform(depth, rng) < 0.5, 1, -1)
    column = np.clip(np.arange(depth.shape[1]) + side, 0, depth.shape[1] - 1)
    other = Echoes(*(np.take_along_axis(values, column, axis=1) for values in echoes))
    met = (share > 0) & np.isfinite(depth) & np.isfinite(other.depth)
    gap = np.where(met, other.depth, 0) - np.where(met, depth, 0)
    mixed = (np.abs(gap) > EDGE) & (np.abs(gap) < SEPARATE)
    first = echoes._replace(depth=np.where(mixed, depth + share * gap, depth))
    apart = met & (np.abs(gap) >= SEPARATE)
    return first, other._replace(depth=np.where(apart, other.depth, MISS))


def returning(
    echoes: Echoes, sensor: Sensor, tone: np.ndarray, reach: float, rng: np.random.Generator
) -> np.ndarray:
    """The rays [B, A] whose pulse comes back strong enough: by material, incidence and range.

    Half of those onto a road come back from `reach` metres; power falls with the square of
    the distance and with the cosine of the angle, see `Surface.smooth`. tone: from `tones`.
    """
    met = (echoes.depth >= sensor.min_range) & (echoes.depth <= sensor.max_range)
    depth = np.where(met, echoes.depth, 1.0)
    road = SURFACES[Material.ASPHALT]
    least = road.reflectivity * (sensor.height / reach) ** road.smooth / reach**2
    cosine = np.maximum(echoes.cosine, 1e-3) ** _SMOOTH[echoes.material]
    power = reflected(echoes, tone) * cosine / (depth * depth)
    # the logistic curve is the cumulative normal one to 1 %, and cheaper
    chance = 1 / (1 + (least / power) ** np.float32(1.7 / BLUR))
    chance *= 1 - _LOST[echoes.material]
    return met & (_uniform(depth, rng) < chance)


def tones(count: int, rng: np.random.Generator) -> np.ndarray:
    """How bright each of `count` things is, in spreads of its material; 0 for the ground, which is
    the last one, of index -1."""
    return np.append(rng.standard_normal(count, dtype=np.float32), np.float32(0))


def reflected(echoes: Echoes, tone: np.ndarray) -> np.ndarray:
    """Reflectivity [B, A] of what was met: of its material, and of the thing's own tone."""
    spread = _SPREAD[echoes.material] * tone[echoes.owner]
    return np.minimum(_REFLECTIVITY[echoes.material] * np.exp(spread), 1)


def noisy_range(depth: np.ndarray, sensor: Sensor, rng: np.random.Generator) -> np.ndarray:
    """Depth [N] as it is measured; far echoes are weak and measured less exactly."""
    sigma = sensor.range_noise * np.sqrt(1 + (depth / np.float32(WEAKER)) ** 2)
    return depth + sigma * rng.standard_normal(len(depth), dtype=np.float32)


def intensity(echoes: Echoes, tone: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Intensity [B, A] from 0 to 1: reflectivity, less at a grazing angle, and noise."""
    bright = reflected(echoes, tone) * (0.5 + 0.5 * echoes.cosine)
    return (bright * (1 + 0.2 * rng.standard_normal(bright.shape, dtype=np.float32))).clip(0, 1)


def _uniform(like: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    return rng.random(like.shape, dtype=np.float32)
