"""The strips along a road: lanes filled one thing after the other, so that nothing ever overlaps;
the shares of the things that stand together; and the sides of the driving lanes, strip after strip
from the inner edge outwards.
"""

from bisect import bisect, bisect_left
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from millisecond.data.simulator.buildings import (
    concrete_barrier,
    fence,
    guard_rail,
    house,
    noise_barrier,
    shed,
    stairs,
    wall,
)
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
    pole,
    poles,
    shelter,
    sign,
    table,
)
from millisecond.data.simulator.lorries import trailer, truck
from millisecond.data.simulator.people import (
    bicycle,
    bicycle_stand,
    cyclist,
    motorcycle,
    motorcyclist,
    pedestrian,
    scooter_rider,
    sitting_person,
    walkers,
    wheelchair_user,
)
from millisecond.data.simulator.plants import (
    bush,
    cone,
    fir,
    hedge,
    tall_grass,
    thicket,
    tree,
    young_tree,
)
from millisecond.data.simulator.solids import Material, Thing
from millisecond.data.simulator.statistics import Anywhere
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
    all_are: str = ""  # of this type, or its company: who is not kept is not made at all
    turned: float = 0.0  # share of the things, or groups, that look the other way

    def fill(self, rng: np.random.Generator, closed: tuple[float, float] = OPEN) -> list[Placed]:
        """Things from start to end; none reaches into the interval `closed` of s."""
        placed, s = [], self.start + rng.exponential(self.gap[1])
        middle, half = float(self.v), float(self.half)
        while s < self.end:
            if self.all_are and not _kept(self.all_are, max(abs(s), self.aside), rng):
                s += 1.0 + self._gap(rng)
                continue
            thing = self.make(rng)
            heading = float(self.heading)
            if self.wobble:
                heading += rng.normal(0, self.wobble)
            if self.turned:
                heading += np.pi * float(rng.random() < self.turned)
            low, high = _footprint(thing, heading)
            group = list(_group(thing, heading))
            for other, x, y, turn in group[1:]:
                a, b = _footprint(other, turn)
                low = min(low[0], a[0] + x), min(low[1], a[1] + y)
                high = max(high[0], b[0] + x), max(high[1], b[1] + y)
            if s + high[0] - low[0] > closed[0] and s < closed[1]:
                s = closed[1] + self._gap(rng)
                continue
            right, left = middle - half - low[1], middle + half - high[1]
            if right <= left and (self.all_are or _kept(thing.kind, max(abs(s), self.aside), rng)):
                room = (left - right) / 2
                v = (right + left) / 2 + rng.uniform(-1, 1) * min(self.jitter, room)
                for member, x, y, turn in group:
                    at = s - low[0] + x, v + y
                    placed.append(Placed(member, *at, turn, self.speed, self.heading))
            s += high[0] - low[0] + self._gap(rng)
        return placed

    def _gap(self, rng: np.random.Generator) -> float:
        return self.gap[0] + rng.exponential(self.gap[1])


def _kept(kind: str | None, distance: float, rng: np.random.Generator) -> bool:
    if kind not in KEPT or isinstance(rng, Anywhere):
        return True
    return rng.random() < _between(float(distance), *KEPT[kind])


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


def _group(thing: Thing, heading: float) -> Iterator[tuple[Thing, float, float, float]]:
    """A turned thing and its company, each with s, v and heading from the first."""
    yield thing, 0.0, 0.0, heading
    if thing.company:
        cos, sin = float(np.cos(heading)), float(np.sin(heading))
        for other, x, y, turn in thing.company:
            yield other, cos * x - sin * y, sin * x + cos * y, heading + turn


def mixed(*choices: tuple[float, Maker]) -> Maker:
    """A maker that takes one of these makers, each with a weight."""
    weights = np.cumsum([weight for weight, _ in choices]).tolist()
    makers = [make for _, make in choices]

    def make(rng: np.random.Generator) -> Thing:
        return makers[bisect_left(weights, rng.random() * weights[-1])](rng)

    return make


WALKERS = mixed((0.97, walkers), (0.02, scooter_rider), (0.01, wheelchair_user))
RIDERS = mixed((0.86, cyclist), (0.07, scooter_rider), (0.07, motorcyclist))


class Crowd(NamedTuple):
    """Of how many there usually are in a street, it has so many times as many."""

    people: float  # on foot
    riders: float  # and parked bicycles

    @staticmethod
    def of_street(rng: np.random.Generator) -> "Crowd":
        """0.6 to 7.2 times as many, 2.2 in the median."""
        return Crowd(*(0.6 + 6.6 * u * u for u in rng.random(2).tolist()))

    def mixed(self, people: float, riders: float, gap: float) -> tuple[Maker, float]:
        """Both in one lane, with weights and a mean gap that are right for a usual street."""
        a, b = people * self.people, riders * self.riders
        return mixed((a, WALKERS), (b, RIDERS)), gap * (people + riders) / (a + b)


