"""Streets made up at random: town, junction, square, park, country road, motorway, car park."""

from collections.abc import Callable

import numpy as np

from data.simulator.cars import car, van
from data.simulator.furniture import gantry, lamp, traffic_light
from data.simulator.ground import Ground
from data.simulator.lanes import OPEN, Lane, mixed
from data.simulator.lorries import bus, trailer, tram, truck
from data.simulator.materials import Material
from data.simulator.people import pedestrian
from data.simulator.plants import hedge, young_tree
from data.simulator.riders import bicycle, cyclist
from data.simulator.sides import (
    CAFE,
    CLUTTER,
    FRONTS,
    FURNITURE,
    GREEN,
    Side,
    country_side,
    gardens,
    median,
    motorway_side,
    park_side,
    stop,
    town_side,
)
from data.simulator.street import SENSOR_HEIGHT, Placed, Street

LINE_WIDTH = 0.14
TRAFFIC = mixed((0.84, car), (0.1, van), (0.04, truck), (0.012, bus), (0.008, trailer))
FAST = mixed((0.72, car), (0.1, van), (0.18, truck))


def make_street(rng: np.random.Generator) -> Street:
    """A street of a random scene."""
    names, shares = zip(*((name, share) for name, (share, _) in SCENES.items()), strict=True)
    name = names[int(np.searchsorted(np.cumsum(shares)[:-1], rng.random()))]
    return SCENES[name][1](rng, name)


def _town(rng: np.random.Generator, name: str, crossing: float | None = None) -> Street:
    """A street with a lane or two per direction, houses or gardens, sometimes a park or a tram."""
    lane, speed = rng.uniform(2.8, 3.6), 0.0 if crossing is not None else 8.0
    traffic = rng.choice((12.0, 40.0, 150.0), p=(0.3, 0.4, 0.3))
    crowd = rng.choice((0.6, 1.0, 3.0), p=(0.5, 0.35, 0.15))
    one_way = rng.random() < 0.2
    lanes = [_ahead(0.0, lane, traffic, speed)]
    inner = 0.5
    if not one_way:
        tracks = rng.random() < 0.1
        inner = 1.5
        oncoming = mixed((1, tram), (2, TRAFFIC)) if tracks else TRAFFIC
        lanes.append(_oncoming(lane, lane, traffic, speed, oncoming))
    right, left = Side(0.5 * lane, -1), Side(inner * lane, 1)
    for side in (right, left):
        kind = rng.random()
        if kind < 0.18:
            park_side(rng, side, crowd)
        else:
            town_side(rng, side, speed, crowd)
    if rng.random() < 0.08:
        stop(rng, right)
    lines = [] if rng.random() < 0.4 else [-0.5 * lane, inner * lane]
    lines += [] if one_way else [0.5 * lane]
    return _street(rng, name, lanes, (right, left), lines, speed, crossing, crowd)


def _junction(rng: np.random.Generator, name: str) -> Street:
    """A town street where the traffic along it waits for what crosses."""
    return _town(rng, name, rng.uniform(16, 45))


