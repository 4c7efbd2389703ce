"""The sides of the driving lanes: strip after strip from the inner edge outwards."""

from dataclasses import dataclass, field

import numpy as np

from millisecond.data.simulator.buildings import (
    concrete_barrier,
    fence,
    guard_rail,
    house,
    noise_barrier,
    shed,
    wall,
)
from millisecond.data.simulator.cars import car
from millisecond.data.simulator.furniture import bench, big_sign, delineator, lamp, shelter
from millisecond.data.simulator.lanes import (
    CAFE,
    CLUTTER,
    FRONTS,
    FURNITURE,
    GARDEN,
    GREEN,
    PARKED,
    TOWN_BEHIND,
    VERGE,
    WILD,
    WOODS,
    Lane,
    Maker,
    mixed,
)
from millisecond.data.simulator.lorries import truck
from millisecond.data.simulator.people import cyclist, pedestrian
from millisecond.data.simulator.plants import bush, hedge, tall_grass
from millisecond.data.simulator.solids import Material

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


def town_side(rng: np.random.Generator, side: Side, speed: float, crowd: float) -> None:
    """Cycle lane, parked cars, kerb, furniture, people, and house fronts or gardens."""
    _kerbside(rng, side, speed, crowd)
    side.step(rng.uniform(0.08, 0.16))
    if rng.random() < 0.65:
        pitch = rng.uniform(1.0, 9)
        side.add(1.3, Material.CONCRETE, FURNITURE, (0.8, pitch), jitter=0.3, wobble=0.2)
    _pavement(rng, side, speed, crowd)
    if rng.random() < 0.55:
        if rng.random() < 0.4:
            clutter, pitch = CAFE if rng.random() < 0.35 else CLUTTER, rng.uniform(2, 12)
            side.add(2.5, Material.CONCRETE, clutter, (0.3, pitch), jitter=0.8, wobble=0.4)
        side.add(FRONT_DEPTH, Material.CONCRETE, FRONTS, (0.0, 3.0), wobble=0.0)
    else:
        gardens(rng, side)


def walled_side(rng: np.random.Generator, side: Side, speed: float, crowd: float) -> None:
    """A wall, a fence or a hedge half a metre from parked cars, or from people on a narrow path. On
    labelled scans 24 % of the cars have something within 0.6 m.
    """
    _kerbside(rng, side, speed, crowd, 2.2)
    side.step(rng.uniform(0.08, 0.16))
    if rng.random() < 0.5:
        gap = (0.1, rng.choice((1.5, 4.0, 20.0)) / crowd)
        pace, turn = rng.choice((0.0, 1.2)) if speed else 0.0, np.pi * rng.integers(2)
        side.add(1.1, Material.CONCRETE, pedestrian, gap, turn, wobble=0.02, speed=pace)
    width, make = ((0.45, wall), (0.22, fence), (1.2, hedge))[int(rng.integers(3))]
    side.add(width, Material.GRASS, make, (0.0, rng.exponential(2.0)), wobble=0.0)
    if rng.random() < 0.5:
        side.add(4.6, Material.GRASS, GREEN, (0.5, 6.0), jitter=1.5)
    side.add(FRONT_DEPTH, Material.GRASS, FRONTS, (0.0, 6.0), wobble=0.0)
    behind(rng, side, TOWN_BEHIND, 0.8)


def _kerbside(
    rng: np.random.Generator, side: Side, speed: float, crowd: float, strip: float = 2.7
) -> None:
    """The rest of the road beside the driving lanes; cars park in a strip of this width."""
    if rng.random() < 0.6:
        pace = min(speed, 5.0)
        bikes = (2.0, 25.0 / crowd)
        side.add(1.5, Material.ASPHALT, cyclist, bikes, side.along, speed=pace, wobble=0.05)
    parking = rng.choice(("parallel", "perpendicular", "none"), p=(0.6, 0.07, 0.33))
    free = 1.5 + rng.exponential(12.0)
    if parking == "parallel":
        turned = side.along if rng.random() < 0.8 else side.along + np.pi
        side.add(strip, Material.ASPHALT, PARKED, (0.6, free), turned, jitter=0.1)
    elif parking == "perpendicular":
        nose = rng.choice((-1, 1)) * np.pi / 2
        side.add(5.6, Material.ASPHALT, car, (0.5, 1.0 + free), nose, jitter=0.2)


