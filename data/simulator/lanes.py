"""Strips along a road, filled one thing after the other, so that nothing ever overlaps; and the
shares of the things that stand together along a street.
"""

from bisect import bisect, bisect_left
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from millisecond.data.simulator.buildings import fence, house, noise_barrier, shed, stairs, wall
from millisecond.data.simulator.cars import car, van
from millisecond.data.simulator.furniture import (
    bench,
    big_sign,
    bin_box,
    bollard,
    column,
    container,
    delineator,
    lamp,
    person_like,
    sign,
    table,
)
from millisecond.data.simulator.lorries import trailer, truck
from millisecond.data.simulator.people import bicycle, motorcycle, sitting_person
from millisecond.data.simulator.plants import (
    bush,
    fir,
    hedge,
    tall_grass,
    thicket,
    tree,
    young_tree,
)
from millisecond.data.simulator.solids import Thing
from millisecond.data.simulator.street import Placed

OPEN = (np.inf, np.inf)  # a lane without a closed part
Maker = Callable[[np.random.Generator], Thing]

# In KITTI's labels, objects grow rare with the distance: share that is kept at metres along the
# road.
KEPT = {
    "Car": ((25, 31, 48, 65, 80), (1.0, 0.75, 0.4, 0.16, 0.05)),
    "Van": ((30, 45, 60, 80), (1.0, 0.6, 0.4, 0.1)),
    "Pedestrian": ((8, 14, 22, 35, 55), (1.0, 0.65, 0.3, 0.1, 0.0)),
    "Person_sitting": ((8, 14, 21, 30), (1.0, 0.5, 0.1, 0.0)),
    "Cyclist": ((15, 27, 43, 60, 75), (1.0, 0.7, 0.3, 0.1, 0.02)),
}


@dataclass(frozen=True)
class Lane:
    """Things in a row inside the strip v - half to v + half, with clear gaps between them."""

    v: float
    half: float
    heading: float
    make: Maker
    gap: tuple[float, float]  # smallest gap, and the mean of the exponential length added to it
    start: float = -30.0
    end: float = 90.0
    speed: float = 0.0
    jitter: float = 0.0  # of v, metres
    wobble: float = 0.02  # standard deviation of the heading, radians
    aside: float = 0.0  # how far from the sensor the lane's s = 0 lies, metres

    def fill(self, rng: np.random.Generator, closed: tuple[float, float] = OPEN) -> list[Placed]:
        """Things from start to end; none reaches into the interval `closed` of s."""
        placed, s = [], self.start + rng.exponential(self.gap[1])
        middle, half = float(self.v), float(self.half)
        while s < self.end:
            thing = self.make(rng)
            heading = float(self.heading)
            if self.wobble:
                heading += rng.normal(0, self.wobble)
            low, high = _footprint(thing, heading)
            if s + high[0] - low[0] > closed[0] and s < closed[1]:
                s = closed[1] + self._gap(rng)
                continue
            right, left = middle - half - low[1], middle + half - high[1]
            if right <= left and _kept(thing, max(abs(s), self.aside), rng):
                room = (left - right) / 2
                v = (right + left) / 2 + rng.uniform(-1, 1) * min(self.jitter, room)
                placed.append(Placed(thing, s - low[0], v, heading, self.speed, self.heading))
            s += high[0] - low[0] + self._gap(rng)
        return placed

    def _gap(self, rng: np.random.Generator) -> float:
        return self.gap[0] + rng.exponential(self.gap[1])


def _kept(thing: Thing, distance: float, rng: np.random.Generator) -> bool:
    if thing.kind not in KEPT:
        return True
    return rng.random() < _between(float(distance), *KEPT[thing.kind])


def _between(x: float, places: tuple[float, ...], values: tuple[float, ...]) -> float:
    """np.interp of a number, but faster."""
    k = bisect(places, x)
    if k in (0, len(places)):
        return values[max(k - 1, 0)]
    rise = (values[k] - values[k - 1]) / (places[k] - places[k - 1])
    return rise * (x - places[k - 1]) + values[k - 1]


def _footprint(thing: Thing, heading: float) -> tuple[tuple[float, float], tuple[float, float]]:
    """Lowest and highest (s, v) of a turned thing around its origin."""
    x0, y0, x1, y1 = thing.foot
    cos, sin = float(np.cos(heading)), float(np.sin(heading))
    a, b, c, d = cos * x0, cos * x1, sin * y0, sin * y1
    s = a - c, a - d, b - c, b - d
    a, b, c, d = sin * x0, sin * x1, cos * y0, cos * y1
    v = a + c, a + d, b + c, b + d
    return (min(s), min(v)), (max(s), max(v))


def mixed(*choices: tuple[float, Maker]) -> Maker:
    """A maker that takes one of these makers, each with a weight."""
    weights = np.cumsum([weight for weight, _ in choices]).tolist()
    makers = [make for _, make in choices]

    def make(rng: np.random.Generator) -> Thing:
        return makers[bisect_left(weights, rng.random() * weights[-1])](rng)

    return make


PARKED = mixed((0.87, car), (0.08, van), (0.015, truck), (0.015, trailer), (0.02, motorcycle))
FURNITURE = mixed(
    (3, tree),
    (2, young_tree),
    (3, lamp),
    (3, sign),
    (3, bollard),
    (2, bin_box),
    (1, column),
    (2, person_like),
    (1, bench),
    (2, bicycle),
    (1, motorcycle),
    (1, bush),
)
CAFE = mixed((3, table), (2, sitting_person), (1, bench), (1, person_like), (1, column))
GARDEN = mixed((3, hedge), (3, fence), (2, wall), (2, bush), (1, tree), (1, stairs), (1, bin_box))
GREEN = mixed((4, bush), (3, tree), (2, thicket), (1, hedge), (1, fir), (1, young_tree))
WILD = mixed((5, thicket), (2, tree), (2, bush), (1, fir), (1, tall_grass))
VERGE = mixed((4, tall_grass), (3, delineator), (1, sign), (0.3, big_sign))
FRONTS = mixed((6, house), (1, shed), (0.5, noise_barrier))
TOWN_BEHIND = mixed((4, house), (4, tree), (1, fir), (0.5, shed))
WOODS = mixed((6, tree), (2, fir), (3, thicket), (0.5, house))
CLUTTER = mixed(
    (2, bicycle), (1, motorcycle), (2, bin_box), (2, person_like), (1, container), (1, bollard)
)