def _square(rng: np.random.Generator, name: str) -> Street:
    """A place for walkers and cyclists, cafes, bicycles; cars are rare."""
    crowd = rng.choice((4.0, 12.0, 40.0), p=(0.35, 0.4, 0.25))
    walkers = mixed((9, pedestrian), (1.2, cyclist))
    right, left = Side(1.7, -1), Side(1.7, 1)
    for side in (right, left):
        turn = np.pi * rng.integers(2)
        for _ in range(2):
            side.add(
                1.2,
                Material.CONCRETE,
                walkers,
                (0.1, crowd),
                turn,
                jitter=0.1,
                wobble=rng.choice((0.3, 1.5)),
            )
            turn += np.pi
            crowd *= rng.uniform(1.0, 2.5)
        side.add(
            2.5,
            Material.CONCRETE,
            CAFE if rng.random() < 0.4 else FURNITURE,
            (0.2, rng.uniform(1, 8)),
            jitter=0.7,
            wobble=0.8,
        )
        side.add(
            1.9,
            Material.CONCRETE,
            mixed((2, bicycle), (1, CLUTTER), (1, young_tree)),
            (0.15, rng.uniform(0.5, 12)),
            side.along + np.pi / 2,
            jitter=0.1,
        )
        if rng.random() < 0.7:
            side.add(6.4, Material.CONCRETE, FRONTS, (0.0, 3.0), wobble=0.0)
        else:
            side.add(5.0, Material.GRASS, GREEN, (0.5, 4.0), jitter=1.5)
    ahead = Lane(
        0.0,
        1.6,
        0.0,
        mixed((4, pedestrian), (2, cyclist), (1, van)),
        (2.0, 3 * crowd),
        6.0,
        wobble=0.3,
        jitter=0.8,
    )
    return _street(rng, name, [ahead], (right, left), [], 0.0)


def _country(rng: np.random.Generator, name: str) -> Street:
    """A road through fields and bushes, little traffic."""
    lane, traffic = rng.uniform(2.8, 3.6), rng.choice((25.0, 90.0, 400.0), p=(0.3, 0.4, 0.3))
    bikes = mixed((9, TRAFFIC), (1, cyclist))
    lanes = [_ahead(0.0, lane, traffic, 12.0, bikes), _oncoming(lane, lane, traffic, 12.0, TRAFFIC)]
    right, left = Side(0.5 * lane, -1), Side(1.5 * lane, 1)
    for side in (right, left):
        if rng.random() < 0.2:
            gardens(rng, side)
        else:
            country_side(rng, side)
    return _street(rng, name, lanes, (right, left), [-0.5 * lane, 0.5 * lane, 1.5 * lane], 12.0)


def _motorway(rng: np.random.Generator, name: str) -> Street:
    """Two or three lanes per direction between guard rails."""
    lane, count, own = 3.6, int(rng.integers(2, 4)), int(rng.integers(0, 2))
    traffic, speed = rng.choice((18.0, 45.0, 120.0)), 20.0
    lanes = [_ahead((i - own) * lane, lane, traffic, speed, FAST) for i in range(count)]
    right, left = Side((0.5 + own) * lane, -1), Side((count - own - 0.5) * lane, 1)
    lines = [-right.edge, left.edge, *((i - own - 0.5) * lane for i in range(1, count))]
    median(rng, left)
    for _ in range(count):
        left.add(lane, Material.ASPHALT, FAST, (8.0, 1.5 * traffic), np.pi, speed=speed, jitter=0.2)
    motorway_side(rng, right)
    motorway_side(rng, left)
    street = _street(rng, name, lanes, (right, left), lines, speed)
    if rng.random() < 0.3:
        over = Placed(gantry(rng), rng.uniform(25, 70), 0.5 * lane * (count - 2 * own - 1), 0.0)
        street = Street((*street.placed, over), street.ground, street.ego_speed, name)
    return street


def _car_park(rng: np.random.Generator, name: str) -> Street:
    """Rows of parked cars on both sides of the aisle, more rows behind, people between."""
    free = rng.choice((0.6, 3.0, 12.0))
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
    ahead = Lane(0.0, 1.4, 0.0, mixed((3, car), (2, pedestrian)), (6.0, 60.0), 9.0, wobble=0.1)
    return _street(rng, name, [ahead], (right, left), [], 0.0)


SCENES: dict[str, tuple[float, Callable[[np.random.Generator, str], Street]]] = {
    "town": (0.46, _town),
    "junction": (0.16, _junction),
    "square": (0.07, _square),
    "country": (0.17, _country),
    "motorway": (0.09, _motorway),
    "car_park": (0.05, _car_park),
}


def _ahead(v: float, lane: float, traffic: float, speed: float, make=TRAFFIC) -> Lane:
    start = 6.0 if v == 0 else -30.0
    return Lane(v, lane / 2 - 0.05, 0.0, make, (4.0, traffic), start, speed=speed, jitter=0.25)