VEHICLES = mixed((0.87, car), (0.08, van), (0.015, truck), (0.015, trailer), (0.02, motorcycle))
PARKED = mixed((0.97, VEHICLES), (0.03, walkers))  # people stand between parked cars


def leaning(rng: np.random.Generator) -> Thing:
    """A bicycle at a pole, a lamp or a young tree."""
    bike, other = bicycle(rng), (pole, lamp, young_tree)[int(rng.integers(3))](rng)
    aside = rng.choice((-1, 1)) * rng.uniform(0.2, 0.45)
    return replace(bike, company=((other, rng.uniform(-0.5, 0.5), aside, 0.0),))


FURNITURE = mixed(
    (3, tree),
    (4, young_tree),
    (3, lamp),
    (3, sign),
    (3, bollard),
    (2, bin_box),
    (1, column),
    (4, person_like),
    (4, pole),
    (1, poles),
    (1, cone),
    (1, bench),
    (2, bicycle),
    (2, leaning),
    (1, motorcycle),
    (1, bush),
)
CAFE = mixed((3, table), (2, sitting_person), (1, bench), (1, person_like), (1, column))
GARDEN = mixed(
    (3, hedge), (3, fence), (2, wall), (2, bush), (1, cone), (1, young_tree), (1, tree),
    (1, stairs), (1, bin_box),
)  # fmt: skip
GREEN = mixed(
    (4, bush), (3, tree), (2, thicket), (1, hedge), (1, fir), (1.5, young_tree), (1, cone)
)
WILD = mixed((5, thicket), (2, tree), (2, bush), (1, fir), (1, tall_grass), (0.5, pole))
VERGE = mixed((4, tall_grass), (3, delineator), (1, sign), (1, pole), (0.3, big_sign))
FRONTS = mixed((6, house), (1, shed), (0.5, noise_barrier))
TOWN_BEHIND = mixed((4, house), (4, tree), (1, fir), (0.5, shed))
WOODS = mixed((6, tree), (2, fir), (3, thicket), (0.5, house))
CLUTTER = mixed(
    (2, bicycle),
    (1, motorcycle),
    (2, bin_box),
    (3, person_like),
    (1, container),
    (1, bollard),
    (1, leaning),
    (1, bicycle_stand),
    (1, poles),
    (1, pole),
)


FRONT_DEPTH = 6.4  # of a house that stands at the street, metres


@dataclass
class Side:
    """Lanes, ground heights and ground materials, filled from the inner edge outwards."""

    edge: float  # distance from the axis reached so far, metres
    side: int  # -1 right, 1 left
    lanes: list[Lane] = field(default_factory=list)
    heights: list[tuple[float, float]] = field(default_factory=list)  # distance, metres up
    strips: list[tuple[float, Material]] = field(default_factory=list)  # outer edge, material
    level: float = 0.0

    def __post_init__(self):
        self.inner = self.edge

    @property
    def along(self) -> float:
        """Heading of the traffic on this side."""
        return 0.0 if self.side < 0 else np.pi

    @property
    def facing(self) -> float:
        """Heading of a thing whose -y looks to the road."""
        return np.pi if self.side < 0 else 0.0

    def add(
        self,
        width: float,
        material: Material,
        make: Maker | None = None,
        gap=(1.0, 5.0),
        heading: float | None = None,
        **options,
    ) -> None:
        """A strip of this width, with things in it."""
        if make is not None:
            middle = self.side * (self.edge + width / 2)
            turn = self.facing if heading is None else heading
            self.lanes.append(Lane(middle, width / 2 - 0.02, turn, make, gap, **options))
        self.edge += width
        self.strips.append((self.edge, material))
        self.heights.append((self.edge, self.level))

    def step(self, height: float, width: float = 0.04) -> None:
        """A kerb, or an embankment if it is wide."""
        self.heights.append((self.edge, self.level))
        self.level += height
        self.edge += width
        self.heights.append((self.edge, self.level))
        self.strips.append((self.edge, Material.CONCRETE if width < 0.5 else Material.GRASS))


def town_side(rng: np.random.Generator, side: Side, speed: float, crowd: Crowd) -> None:
    """Cycle lane, parked cars, kerb, furniture, people, and house fronts or gardens."""
    _kerbside(rng, side, speed, crowd)
    side.step(rng.uniform(0.08, 0.16))
    if rng.random() < 0.65:
        pitch, things = rng.uniform(1.0, 9), mixed((12, FURNITURE), (crowd.riders, bicycle))
        side.add(1.3, Material.CONCRETE, things, (0.8, pitch), jitter=0.3, wobble=0.2)
    _pavement(rng, side, speed, crowd)
    if rng.random() < 0.55:
        if rng.random() < 0.4:
            clutter, pitch = CAFE if rng.random() < 0.35 else CLUTTER, rng.uniform(2, 12)
            side.add(2.5, Material.CONCRETE, clutter, (0.3, pitch), jitter=0.8, wobble=0.4)
        side.add(FRONT_DEPTH, Material.CONCRETE, FRONTS, (0.0, 3.0), wobble=0.0)
    else:
        gardens(rng, side)


