"""A random hall, scanned: walls, pillars, shelves, and things of a user's own classes, as a YAML
file describes them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from millisecond.data.frame import Frame
from millisecond.data.schema import require
from millisecond.data.simulator.cars import car, van
from millisecond.data.simulator.ground import flat_ground
from millisecond.data.simulator.lidar import as_scanned, scan
from millisecond.data.simulator.lorries import truck
from millisecond.data.simulator.people import cyclist, pedestrian, sitting_person
from millisecond.data.simulator.sensors import Sensor
from millisecond.data.simulator.solids import Material, Thing, boxes, solids, upright
from millisecond.data.simulator.street import SENSOR_HEIGHT, Placed, Street, boxes_at

LARGEST = 200.0  # metres, of a hall
MOST = 100  # things of a class
LIKE = {
    "car": car,
    "van": van,
    "truck": truck,
    "pedestrian": pedestrian,
    "sitting_person": sitting_person,
    "cyclist": cyclist,
}


@dataclass(frozen=True)
class SiteClass:
    """Things of a class. `count`: least and most of them in a scan. `like`: a thing of the
    simulated streets. `parts`: or boxes (x, x, y, y, z, z: lowest and highest, metres; x along the
    heading, z from the ground). `vary`: share by which their size varies."""

    count: tuple[int, int]
    like: str = ""
    parts: tuple[tuple[float, float, float, float, float, float], ...] = ()
    vary: float = 0.05

    def __post_init__(self):
        low, high = self.count
        require(0 <= low <= high <= MOST, "count", f"{[low, high]} is not a range in 0 to {MOST}")
        require(bool(self.like) != bool(self.parts), "parts", "give either parts or like")
        known = not self.like or self.like in LIKE
        require(known, "like", f"{self.like!r} is none of {', '.join(LIKE)}")
        for part in self.parts:
            x0, x1, y0, y1, z0, z1 = part
            right = x0 < x1 and y0 < y1 and 0 <= z0 < z1 and max(map(abs, part)) <= LARGEST
            require(right, "parts", f"{list(part)} is not a box of x, x, y, y, z, z")
        require(0 <= self.vary <= 0.5, "vary", f"{self.vary:g} is not from 0 to 0.5")


@dataclass(frozen=True)
class Site:
    """A hall of this size (length, width, height, metres) with walls, pillars and shelves, and the
    classes of things in it."""

    size: tuple[float, float, float]
    classes: Mapping[str, SiteClass]
    shelves: int = 6

    def __post_init__(self):
        fits = all(3 <= side <= LARGEST for side in self.size)
        require(fits, "size", f"{list(self.size)} m: sides are from 3 to {LARGEST:g}")
        require(len(self.classes) > 0, "classes", "needs at least one class")
        for name in self.classes:
            require(name.split() == [name], f"classes.{name}", "a name is one word")
        require(0 <= self.shelves <= MOST, "shelves", f"{self.shelves} is not from 0 to {MOST}")


MIN_POINTS = 5  # of a labelled thing
CLEAR = 1.0  # metres around the sensor without things
TRIES = 40  # places that are tried for a thing
SHELF = (2.7, 1.1)  # length, width of a shelf, metres
THICK = 0.3  # metres, of walls


def simulate_hall(seed: int, site: Site, sensor: Sensor) -> Frame:
    """A scan from a random place in the hall of `seed`, with the boxes of the site's classes that
    have at least MIN_POINTS points; the same arguments give the same frame."""
    rng = np.random.default_rng(seed)
    hall = as_scanned(_make_hall(rng, site), 0.0, sensor)
    seen = scan(hall, 0.0, rng, sensor)
    count = np.bincount(seen.owner[seen.owner >= 0], minlength=len(hall.placed))
    objects = [
        row
        for row, (placed, points) in enumerate(zip(hall.placed, count, strict=True))
        if placed.thing.kind is not None and points >= MIN_POINTS
    ]
    things = [hall.placed[row].thing for row in objects]
    bounds = [thing.label_bounds() for thing in things]
    return Frame(
        frame_id=f"{seed:06d}",
        points=seen.points,
        boxes=boxes_at(bounds, hall.poses(0.0)[objects]),
        names=tuple(str(thing.kind) for thing in things),
        difficulty=np.zeros(len(things), np.int8),
        plane=hall.plane,
    )


def _make_hall(rng: np.random.Generator, site: Site) -> Street:
    """In the frame of a sensor with a random place and heading."""
    length, width, height = site.size
    own = rng.uniform((CLEAR, CLEAR), (max(length - CLEAR, CLEAR), max(width - CLEAR, CLEAR)))
    heading = rng.uniform(-np.pi, np.pi)
    taken = [(*own, CLEAR)]  # discs: x, y, radius
    things = [
        (_block(length, THICK, height), length / 2, -THICK / 2, 0.0),
        (_block(length, THICK, height), length / 2, width + THICK / 2, 0.0),
        (_block(width, THICK, height), -THICK / 2, width / 2, np.pi / 2),
        (_block(width, THICK, height), length + THICK / 2, width / 2, np.pi / 2),
    ]
    for _ in range(site.shelves):
        shelf = _block(*SHELF, min(rng.uniform(1.8, 4.5), height))
        things += _put(rng, site, taken, shelf, float(rng.integers(2)) * np.pi / 2)
    for name, kind in site.classes.items():
        for _ in range(int(rng.integers(kind.count[0], kind.count[1] + 1))):
            thing = _thing(rng, name, kind)
            things += _put(rng, site, taken, thing, rng.uniform(-np.pi, np.pi))
    cos, sin = np.cos(heading), np.sin(heading)
    placed = []
    for thing, x, y, turn in things:
        dx, dy = x - own[0], y - own[1]
        placed.append(
            Placed(thing, cos * dx + sin * dy, cos * dy - sin * dx, float(turn - heading))
        )
    plane = np.array([0, 0, 1, SENSOR_HEIGHT], np.float32)
    return Street(tuple(placed), flat_ground(plane), scene="hall")


def _put(
    rng: np.random.Generator, site: Site, taken: list, thing: Thing, turn: float
) -> list[tuple[Thing, float, float, float]]:
    """The thing at a random free place; an empty list in a hall that is full."""
    x0, y0, x1, y1 = thing.foot
    radius = float(np.hypot(max(-x0, x1), max(-y0, y1)))
    length, width, _ = site.size
    if 2 * radius >= min(length, width):
        raise ValueError(f"a hall of {length:g} x {width:g} m is too small for its things")
    for _ in range(TRIES):
        x, y = rng.uniform((radius, radius), (length - radius, width - radius))
        if all(np.hypot(x - a, y - b) > radius + r for a, b, r in taken):
            taken.append((x, y, radius))
            return [(thing, x, y, turn)]
    return []


def _thing(rng: np.random.Generator, name: str, kind: SiteClass) -> Thing:
    if kind.like:
        return replace(LIKE[kind.like](rng), kind=name)
    parts = np.array(kind.parts) * rng.uniform(1 - kind.vary, 1 + kind.vary)
    low, high = parts[:, ::2].min(axis=0), parts[:, 1::2].max(axis=0)
    # the origin is in the middle, so that it turns about its own centre
    parts[:, :2] -= (low[0] + high[0]) / 2
    parts[:, 2:4] -= (low[1] + high[1]) / 2
    half = (high - low) / 2
    x, y, z, top = (float(value) for value in (*half[:2], low[2], high[2]))
    rows = [tuple(part) for part in parts]
    return Thing(lambda: solids(boxes(rows, Material.PAINT)), (-x, -y, z, x, y, top), name)


def _block(length: float, width: float, height: float) -> Thing:
    """A wall or a shelf, without a label."""
    extent = upright(length, width, height)
    row = (extent[0], extent[3], extent[1], extent[4], 0.0, height)
    return Thing(lambda: solids(boxes([row], Material.CONCRETE)), extent)
