"""Random streets: town, junction, square, park, country road, motorway, car park."""

from collections.abc import Callable
from functools import partial

import numpy as np

from millisecond.data.simulator.cars import car, van
from millisecond.data.simulator.furniture import gantry, lamp
from millisecond.data.simulator.lanes import (
    CAFE,
    CLUTTER,
    FRONTS,
    FURNITURE,
    GREEN,
    PARKED,
    TOWN_BEHIND,
    Lane,
    mixed,
)
from millisecond.data.simulator.lorries import tram, truck
from millisecond.data.simulator.people import bicycle, cyclist, pedestrian
from millisecond.data.simulator.plans import (
    TRAFFIC,
    StreetPlan,
    bridge_over,
    cross_traffic,
    lane_ahead,
    lane_oncoming,
    some_bend,
    some_end,
)
from millisecond.data.simulator.plants import hedge, young_tree
from millisecond.data.simulator.sides import (
    Side,
    behind,
    country_side,
    gardens,
    median,
    motorway_side,
    park_side,
    stop,
    town_side,
    walled_side,
)
from millisecond.data.simulator.solids import Material
from millisecond.data.simulator.street import Placed, Street

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
    crowd = rng.choice((0.6, 1.0, 3.0), p=(0.5, 0.35, 0.15))
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
    crowd = rng.choice((2.5, 8.0, 25.0), p=(0.35, 0.4, 0.25))
    right, left = Side(1.7, -1), Side(1.7, 1)
    for side in (right, left):
        if rng.random() < 0.5:
            side.step(rng.uniform(0.03, 0.14))
        crowd = _walkers(rng, side, crowd)
        clutter, free = CAFE if rng.random() < 0.4 else FURNITURE, rng.uniform(1, 8)
        side.add(2.5, Material.CONCRETE, clutter, (0.2, free), jitter=0.7, wobble=0.8)
        parked = mixed((2, bicycle), (1, CLUTTER), (1, young_tree), (0.5, PARKED))
        free, nose = rng.uniform(0.5, 12), side.along + np.pi / 2
        side.add(1.9, Material.CONCRETE, parked, (0.15, free), nose, jitter=0.1)
        if rng.random() < 0.7:
            side.add(6.4, Material.CONCRETE, FRONTS, (0.0, 3.0), wobble=0.0)
        else:
            side.add(5.0, Material.GRASS, GREEN, (0.5, 4.0), jitter=1.5)
            behind(rng, side, TOWN_BEHIND, 0.8)
    ahead = Lane(
        0.0,
        1.6,
        0.0,
        mixed((4, pedestrian), (3, cyclist), (2, car), (1, van)),
        (2.0, 3 * crowd),
        6.0,
        wobble=0.3,
        jitter=0.8,
    )
    return StreetPlan([ahead], (right, left), [], 0.0).street(rng, name, end=some_end(rng))


def _walkers(rng: np.random.Generator, side: Side, gap: float) -> float:
    """Two rows of walkers, the other way each, so far apart; returns the gap for the next row."""
    walkers, turn = mixed((8, pedestrian), (2, cyclist)), np.pi * rng.integers(2)
    for _ in range(2):
        wobble = rng.choice((0.3, 1.5))
        side.add(1.2, Material.CONCRETE, walkers, (0.1, gap), turn, jitter=0.1, wobble=wobble)
        turn += np.pi
        gap *= rng.uniform(1.0, 2.5)
    return gap


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
    free = rng.choice((2.0, 6.0, 15.0))
    right, left = Side(2.8, -1), Side(3.2, 1)
    for side in (right, left):
        nose = rng.choice((-1, 1)) * np.pi / 2
        for row in range(2):
            side.add(
                5.4, Material.ASPHALT, mixed((12, car), (1, van)), (0.5, free), nose, jitter=0.2
            )
            if row == 0:
                side.add(
                    1.2,
                    Material.CONCRETE,
                    mixed((2, young_tree), (1, lamp), (1, hedge)),
                    (2.0, 8.0),
                )
            side.add(1.1, Material.ASPHALT, pedestrian, (0.5, 45.0), 0.0, wobble=1.0)
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