def _pavement(rng: np.random.Generator, side: Side, speed: float, crowd: float) -> None:
    """One or two rows of people, all walking or all standing about."""
    people = rng.choice((1.5, 4.0, 20.0), p=(0.3, 0.35, 0.35)) / crowd
    pace = rng.choice((0.0, 1.2)) if speed else 0.0  # people do not walk into a crossing
    turn, wobble = np.pi * rng.integers(2), 0.25 if pace else 1.2
    for row in range(int(rng.integers(1, 3))):
        side.add(
            rng.uniform(1.0, 1.4),
            Material.CONCRETE,
            pedestrian,
            (0.1, people * (1 + row)),
            turn + row * np.pi,
            jitter=0.1,
            wobble=wobble,
            speed=pace,
        )


def gardens(rng: np.random.Generator, side: Side) -> None:
    """Hedges, fences and walls, gardens with drives, houses behind."""
    side.add(1.7, Material.GRASS, GARDEN, (0.3, rng.uniform(0.2, 4.0)), wobble=0.01)
    if rng.random() < 0.3:
        side.add(
            5.8,
            Material.GRASS,
            mixed((1, car), (3, GREEN), (1, shed)),
            (1.0, 12.0),
            rng.choice((-1, 1)) * np.pi / 2,
            jitter=0.4,
        )
    else:
        side.add(4.6, Material.GRASS, GREEN, (0.5, 6.0), jitter=1.5)
    side.add(FRONT_DEPTH, Material.GRASS, FRONTS, (1.0, 6.0), wobble=0.0)
    behind(rng, side, TOWN_BEHIND, 0.8)


def park_side(rng: np.random.Generator, side: Side, crowd: float) -> None:
    """A path, a lawn with trees and bushes, benches."""
    if rng.random() < 0.5:
        side.step(rng.uniform(0.08, 0.16))
    side.add(1.5, Material.GRASS, FURNITURE, (2.0, 12.0), jitter=0.3, wobble=0.3)
    side.add(
        1.8,
        Material.CONCRETE,
        mixed((3, pedestrian), (1, cyclist)),
        (0.5, 70.0 / crowd),
        np.pi * rng.integers(2),
        jitter=0.5,
        wobble=0.2,
    )
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
        side.add(
            2.2,
            Material.ASPHALT,
            mixed((2, cyclist), (1, pedestrian)),
            (2.0, 25.0),
            side.along,
            jitter=0.4,
        )
    side.add(4.5, Material.GRASS, WILD, (0.2, rng.exponential(8.0)), jitter=0.5)
    far = mixed((4, WILD), (1, fence), (0.3, house))
    side.add(9.0, Material.GRASS, far, (0.5, rng.exponential(9.0)), jitter=3.0)
    behind(rng, side, WOODS, 0.85)


def motorway_side(rng: np.random.Generator, side: Side) -> None:
    """Hard shoulder, guard rail, bank, noise barrier or bushes."""
    side.add(2.6, Material.ASPHALT, mixed((1, truck), (1, car)), (20.0, 900.0), side.along)
    side.add(0.6, Material.GRASS, guard_rail, (0.0, 0.01), wobble=0.0)
    side.add(
        1.6, Material.GRASS, mixed((3, tall_grass), (1, big_sign), (1, delineator)), (2.0, 15.0)
    )
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
    side.add(1.7, Material.CONCRETE, mixed((1, shelter), (3, pedestrian)), (0.2, 15.0), wobble=0.0)
