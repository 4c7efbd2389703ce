"""From a plan to a street: lanes filled, crossings, what a street ends at, bridges over it."""

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from data.simulator.buildings import overpass
from data.simulator.cars import car, van
from data.simulator.furniture import traffic_light
from data.simulator.lanes import OPEN, Lane, mixed
from data.simulator.lorries import bus, trailer, truck
from data.simulator.mixtures import FRONTS, FURNITURE, GREEN
from data.simulator.people import pedestrian
from data.simulator.riders import cyclist
from data.simulator.sides import Side
from data.simulator.street import Placed, Street
from data.simulator.surface import make_ground

TRAFFIC = mixed((0.82, car), (0.1, van), (0.06, truck), (0.012, bus), (0.008, trailer))


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
    """Where a street ends, metres ahead; None where it goes on."""
    return rng.uniform(25, 70) if rng.random() < 0.6 else None


def some_bend(rng: np.random.Generator, share: float) -> float:
    """Curvature of a street: straight, but for this share of them."""
    return float(rng.uniform(-1, 1) / 150) if rng.random() < share else 0.0


class Plan(NamedTuple):
    """What a street is made from."""

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
        # Who stands may look aside; who drives looks along the road.
        wide = 0.35 if self.speed == 0 and rng.random() < 0.4 else 0.05
        ground = make_ground(rng, self.sides, self.lines, float(rng.normal(0, wide)), bend)
        return Street(tuple(placed), ground, self.speed, name)


def _closing(rng: np.random.Generator, end: float) -> list[Placed]:
    """What a street ends at: a cross street with cars and people, houses or trees behind it."""
    turn = -np.pi / 2
    rows = [
        Lane(-3.0, 1.3, turn, mixed((3, car), (1, FURNITURE), (1, van)), (0.6, 15.0), -30, 30),
        Lane(-0.5, 0.8, turn, mixed((2, pedestrian), (3, FURNITURE)), (0.6, 9.0), -30, 30),
    ]
    if rng.random() < 0.6:
        rows.append(Lane(5.0, 3.2, turn, FRONTS, (0.0, 2.0), -40, 40, wobble=0.0))
    else:
        rows.append(Lane(4.5, 3.0, turn, GREEN, (0.3, 1.5), -40, 40, jitter=1.0))
    return _across(rows, rng, end)


def _across(lanes: list[Lane], rng: np.random.Generator, middle: float) -> list[Placed]:
    """Lanes that run along v around s = middle: what a lane calls s is v here, and back."""
    return [
        Placed(p.thing, middle + p.v, p.s, p.heading, p.speed, p.course)
        for lane in lanes
        for p in replace(lane, aside=middle).fill(rng)
    ]


def cross_traffic(
    rng: np.random.Generator, middle: float, crowd: float, right: Side, left: Side
) -> list[Placed]:
    """What moves across the street around s = middle: two lanes, two cycle paths, two zebras, and
    lights at the corners.
    """
    quarter, traffic, people = np.pi / 2, rng.choice((8.0, 30.0)), 6.0 / crowd
    lanes = [
        Lane(-1.8, 1.6, quarter, TRAFFIC, (4, traffic), -40, 40, 6.0),
        Lane(1.8, 1.6, -quarter, TRAFFIC, (4, traffic), -40, 40, 6.0),
        Lane(-4.4, 0.7, quarter, cyclist, (3, people), -25, 25, 4.0),
        Lane(4.4, 0.7, -quarter, cyclist, (3, people), -25, 25, 4.0),
        Lane(-6.5, 1.2, quarter, pedestrian, (0.3, people), -15, 15, 1.4, 0.4, 0.2),
        Lane(6.5, 1.2, -quarter, pedestrian, (0.3, people), -15, 15, 1.4, 0.4, 0.2),
    ]
    # the corners: the cross street goes on between houses or trees, which look to it
    fronts = FRONTS if rng.random() < 0.75 else GREEN
    for s, turn in ((12.2, -quarter), (-12.2, quarter)):
        lanes += [
            Lane(s, 3.2, turn, fronts, (0.3, 4.0), start, end, wobble=0.0)
            for start, end in ((-50.0, -right.edge - 1.0), (left.edge + 1.0, 50.0))
        ]
    placed = _across(lanes, rng, middle)
    if rng.random() < 0.6:
        places = (-right.inner - 1.0, left.inner + 1.0)
        placed += [Placed(traffic_light(rng), middle - 8.1, v, 0.0) for v in places]
    return placed