def walled_side(rng: np.random.Generator, side: Side, speed: float, crowd: Crowd) -> None:
    """A wall, a fence or a hedge half a metre from parked cars, or from people on a narrow path. On
    labelled scans 24 % of the cars have something within 0.6 m.
    """
    _kerbside(rng, side, speed, crowd, 2.2)
    side.step(rng.uniform(0.08, 0.16))
    if rng.random() < 0.5:
        gap = (0.1, rng.choice((2.5, 7.0, 30.0)) / crowd.people)
        pace, turn = rng.choice((0.0, 1.2)) if speed else 0.0, np.pi * rng.integers(2)
        ways = {"wobble": 0.02, "speed": pace, "all_are": "Pedestrian", "turned": 0.5 * (pace == 0)}
        side.add(1.1, Material.CONCRETE, pedestrian, gap, turn, **ways)
    width, make = ((0.45, wall), (0.22, fence), (1.2, hedge))[int(rng.integers(3))]
    side.add(width, Material.GRASS, make, (0.0, rng.exponential(2.0)), wobble=0.0)
    if rng.random() < 0.5:
        side.add(4.6, Material.GRASS, GREEN, (0.5, 6.0), jitter=1.5)
    side.add(FRONT_DEPTH, Material.GRASS, FRONTS, (0.0, 6.0), wobble=0.0)
    behind(rng, side, TOWN_BEHIND, 0.8)


def _kerbside(
    rng: np.random.Generator, side: Side, speed: float, crowd: Crowd, strip: float = 2.7
) -> None:
    """The rest of the road beside the driving lanes; cars park in a strip of this width."""
    if rng.random() < 0.6:
        pace = min(speed, 5.0)
        bikes = (0.8, 25.0 / crowd.riders)
        ways = {"speed": pace, "wobble": 0.05, "all_are": "Cyclist", "turned": 0.15 * (pace == 0)}
        side.add(1.5, Material.ASPHALT, RIDERS, bikes, side.along, jitter=0.3, **ways)
    parking = ("parallel", "perpendicular", "none")[rng.choice(3, p=(0.6, 0.07, 0.33))]
    free = 1.5 + rng.exponential(12.0)
    if parking == "parallel":
        turned = side.along if rng.random() < 0.8 else side.along + np.pi
        side.add(strip, Material.ASPHALT, PARKED, (0.6, free), turned, jitter=0.1)
    elif parking == "perpendicular":
        nose = rng.choice((-1, 1)) * np.pi / 2
        side.add(5.6, Material.ASPHALT, car, (0.5, 1.0 + free), nose, jitter=0.2)


def _pavement(rng: np.random.Generator, side: Side, speed: float, crowd: Crowd) -> None:
    """One or two rows of people. Where they stay where they are, they look all ways."""
    people = rng.choice((3.5, 10.0, 50.0), p=(0.3, 0.35, 0.35)) / crowd.people
    pace = rng.choice((0.0, 1.2)) if speed else 0.0  # people do not walk into a crossing
    turn, wobble = np.pi * rng.integers(2), 0.25 if pace else rng.choice((0.25, 1.2))
    ways = {"wobble": wobble, "speed": pace, "all_are": "Pedestrian", "turned": 0.5 * (pace == 0)}
    scatter = rng.uniform(0.0, 0.25)
    for row in range(int(rng.integers(1, 3))):
        width, gap = rng.uniform(1.0, 2.6), (0.1, people * (1 + row))
        ways["jitter"] = 0.1 + scatter * (width - 1)
        side.add(width, Material.CONCRETE, WALKERS, gap, turn + row * np.pi, **ways)
    side.add(0.3, Material.CONCRETE)  # nobody walks that close to a house


def gardens(rng: np.random.Generator, side: Side) -> None:
    """Hedges, fences and walls, gardens with drives, houses behind."""
    side.add(1.7, Material.GRASS, GARDEN, (0.3, rng.uniform(0.2, 4.0)), wobble=0.01)
    if rng.random() < 0.3:
        drives, nose = mixed((1, car), (3, GREEN), (1, shed)), rng.choice((-1, 1)) * np.pi / 2
        side.add(5.8, Material.GRASS, drives, (1.0, 12.0), nose, jitter=0.4)
    else:
        side.add(4.6, Material.GRASS, GREEN, (0.5, 6.0), jitter=1.5)
    side.add(FRONT_DEPTH, Material.GRASS, FRONTS, (1.0, 6.0), wobble=0.0)
    behind(rng, side, TOWN_BEHIND, 0.8)


