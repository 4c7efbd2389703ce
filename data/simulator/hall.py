"""A hall made up at random and scanned: walls, pillars, shelves, and things of a user's classes."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np

from data.boxes import wrap_angle
from data.frame import Frame
from data.simulator.ground import flat_ground
from data.simulator.lidar import as_scanned, scan
from data.simulator.materials import Material
from data.simulator.sensors import Sensor
from data.simulator.site import LIKE, Site, SiteClass
from data.simulator.solids import Solids, boxes, solids
from data.simulator.street import SENSOR_HEIGHT, Placed, Street
from data.simulator.things import Thing

MIN_POINTS = 5  # of a labelled thing
CLEAR = 1.0  # metres around the sensor without things
TRIES = 40  # places that are tried for a thing
SHELF = (2.7, 1.1)  # length, width of a shelf, metres
THICK = 0.3  # metres, of walls


def simulate_hall(seed: int, site: Site, sensor: Sensor) -> Frame:
    """A scan from somewhere in the hall made up from `seed`, with the boxes of the site's classes
    that have at least MIN_POINTS points; the same arguments give the same frame."""
    rng = np.random.default_rng(seed)
    hall = as_scanned(_make_hall(rng, site), 0.0, sensor)
    seen = scan(hall, 0.0, rng, sensor)
    count = np.bincount(seen.owner[seen.owner >= 0], minlength=len(hall.placed))
    poses = hall.poses(0.0)
    found, names = [], []
    for placed, points, (x, y, z, yaw) in zip(hall.placed, count, poses, strict=True):
        if placed.thing.kind is None or points < MIN_POINTS:
            continue
        low, high = placed.thing.label_bounds()
        (u, v, w), cos, sin = (low + high) / 2, np.cos(yaw), np.sin(yaw)
        centre = (x + cos * u - sin * v, y + sin * u + cos * v, z + w)
        found.append((*centre, *(high - low), wrap_angle(float(yaw))))
        names.append(placed.thing.kind)
    return Frame(
        frame_id=f"{seed:06d}",
        points=seen.points,
        boxes=np.array(found, np.float32).reshape(-1, 7),
        names=tuple(names),
        difficulty=np.zeros(len(names), np.int8),
        plane=hall.plane,
    )


def _make_hall(rng: np.random.Generator, site: Site) -> Street:
    """In the frame of a sensor that stands and looks anywhere."""
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
    """The thing where there is room for it; nowhere in a hall that is full."""
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
    return Thing(partial(_made_of, parts), (-x, -y, z, x, y, top), name)


def _made_of(parts: np.ndarray) -> Solids:
    return solids(boxes([tuple(part) for part in parts], Material.PAINT))


def _block(length: float, width: float, height: float) -> Thing:
    """A wall or a shelf, without a label."""
    extent = (-length / 2, -width / 2, 0.0, length / 2, width / 2, height)
    row = (extent[0], extent[3], extent[1], extent[4], 0.0, height)
    return Thing(lambda: solids(boxes([row], Material.CONCRETE)), extent)
