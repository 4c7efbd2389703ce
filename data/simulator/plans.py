"""From a plan to a street: lanes filled, the ground made from the sides, crossings, the end of a
street, bridges over it.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from millisecond.data.simulator.buildings import overpass
from millisecond.data.simulator.cars import car, van
from millisecond.data.simulator.furniture import traffic_light
from millisecond.data.simulator.ground import Ground
from millisecond.data.simulator.lanes import FRONTS, FURNITURE, GREEN, OPEN, Lane, mixed
from millisecond.data.simulator.lorries import bus, trailer, truck
from millisecond.data.simulator.people import cyclist, pedestrian
from millisecond.data.simulator.sides import Side
from millisecond.data.simulator.solids import Material
from millisecond.data.simulator.street import SENSOR_HEIGHT, Placed, Street

LINE_WIDTH = 0.14  # of painted lines, metres


def make_ground(
    rng: np.random.Generator,
    sides: tuple[Side, Side],
    lines: list[float],
    yaw: float,
    bend: float,
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
    plane = np.array([a, b, 1.0, SENSOR_HEIGHT + rng.normal(0, 0.05)], dtype=np.float32)
    return Ground(plane, yaw, across, bounds, materials, waves, bend)


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
        Lane(-0.5, 0.8, turn, mixed((2, pedestrian), (3, FURNITURE)), (0.6, 9.0), -30, 30),
    ]
    if rng.random() < 0.6:
        rows.append(Lane(5.0, 3.2, turn, FRONTS, (0.0, 2.0), -40, 40, wobble=0.0))
    else:
        rows.append(Lane(4.5, 3.0, turn, GREEN, (0.3, 1.5), -40, 40, jitter=1.0))
    return _across(rows, rng, end)


def _across(lanes: list[Lane], rng: np.random.Generator, middle: float) -> list[Placed]:
    """Lanes that run along v around s = middle: s of a lane is v here, and v is s."""
    return [
        Placed(p.thing, middle + p.v, p.s, p.heading, p.speed, p.course)
        for lane in lanes
        for p in replace(lane, aside=middle).fill(rng)
    ]


def cross_traffic(
    rng: np.random.Generator, middle: float, crowd: float, right: Side, left: Side
) -> list[Placed]:
    """Traffic across the street around s = middle: two lanes, two cycle paths, two zebras, and
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