def _oncoming(v: float, lane: float, traffic: float, speed: float, make) -> Lane:
    return Lane(v, lane / 2 - 0.05, np.pi, make, (4.0, traffic), speed=speed, jitter=0.25)


def _street(rng, name, lanes, sides, lines, speed, crossing=None, crowd=1.0) -> Street:
    closed = OPEN if crossing is None else (crossing - 8.5, crossing + 8.5)
    right, left = sides
    every = [*lanes, *right.lanes, *left.lanes]
    placed = [p for lane in every for p in lane.fill(rng, closed)]
    if crossing is not None:
        placed += _crossing(rng, crossing, crowd, -right.edge, left.edge)
    return Street(tuple(placed), _ground(rng, sides, lines), speed, name)


def _crossing(rng, middle: float, crowd: float, right: float, left: float) -> list[Placed]:
    """What moves across the street around s = middle: two lanes, two cycle paths, two zebras, and
    lights at the corners.
    """
    quarter, traffic, people = np.pi / 2, rng.choice((15.0, 80.0)), 35.0 / crowd
    lanes = [
        Lane(-1.8, 1.6, quarter, TRAFFIC, (4, traffic), -40, 40, 6.0),
        Lane(1.8, 1.6, -quarter, TRAFFIC, (4, traffic), -40, 40, 6.0),
        Lane(-4.4, 0.7, quarter, cyclist, (3, 3 * people), -25, 25, 4.0),
        Lane(4.4, 0.7, -quarter, cyclist, (3, 3 * people), -25, 25, 4.0),
        Lane(-6.5, 1.2, quarter, pedestrian, (0.3, people), -15, 15, 1.4, 0.4, 0.2),
        Lane(6.5, 1.2, -quarter, pedestrian, (0.3, people), -15, 15, 1.4, 0.4, 0.2),
    ]
    # These lanes run along v: what a lane calls s is v here, and the other way round.
    placed = [
        Placed(p.thing, middle + p.v, p.s, p.heading, p.speed, p.course)
        for lane in lanes
        for p in lane.fill(rng)
    ]
    if rng.random() < 0.6:
        placed += [
            Placed(traffic_light(rng), middle - 8.1, v, 0.0) for v in (right / 2.5, left / 1.7)
        ]
    return placed


def _ground(rng: np.random.Generator, sides: tuple[Side, Side], lines: list[float]) -> Ground:
    """Cross-section of both sides, the camber of the road, hills and bumps."""
    right, left = sides
    profile = [(-d, h) for d, h in reversed(right.heights)] + [(0.0, 0.0)] + left.heights
    v, height = np.array(profile).T
    v = v + 1e-4 * np.arange(len(v))
    middle, camber = (left.inner - right.inner) / 2, rng.uniform(0.0, 0.025)
    knots = np.unique([*v, middle, middle - 4, middle + 4])
    drop = camber * (np.minimum(np.abs(knots - middle), 4) - min(abs(middle), 4))
    across = np.array([knots, np.interp(knots, v, height) - drop])
    bounds, materials = _strips(right, left, lines)
    a, b = rng.normal(0, 0.008, 2)
    size = rng.uniform(0.004, 0.025, 5) * np.array([8.0, 2.0, 1.0, 0.6, 0.4])
    length = np.array([60.0, 25.0, 9.0, 4.0, 2.5]) * rng.uniform(0.7, 1.4, 5)
    turn = rng.uniform(-0.6, 0.6, 5)
    waves = np.array([size, 2 / length, 2 * turn / length, rng.uniform(0, 2, 5)])
    plane = np.array([a, b, 1.0, SENSOR_HEIGHT + rng.normal(0, 0.03)], dtype=np.float32)
    return Ground(plane, float(rng.normal(0, 0.05)), across, bounds, materials, waves)


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