def park_side(rng: np.random.Generator, side: Side, crowd: Crowd) -> None:
    """A path, a lawn with trees and bushes, benches."""
    if rng.random() < 0.5:
        side.step(rng.uniform(0.08, 0.16))
    side.add(1.5, Material.GRASS, FURNITURE, (2.0, 12.0), jitter=0.3, wobble=0.3)
    people, gap = crowd.mixed(3, 1, 70.0)
    side.add(1.8, Material.CONCRETE, people, (0.5, gap), jitter=0.5, wobble=0.2, turned=0.5)
    side.add(4.5, Material.GRASS, GREEN, (0.5, rng.uniform(1, 8)), jitter=2.0)
    side.add(4.5, Material.GRASS, mixed((4, GREEN), (1, bench)), (0.5, 4.0), jitter=2.0)
    side.add(6.5, Material.GRASS, mixed((2, WILD), (1, house)), (0.5, 5.0))
    behind(rng, side, TOWN_BEHIND, 0.8)


def country_side(rng: np.random.Generator, side: Side) -> None:
    """Verge, perhaps a guard rail, ditch or bank, bushes and trees."""
    side.add(0.6, Material.ASPHALT)
    side.step(rng.uniform(-0.15, 0.05), 0.6)
    side.add(1.4, Material.GRASS, VERGE, (0.5, rng.uniform(1, 10)), jitter=0.2)
    if rng.random() < 0.4:
        side.add(0.5, Material.GRASS, guard_rail, (0.0, 0.02), wobble=0.0)
    bank = rng.uniform(-1.0, 1.6) if rng.random() < 0.7 else 0.0
    side.step(bank, 2.5)
    if rng.random() < 0.25:
        people, gap = Crowd.of_street(rng).mixed(1, 2, 25.0)
        side.add(2.2, Material.ASPHALT, people, (1.0, gap), jitter=0.4, turned=0.5)
    side.add(4.5, Material.GRASS, WILD, (0.2, rng.exponential(8.0)), jitter=0.5)
    far = mixed((4, WILD), (1, fence), (0.3, house))
    side.add(9.0, Material.GRASS, far, (0.5, rng.exponential(9.0)), jitter=3.0)
    behind(rng, side, WOODS, 0.85)


def motorway_side(rng: np.random.Generator, side: Side) -> None:
    """Hard shoulder, guard rail, bank, noise barrier or bushes."""
    side.add(2.6, Material.ASPHALT, mixed((1, truck), (1, car)), (20.0, 900.0), side.along)
    side.add(0.6, Material.GRASS, guard_rail, (0.0, 0.01), wobble=0.0)
    verge = mixed((3, tall_grass), (1, big_sign), (1, delineator))
    side.add(1.6, Material.GRASS, verge, (2.0, 15.0))
    side.step(rng.uniform(-2.0, 2.5), 3.5)
    if rng.random() < 0.3:
        side.add(0.6, Material.GRASS, noise_barrier, (0.0, 0.01), wobble=0.0)
    side.add(4.6, Material.GRASS, WILD, (0.1, rng.exponential(8.0)), jitter=0.5)
    side.add(8.0, Material.GRASS, WILD, (0.5, rng.exponential(16.0)), jitter=2.0)
    behind(rng, side, WOODS, 0.85)


def behind(rng: np.random.Generator, side: Side, make: Maker, share: float) -> None:
    """Houses or trees farther away, in this share of the streets: upper beams end on them."""
    if rng.random() < share:
        side.add(rng.uniform(0.5, 8.0), Material.GRASS)
        gap = rng.exponential(3.0)
        side.add(8.0, Material.GRASS, make, (0.3, gap), jitter=1.5)


def median(rng: np.random.Generator, side: Side) -> None:
    """The strip between the two halves of a motorway."""
    barrier = concrete_barrier if rng.random() < 0.3 else guard_rail
    side.add(0.8, Material.ASPHALT)
    side.add(0.7, Material.GRASS, barrier, (0.0, 0.01), wobble=0.0)
    side.add(1.4, Material.GRASS, mixed((2, bush), (1, tall_grass), (1, lamp)), (2.0, 9.0))
    if rng.random() < 0.5:
        side.add(0.7, Material.GRASS, guard_rail, (0.0, 0.01), wobble=0.0)
    side.add(0.8, Material.ASPHALT)


def stop(rng: np.random.Generator, side: Side) -> None:
    """A shelter with people waiting."""
    side.add(1.7, Material.CONCRETE, mixed((1, shelter), (3, WALKERS)), (0.2, 15.0), wobble=0.0)
