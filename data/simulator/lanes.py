"""Strips along a road, filled one thing after the other, so that nothing ever overlaps."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from data.simulator.street import Placed
from data.simulator.things import Thing

OPEN = (np.inf, np.inf)  # a lane closed nowhere
Maker = Callable[[np.random.Generator], Thing]

# Labels grow rare with the distance (KITTI's labels): share that is kept at metres along the road.
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
    gap: tuple[float, float]  # smallest one, and the mean of what exponentially comes on top
    start: float = -30.0
    end: float = 90.0
    speed: float = 0.0
    jitter: float = 0.0  # of v, metres
    wobble: float = 0.02  # standard deviation of the heading, radians
    aside: float = 0.0  # how far from the sensor the lane's s = 0 lies, metres

    def fill(self, rng: np.random.Generator, closed: tuple[float, float] = OPEN) -> list[Placed]:
        """Things from start to end; none reaches into the interval `closed` of s."""
        placed, s = [], self.start + rng.exponential(self.gap[1])
        while s < self.end:
            thing = self.make(rng)
            heading = self.heading + (rng.normal(0, self.wobble) if self.wobble else 0.0)
            low, high = _footprint(thing, heading)
            if s + high[0] - low[0] > closed[0] and s < closed[1]:
                s = closed[1] + self._gap(rng)
                continue
            right, left = self.v - self.half - low[1], self.v + self.half - high[1]
            if right <= left and _kept(thing, max(abs(s), self.aside), rng):
                middle, room = (right + left) / 2, (left - right) / 2
                v = middle + rng.uniform(-1, 1) * min(self.jitter, room)
                placed.append(Placed(thing, s - low[0], v, heading, self.speed, self.heading))
            s += high[0] - low[0] + self._gap(rng)
        return placed

    def until(self, end: float) -> "Lane":
        """The lane, ending before s = end."""
        return replace(self, end=min(self.end, end))

    def _gap(self, rng: np.random.Generator) -> float:
        return self.gap[0] + rng.exponential(self.gap[1])


def _kept(thing: Thing, distance: float, rng: np.random.Generator) -> bool:
    if thing.kind not in KEPT:
        return True
    return rng.random() < float(np.interp(distance, *KEPT[thing.kind]))


def _footprint(thing: Thing, heading: float) -> tuple[tuple[float, float], tuple[float, float]]:
    """Lowest and highest (s, v) of a turned thing around its origin."""
    x0, y0, x1, y1 = thing.foot
    cos, sin = np.cos(heading), np.sin(heading)
    s = [cos * x - sin * y for x in (x0, x1) for y in (y0, y1)]
    v = [sin * x + cos * y for x in (x0, x1) for y in (y0, y1)]
    return (min(s), min(v)), (max(s), max(v))


def mixed(*choices: tuple[float, Maker]) -> Maker:
    """A maker that takes one of these makers, each with a weight."""
    weights = np.cumsum([weight for weight, _ in choices])
    makers = [make for _, make in choices]

    def make(rng: np.random.Generator) -> Thing:
        return makers[int(np.searchsorted(weights, rng.random() * weights[-1]))](rng)

    return make
