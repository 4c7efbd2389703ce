"""A street made up at random: lanes filled one thing after the other, so nothing ever overlaps."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from data.simulator.solids import Material
from data.simulator.things import (
    Thing,
    bin_box,
    building,
    car,
    cyclist,
    pedestrian,
    pole,
    tree,
    van,
)

ASPHALT = Material(0.22, 0.06, 0.03)
PAVEMENT = Material(0.36, 0.06, 0.03)
PAINT = Material(0.8, 0.1, 0.02)
SENSOR_HEIGHT = 1.73
LANE = 3.4  # width of a driving lane, metres
OPEN = (np.inf, np.inf)  # a lane closed nowhere
EGO_SPEED = 8.0  # metres per second, the speed of the traffic too


@dataclass(frozen=True)
class Placed:
    """A thing at s along the road and v to the left of it, metres; heading in radians."""

    thing: Thing
    s: float
    v: float
    heading: float
    speed: float = 0.0  # metres per second
    course: float = 0.0  # of its lane, radians: it stays in there though its heading wobbles

    def at(self, time: float) -> tuple[float, float]:
        """(s, v) after `time` seconds."""
        way = self.speed * time
        return self.s + way * np.cos(self.course), self.v + way * np.sin(self.course)


@dataclass(frozen=True)
class Street:
    """The road's s axis leaves the sensor at angle `yaw` of the LiDAR frame at time 0."""

    placed: tuple[Placed, ...]
    yaw: float
    plane: np.ndarray  # [4] (a, b, c, d): a x + b y + c z + d = 0 on the ground, LiDAR frame
    kerbs: tuple[float, float]  # v of the right and the left kerb
    lines: tuple[float, ...]  # v of the painted lines
    ego_speed: float  # metres per second along s

    def ground_height(self, x: float, y: float) -> float:
        """Height of the ground below (x, y) of the LiDAR frame, metres."""
        a, b, c, d = self.plane
        return float(-(a * x + b * y + d) / c)

    def pose(self, placed: Placed, time: float) -> tuple[float, float, float, float]:
        """(x, y, z of the ground, yaw) of a thing in the LiDAR frame of that time."""
        s, v = placed.at(time)
        s -= self.ego_speed * time
        cos, sin = np.cos(self.yaw), np.sin(self.yaw)
        x, y = cos * s - sin * v, sin * s + cos * v
        return x, y, self.ground_height(x, y), placed.heading + self.yaw

    def lateral(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        """v of points of the LiDAR frame, metres."""
        return np.cos(self.yaw) * y - np.sin(self.yaw) * x


@dataclass(frozen=True)
class Lane:
    """Things in a row at lateral offset v, with a clear gap between one and the next."""

    v: float
    heading: float
    make: Callable[[np.random.Generator], Thing]
    gap: tuple[float, float]  # metres between neighbours
    start: float = -8.0
    end: float = 110.0
    speed: float = 0.0
    jitter: float = 0.0  # of v, metres
    wobble: float = 0.02  # standard deviation of the heading, radians

    def fill(self, rng: np.random.Generator, closed: tuple[float, float]) -> list[Placed]:
        """Things from start to end; none reaches into the interval `closed` of s."""
        placed, s = [], self.start + rng.uniform(0, self.gap[1])
        while s < self.end:
            thing = self.make(rng)
            heading = self.heading + rng.normal(0, self.wobble)
            (x0, y0, _), (x1, y1, _) = thing.bounds()
            cos, sin = abs(np.cos(heading)), abs(np.sin(heading))
            half = (cos * (x1 - x0) + sin * (y1 - y0)) / 2
            if s + 2 * half > closed[0] and s < closed[1]:
                s = closed[1] + rng.uniform(*self.gap)
                continue
            v = self.v + rng.uniform(-self.jitter, self.jitter)
            placed.append(Placed(thing, s + half, v, heading, self.speed, self.heading))
            s += 2 * half + rng.uniform(*self.gap)
        return placed


def _vehicle(rng: np.random.Generator) -> Thing:
    return van(rng) if rng.random() < 0.1 else car(rng)


def _furniture(rng: np.random.Generator) -> Thing:
    return (tree, pole, pole, bin_box)[rng.integers(4)](rng)


def _side(
    rng: np.random.Generator, inner: float, side: int, speed: float
) -> tuple[list[Lane], float]:
    """Lanes beyond the driving lanes, from `inner` outwards on one side (-1 right, 1 left).

    Returns:
        The lanes, and v of the kerb.
    """
    along = 0.0 if side < 0 else np.pi
    lanes = [
        Lane(side * (inner + 0.7), along, cyclist, (6, 30), speed=min(speed, 5.0), wobble=0.05)
    ]
    edge = inner + 1.5
    parking = rng.choice(("parallel", "perpendicular", "none"), p=(0.6, 0.2, 0.2))
    crowd = rng.choice((0.6, 3.0, 10.0))
    if parking == "parallel":
        lanes.append(Lane(side * (edge + 1.2), along, _vehicle, (0.7, 1.5 + crowd), jitter=0.1))
        edge += 2.4
    elif parking == "perpendicular":
        nose = rng.choice((-1, 1)) * np.pi / 2
        lanes.append(Lane(side * (edge + 2.8), nose, car, (0.6, 1.0 + crowd), jitter=0.2))
        edge += 5.4
    kerb = side * edge
    wander = np.pi * rng.integers(2)
    lanes += [
        Lane(side * (edge + 1.0), 0.0, _furniture, (4, 14)),
        Lane(side * (edge + 3.1), wander, pedestrian, (3, 25), jitter=0.3, wobble=0.4),
        Lane(side * (edge + 4.6), wander + np.pi, pedestrian, (6, 50), jitter=0.3, wobble=0.8),
        Lane(side * (edge + rng.uniform(8.0, 11.0)), 0.0, building, (0.0, 6.0), wobble=0.0),
    ]
    return lanes, kerb


def _crossing(rng: np.random.Generator, middle: float) -> list[Placed]:
    """What moves across the street around s = middle: two lanes, two cycle paths, two zebras."""
    quarter = np.pi / 2
    lanes = [
        Lane(-1.8, quarter, _vehicle, (5, 25), -40, 40, 6.0),
        Lane(1.8, -quarter, _vehicle, (5, 25), -40, 40, 6.0),
        Lane(-4.4, quarter, cyclist, (5, 25), -25, 25, 4.0),
        Lane(4.4, -quarter, cyclist, (5, 25), -25, 25, 4.0),
        Lane(-6.5, quarter, pedestrian, (1.5, 12), -15, 15, 1.4, 0.4, 0.2),
        Lane(6.5, -quarter, pedestrian, (1.5, 12), -15, 15, 1.4, 0.4, 0.2),
    ]
    # These lanes run along v: what a lane calls s is v here, and the other way round.
    return [
        Placed(p.thing, middle + p.v, p.s, p.heading, p.speed, p.course)
        for lane in lanes
        for p in lane.fill(rng, OPEN)
    ]


def make_street(rng: np.random.Generator) -> Street:
    """A two-way street, half of the time with a crossing where the traffic along it waits."""
    crossing = rng.uniform(20, 45) if rng.random() < 0.5 else None
    speed = EGO_SPEED if crossing is None else 0.0
    lanes = [
        Lane(0.0, 0.0, _vehicle, (8, 35), start=8.0, speed=speed, jitter=0.2),
        Lane(LANE, np.pi, _vehicle, (8, 35), start=0.0, speed=speed, jitter=0.2),
    ]
    right, right_kerb = _side(rng, LANE / 2, -1, speed)
    left, left_kerb = _side(rng, LANE * 1.5, 1, speed)
    closed = OPEN if crossing is None else (crossing - 8.0, crossing + 8.0)
    placed = [p for lane in lanes + right + left for p in lane.fill(rng, closed)]
    if crossing is not None:
        placed += _crossing(rng, crossing)
    a, b = rng.normal(0, 0.006, 2)
    return Street(
        placed=tuple(placed),
        yaw=float(rng.normal(0, 0.05)),
        plane=np.array([a, b, 1.0, SENSOR_HEIGHT + rng.normal(0, 0.03)], dtype=np.float32),
        kerbs=(right_kerb, left_kerb),
        lines=(-LANE / 2, LANE / 2, LANE * 1.5),
        ego_speed=speed,
    )
