"""Random streets: town, junction, square, park, country road, motorway, car park. A plan becomes a
street: lanes filled, the ground made from the sides, crossings, the end of a street, bridges.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import numpy as np

from millisecond.data.simulator.buildings import overpass
from millisecond.data.simulator.cars import car, van
from millisecond.data.simulator.furniture import gantry, lamp, traffic_light
from millisecond.data.simulator.ground import Ground
from millisecond.data.simulator.lanes import (
    CAFE,
    CLUTTER,
    FRONTS,
    FURNITURE,
    GREEN,
    OPEN,
    PARKED,
    RIDERS,
    TOWN_BEHIND,
    WALKERS,
    Crowd,
    Lane,
    Side,
    behind,
    country_side,
    gardens,
    median,
    mixed,
    motorway_side,
    park_side,
    stop,
    town_side,
    walled_side,
)
from millisecond.data.simulator.lorries import bus, trailer, tram, truck
from millisecond.data.simulator.people import bicycle, cyclist, motorcyclist, pedestrian
from millisecond.data.simulator.plants import hedge, young_tree
from millisecond.data.simulator.solids import Material
from millisecond.data.simulator.statistics import InHills
from millisecond.data.simulator.street import SENSOR_HEIGHT, Placed, Street

LINE_WIDTH = 0.14  # of painted lines, metres


def make_ground(
    rng: np.random.Generator, sides: tuple[Side, Side], lines: list[float], yaw: float, bend: float
) -> Ground:
    """Cross-section of both sides, the camber of the road, painted lines, hills and bumps."""
    right, left = sides
    profile = [(-d, h) for d, h in reversed(right.heights)] + [(0.0, 0.0)] + left.heights
    v, height = np.array(profile).T
    v = v + 1e-4 * np.arange(len(v))
    middle, camber = (left.inner - right.inner) / 2, rng.uniform(0.0, 0.02)
    knots = np.unique([*v, middle, middle - 4, middle + 4])
    drop = camber * (np.minimum(np.abs(knots - middle), 4) - min(abs(middle), 4))
    across = np.array([knots, np.interp(knots, v, height) - drop])
    bounds, materials = _strips(right, left, lines)
    # Hills: on them cars lie as high and as low as labelled cars 10 to 70 m away.
    a, b = rng.normal(0, 0.006, 2)
    size = rng.uniform(0.004, 0.025, 5) * np.array([5.0, 2.0, 1.0, 0.6, 0.4])
    length = np.array([60.0, 25.0, 9.0, 4.0, 2.5]) * rng.uniform(0.7, 1.4, 5)
    turn = rng.uniform(-0.6, 0.6, 5)
    waves = np.array([size, 2 / length, 2 * turn / length, rng.uniform(0, 2, 5)])
    if isinstance(rng, InHills):
        waves[:3, 0] = _hill(rng)
    plane = np.array([a, b, 1.0, SENSOR_HEIGHT + rng.normal(0, 0.05)], dtype=np.float32)
    ground = Ground(plane, yaw, across, bounds, materials, waves, bend)
    if isinstance(rng, InHills):
        # the sensor's car stands on the slope: seen from it, only the bend of the hill is left
        plane[:2] += ground.hill(0.0)
    return ground


def _hill(rng: np.random.Generator) -> tuple[float, float, float]:
    """Height in metres, wave number along and across of a hill whose steepest slope is at most
    12 %."""
    steepest, length = min(abs(rng.normal(0, 0.05)), 0.12), rng.uniform(60, 200)
    turn = rng.uniform(0, np.pi)
    return steepest * length / 8, 2 * np.cos(turn) / length, 2 * np.sin(turn) / length


def _strips(right: Side, left: Side, lines: list[float]) -> tuple[np.ndarray, np.ndarray]:
    """Where the material changes, v ascending, and the materials in between."""
    bounds = [-d for d, _ in reversed(right.strips)] + [-right.inner, left.inner]
    bounds += [d for d, _ in left.strips]
    kinds = [Material.GRASS, *(m for _, m in reversed(right.strips)), Material.ASPHALT]
    kinds += [m for _, m in left.strips] + [Material.GRASS]
    half = LINE_WIDTH / 2
    for line in lines:
        at = min(max(line, -right.inner + half + 0.05), left.inner - half - 0.05)
        k = int(np.searchsorted(bounds, at))
        bounds[k:k] = [at - half, at + half]
        kinds[k:k] = [kinds[k], Material.MARKING]
    return np.array(bounds), np.array(kinds, dtype=np.int64)


TRAFFIC = mixed((82, car), (10, van), (5, truck), (1.2, bus), (0.8, trailer), (1, motorcyclist))


def lane_ahead(v: float, lane: float, traffic: float, speed: float, make=TRAFFIC) -> Lane:
    """A lane of the own direction; traffic is the mean gap in metres."""
    start = 6.0 if v == 0 else -30.0
    return Lane(v, lane / 2 - 0.05, 0.0, make, (4.0, traffic), start, speed=speed, jitter=0.25)


def lane_oncoming(v: float, lane: float, traffic: float, speed: float, make) -> Lane:
    """A lane of the other direction."""
    return Lane(v, lane / 2 - 0.05, np.pi, make, (4.0, traffic), speed=speed, jitter=0.25)


def bridge_over(rng: np.random.Generator, right: Side, left: Side) -> Placed:
    """A bridge over all lanes, its abutments behind the sides."""
    bridge = overpass(rng, right.edge + left.edge + 1.0)
    return Placed(bridge, rng.uniform(30, 80), (left.edge - right.edge) / 2, 0.0)


def some_end(rng: np.random.Generator) -> float | None:
    """Metres ahead to the end of a street; None where it goes on."""
    return rng.uniform(25, 70) if rng.random() < 0.6 else None


def some_bend(rng: np.random.Generator, share: float) -> float:
    """Curvature of a street: straight, but for this share of them."""
    return float(rng.uniform(-1, 1) / 150) if rng.random() < share else 0.0


class StreetPlan(NamedTuple):
    """The input of a street."""

    lanes: list[Lane]
    sides: tuple[Side, Side]  # right, left
    lines: list[float]  # v of the painted lines
    speed: float  # of the sensor, metres per second

    def street(
        self,
        rng: np.random.Generator,
        name: str,
        more: Callable[[], list[Placed]] = list,
        crossing: float | None = None,
        end: float | None = None,
        bend: float = 0.0,
    ) -> Street:
        """The lanes filled: open around s = crossing, closed off by houses or trees at s = end."""
        closed = OPEN if crossing is None else (crossing - 8.5, crossing + 8.5)
        if end is not None:
            closed = (end - 5.0, np.inf)
        every = [*self.lanes, *self.sides[0].lanes, *self.sides[1].lanes]
        placed = [p for lane in every for p in lane.fill(rng, closed)] + more()
        if end is not None:
            placed += _closing(rng, end)
        # A thing that stands may look aside; a thing that drives looks along the road.
        wide = 0.35 if self.speed == 0 and rng.random() < 0.4 else 0.05
        ground = make_ground(rng, self.sides, self.lines, float(rng.normal(0, wide)), bend)
        return Street(tuple(placed), ground, self.speed, name)


def _closing(rng: np.random.Generator, end: float) -> list[Placed]:
    """The end of a street: a cross street with cars and people, houses or trees behind it."""
    turn = -np.pi / 2
    rows = [
        Lane(-3.0, 1.3, turn, mixed((3, car), (1, FURNITURE), (1, van)), (0.6, 15.0), -30, 30),
        Lane(-0.5, 0.8, turn, mixed((2, WALKERS), (3, FURNITURE)), (0.6, 9.0), -30, 30),
    ]
    if rng.random() < 0.6:
        rows.append(Lane(5.0, 3.2, turn, FRONTS, (0.0, 2.0), -40, 40, wobble=0.0))
    else:
        rows.append(Lane(4.5, 3.0, turn, GREEN, (0.3, 1.5), -40, 40, jitter=1.0))
    return _across(rows, rng, end)


def _across(lanes, rng: np.random.Generator, middle: float, closed=OPEN) -> list[Placed]:
    """Lanes along v around s = middle: lanes along s, by a quarter turn. closed: in v."""
    quarter, placed = np.pi / 2, []
    for lane in lanes:
        along = replace(lane, v=-lane.v, heading=lane.heading - quarter, aside=middle)
        for thing, s, v, heading, speed, course in along.fill(rng, closed):
            at = middle - v, s, heading + quarter
            placed.append(Placed(thing, *at, speed, course + quarter))
    return placed


def cross_traffic(
    rng: np.random.Generator, middle: float, crowd: Crowd, right: Side, left: Side
) -> list[Placed]:
    """Traffic across the street around s = middle: two lanes, two cycle paths, two zebras, and
    lights at the corners.
    """
    quarter, traffic, people = np.pi / 2, rng.choice((14.0, 50.0)), 11.0 / crowd.people
    bikes = 27.5 / crowd.riders
    lanes = [
        Lane(-1.8, 1.6, quarter, TRAFFIC, (4, traffic), -40, 40, 6.0),
        Lane(1.8, 1.6, -quarter, TRAFFIC, (4, traffic), -40, 40, 6.0),
        Lane(-4.4, 0.7, quarter, RIDERS, (1, bikes), -25, 25, 4.0, all_are="Cyclist"),
        Lane(4.4, 0.7, -quarter, RIDERS, (1, bikes), -25, 25, 4.0, all_are="Cyclist"),
        Lane(-6.5, 1.2, quarter, WALKERS, (0.3, people), -15, 15, 1.4, 0.4, 0.2, 0, "Pedestrian"),
        Lane(6.5, 1.2, -quarter, WALKERS, (0.3, people), -15, 15, 1.4, 0.4, 0.2, 0, "Pedestrian"),
    ]
    # the corners: the cross street goes on between houses or trees, which look to it
    fronts = FRONTS if rng.random() < 0.75 else GREEN
    corners = [
        Lane(s, 3.2, turn, fronts, (0.3, 4.0), -50.0, 50.0, wobble=0.0)
        for s, turn in ((12.2, -quarter), (-12.2, quarter))
    ]
    placed = _across(lanes, rng, middle)
    placed += _across(corners, rng, middle, (-right.edge - 1.0, left.edge + 1.0))
    if rng.random() < 0.6:
        places = (-right.inner - 1.0, left.inner + 1.0)
        placed += [Placed(traffic_light(rng), middle - 8.1, v, 0.0) for v in places]
    return placed


FAST = mixed((0.72, car), (0.1, van), (0.18, truck))


def make_street(rng: np.random.Generator) -> Street:
    """A street of a random scene."""
    names, shares = zip(*((name, share) for name, (share, _) in SCENES.items()), strict=True)
    name = names[int(np.searchsorted(np.cumsum(shares)[:-1], rng.random()))]
    return SCENES[name][1](rng, name)


def _town(rng: np.random.Generator, name: str) -> Street:
    """A street with a lane or two, houses, gardens or a park at its sides, sometimes a tram. At a
    junction the traffic along it waits for the crossing traffic. A walled one lies between walls,
    fences and hedges, which cars and people are close to."""
    crossing, walled = rng.uniform(13, 40) if name == "junction" else None, name == "walled"
    lane, waits = rng.uniform(2.8, 3.6), crossing is not None or rng.random() < 0.4
    speed = 0.0 if waits else 8.0
    traffic = rng.choice((5.0, 13.0, 40.0), p=(0.4, 0.4, 0.2))
    crowd = Crowd.of_street(rng)
    one_way, tracks = rng.random() < 0.2, rng.random() < 0.25
    lanes = [lane_ahead(0.0, lane, traffic, speed)]
    inner = 0.5 if one_way else 1.5
    if not one_way:
        oncoming = mixed((2, tram), (1, TRAFFIC)) if tracks else TRAFFIC
        lanes.append(lane_oncoming(lane, lane, traffic, speed, oncoming))
    right, left = Side(0.5 * lane, -1), Side(inner * lane, 1)
    if rng.random() < 0.1:
        stop(rng, right)
    for side in (right, left):
        if walled:
            walled_side(rng, side, speed, crowd)
        elif rng.random() < 0.18:
            park_side(rng, side, crowd)
        else:
            town_side(rng, side, speed, crowd)
    lines = [] if rng.random() < 0.4 else [-0.5 * lane, inner * lane]
    lines += [] if one_way else [0.5 * lane]
    plan = StreetPlan(lanes, (right, left), lines, speed)
    if crossing is not None:
        more = partial(cross_traffic, rng, crossing, crowd, right, left)
        return plan.street(rng, name, more, crossing)
    end = rng.uniform(22, 70) if waits and rng.random() < 0.6 else None
    return plan.street(rng, name, end=end, bend=0.0 if tracks else some_bend(rng, 0.6))


def _square(rng: np.random.Generator, name: str) -> Street:
    """A place for walkers and cyclists, cafes, bicycles; cars are rare."""
    crowd, right, left = Crowd.of_street(rng), Side(1.7, -1), Side(1.7, 1)
    for side in (right, left):
        if rng.random() < 0.5:
            side.step(rng.uniform(0.03, 0.14))
        _walkers(rng, side, crowd)
        clutter, free = CAFE if rng.random() < 0.4 else FURNITURE, rng.uniform(1, 8)
        side.add(2.5, Material.CONCRETE, clutter, (0.2, free), jitter=0.7, wobble=0.8)
        parked = mixed((crowd.riders, bicycle), (1, CLUTTER), (1, young_tree), (0.5, PARKED))
        free, nose = rng.uniform(0.5, 12), side.along + np.pi / 2
        side.add(1.9, Material.CONCRETE, parked, (0.15, free), nose, jitter=0.1)
        if rng.random() < 0.7:
            side.add(6.4, Material.CONCRETE, FRONTS, (0.0, 3.0), wobble=0.0)
        else:
            side.add(5.0, Material.GRASS, GREEN, (0.5, 4.0), jitter=1.5)
            behind(rng, side, TOWN_BEHIND, 0.8)
    traffic, gap = mixed((4, pedestrian), (3, cyclist), (2, car), (1, van)), 40.0 / crowd.people
    ahead = Lane(0.0, 1.6, 0.0, traffic, (2.0, gap), 6.0, wobble=0.3, jitter=0.8, turned=0.5)
    return StreetPlan([ahead], (right, left), [], 0.0).street(rng, name, end=some_end(rng))


def _walkers(rng: np.random.Generator, side: Side, crowd: Crowd) -> None:
    """Two rows of walkers in both directions."""
    people, gap = crowd.mixed(8, 2, 16.0)
    for _ in range(2):
        ways = {"jitter": 0.5, "wobble": rng.choice((0.3, 1.5)), "turned": 0.5}
        side.add(rng.uniform(1.5, 2.5), Material.CONCRETE, people, (0.1, gap), **ways)
        gap *= rng.uniform(1.0, 2.5)


def _country(rng: np.random.Generator, name: str) -> Street:
    """A road through fields and bushes, little traffic."""
    lane, traffic = rng.uniform(2.8, 3.6), rng.choice((12.0, 35.0, 120.0), p=(0.35, 0.4, 0.25))
    bikes = mixed((9, TRAFFIC), (1, cyclist))
    lanes = [
        lane_ahead(0.0, lane, traffic, 12.0, bikes),
        lane_oncoming(lane, lane, traffic, 12.0, TRAFFIC),
    ]
    right, left = Side(0.5 * lane, -1), Side(1.5 * lane, 1)
    for side in (right, left):
        if rng.random() < 0.2:
            gardens(rng, side)
        else:
            country_side(rng, side)
    lines = [-0.5 * lane, 0.5 * lane, 1.5 * lane] if rng.random() < 0.7 else []
    over = [bridge_over(rng, right, left)] if rng.random() < 0.1 else []
    plan = StreetPlan(lanes, (right, left), lines, 12.0)
    return plan.street(rng, name, lambda: over, bend=0.0 if over else some_bend(rng, 0.7))


def _motorway(rng: np.random.Generator, name: str) -> Street:
    """Two or three lanes per direction between guard rails."""
    lane, count, own = 3.6, int(rng.integers(2, 4)), int(rng.integers(0, 2))
    traffic, speed = rng.choice((10.0, 25.0, 60.0)), 20.0
    lanes = [lane_ahead((i - own) * lane, lane, traffic, speed, FAST) for i in range(count)]
    right, left = Side((0.5 + own) * lane, -1), Side((count - own - 0.5) * lane, 1)
    lines = [-right.edge, left.edge, *((i - own - 0.5) * lane for i in range(1, count))]
    median(rng, left)
    for _ in range(count):
        left.add(lane, Material.ASPHALT, FAST, (8.0, 1.5 * traffic), np.pi, speed=speed, jitter=0.2)
    motorway_side(rng, right)
    motorway_side(rng, left)
    over = []
    if rng.random() < 0.3:
        over.append(Placed(gantry(rng), rng.uniform(25, 70), (count - 2 * own - 1) * lane / 2, 0.0))
    if rng.random() < 0.3:
        over.append(bridge_over(rng, right, left))
    plan = StreetPlan(lanes, (right, left), lines, speed)
    return plan.street(rng, name, lambda: over, bend=0.0 if over else some_bend(rng, 0.7) / 2)


def _car_park(rng: np.random.Generator, name: str) -> Street:
    """Rows of parked cars on both sides of the aisle, more rows behind, people between."""
    free, crowd = rng.choice((2.0, 6.0, 15.0)), Crowd.of_street(rng)
    right, left = Side(2.8, -1), Side(3.2, 1)
    parked, between = mixed((12, car), (1, van)), mixed((2, young_tree), (1, lamp), (1, hedge))
    for side in (right, left):
        nose = rng.choice((-1, 1)) * np.pi / 2
        for row in range(2):
            side.add(5.4, Material.ASPHALT, parked, (0.5, free), nose, jitter=0.2)
            if row == 0:
                side.add(1.2, Material.CONCRETE, between, (2.0, 8.0))
            on_foot = {"wobble": 1.0, "all_are": "Pedestrian", "turned": 0.5}
            gap = (0.5, 45.0 / crowd.people)
            side.add(1.5, Material.ASPHALT, WALKERS, gap, side.facing, **on_foot)
        if rng.random() < 0.5:
            side.add(6.4, Material.CONCRETE, FRONTS, (0.0, 5.0), wobble=0.0)
        else:
            side.add(4.5, Material.GRASS, GREEN, (0.3, 2.0), jitter=1.0)
            behind(rng, side, TOWN_BEHIND, 0.8)
    ahead = Lane(0.0, 1.4, 0.0, mixed((3, car), (2, pedestrian)), (6.0, 60.0), 9.0, wobble=0.1)
    return StreetPlan([ahead], (right, left), [], 0.0).street(rng, name, end=some_end(rng))


SCENES: dict[str, tuple[float, Callable[[np.random.Generator, str], Street]]] = {
    "town": (0.3, _town),
    "walled": (0.15, _town),
    "junction": (0.16, _town),
    "square": (0.09, _square),
    "country": (0.17, _country),
    "motorway": (0.09, _motorway),
    "car_park": (0.04, _car_park),
}
