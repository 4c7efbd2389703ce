"""Trucks, buses, trams and trailers."""

from functools import partial

import numpy as np

from millisecond.data.simulator.cars import wheels
from millisecond.data.simulator.solids import (
    Hulls,
    Material,
    Rows,
    Solids,
    Thing,
    boxes,
    limbs,
    loft,
    solids,
    upright,
)
from millisecond.data.simulator.statistics import BOTTOM, SIDE_GAP, SIZES, TOP_GAP


def truck(rng: np.random.Generator) -> Thing:
    """A cab and a load: a closed box, a low tipper, a tank or a bare platform."""
    return _labelled(rng, SIZES["Truck"].draw(rng), "Truck", _truck)


def tram(rng: np.random.Generator) -> Thing:
    """Coaches with bellows between them."""
    return _labelled(rng, SIZES["Tram"].draw(rng), "Tram", _tram)


def bus(rng: np.random.Generator) -> Thing:
    """A town bus; KITTI calls it Misc."""
    size = tuple(rng.uniform((10.5, 2.45, 2.9), (12.6, 2.68, 3.4)).tolist())
    return _labelled(rng, size, "Misc", _tram)


def trailer(rng: np.random.Generator) -> Thing:
    """A caravan, a box or a low open trailer; KITTI calls it Misc."""
    size = tuple(rng.uniform((2.0, 1.2, 0.9), (5.5, 2.2, 2.6)).tolist())
    return _labelled(rng, size, "Misc", _trailer)


def _labelled(rng: np.random.Generator, box, kind: str, make) -> Thing:
    length, width, height = box
    body = (length - 2 * SIDE_GAP, width - 2 * SIDE_GAP, height + BOTTOM - TOP_GAP)
    side = width / 2 + 0.3
    return Thing(
        partial(make, body, tuple(rng.random(6).tolist())),
        (-length / 2, -side, 0.0, length / 2, side, height + BOTTOM),
        kind,
        upright(length, width, height, BOTTOM),
        stem=(length, width + 0.1),  # mirrors are above other things
    )


def _cab(front: float, depth: float, width: float, height: float, slope: float) -> Hulls:
    """A cab whose windscreen leans; glass in front and at the sides."""
    y, back = width / 2, front - depth
    levels = (0.45, 0.45 * height, 0.55 * height, 0.9 * height, height)
    noses = (front - 0.04, front, front, front - slope, front - 1.6 * slope)
    sides = (0.96, 1.0, 1.0, 0.96, 0.9)
    rings = np.array(
        [
            [(back, -y * s, z), (nose, -y * s * 0.96, z), (nose, y * s * 0.96, z), (back, y * s, z)]
            for z, nose, s in zip(levels, noses, sides, strict=True)
        ]
    )
    of = np.full((4, 4), int(Material.PAINT))
    of[2, :3] = Material.GLASS
    caps = np.full(4, int(Material.PAINT))
    return loft(rings[None], np.concatenate([of.repeat(2), caps])[None])


def _truck(size, u) -> Solids:
    length, width, height = size
    front, back, y = length / 2, -length / 2, width / 2
    depth = 1.7 + 0.7 * u[0]
    low = 0.6 <= u[4] < 0.75 or u[4] >= 0.9  # the cab is taller than the load
    cab_height = height if low else min(height, 2.5 + 1.1 * u[1])
    gap = front - depth - 0.25 - 0.3 * u[2]
    parts = [_cab(front, depth, width * 0.97, cab_height, 0.1 + 0.25 * u[3])]
    inside = (front - depth + 0.05, front - 0.9, -0.4 * width, 0.4 * width, 0.6, 0.5 * cab_height)
    parts.append(boxes([inside], Material.CLOTH))
    parts += _load(u[4], back, gap, y, height)
    parts.append(
        boxes([(back + 0.2, gap + 0.3, -0.35 * width, 0.35 * width, 0.55, 1.0)], Material.METAL)
    )
    guard = [(back + 2.2, gap - 1.2, s * y - 0.03, s * y + 0.03, 0.5, 0.9) for s in (-0.96, 0.96)]
    if gap - back > 4.5:
        parts.append(boxes(guard, Material.METAL))
    places = [front - 0.55 * depth, back + 1.2] + ([back + 2.4] if length > 8 else [])
    parts.append(wheels(places, y - 0.02, y - 0.32, 0.48))
    parts.append(_mirrors(front - 0.35, y + 0.12, cab_height))
    return solids(*parts)


def _load(kind: float, back: float, front: float, y: float, height: float) -> list[Hulls]:
    """A closed box, a low tipper, a tank or a bare platform, from back to front, 2 y wide."""
    platform = (back, front, -y, y, 0.95, 1.15)
    if kind < 0.6:
        return [boxes([(back, front, -y, y, 1.0, height)], Material.PAINT)]
    if kind < 0.75:
        rows: Rows = [platform, (front - 0.1, front, -y, y, 1.15, height * 0.85)]
        rows += [(back, front, s * y - 0.04, s * y + 0.04, 1.15, 1.7) for s in (-0.98, 0.98)]
        rows += [(back, back + 0.06, -y, y, 1.15, 1.7)]
        return [boxes(rows, Material.METAL)]
    if kind < 0.9:
        middle, high = (1.0 + height) / 2, (height - 1) / 2
        tank = (back, 0, middle, front, 0, middle, 0.95 * y, 0.95 * y, high, high)
        saddle = (back, front, -0.4 * y, 0.4 * y, 0.8, 1.05)
        return [limbs([tank], Material.METAL, 12), boxes([saddle], Material.METAL)]
    goods = (back + 1, front - 1, -0.7 * y, 0.7 * y, 1.15, min(2.2, height))
    return [boxes([platform, goods], Material.METAL)]


def _mirrors(x: float, y: float, cab_height: float) -> Hulls:
    low, high = 0.55 * cab_height, 0.8 * cab_height
    rows: Rows = [(x, x + 0.12, s * y - 0.1, s * y + 0.1, low, high) for s in (-1, 1)]
    return boxes(rows, Material.PLASTIC)


def _tram(size, u) -> Solids:
    """Coaches of at most 9 m, glass all along over the waist, seats inside."""
    length, width, height = size
    count = max(1, int(np.ceil(length / 12.7)))
    each = length / count
    y, waist, roof = width / 2, 0.3 * height, 0.85 * height
    hulls, inside, posts = [], [], []
    for i in range(count):
        x0 = -length / 2 + i * each + (0.3 if i else 0)
        x1 = -length / 2 + (i + 1) * each - (0.3 if i < count - 1 else 0)
        slope = 0.1 + 0.5 * u[0]
        back, front = (slope if i == 0 else 0), (slope if i == count - 1 else 0)
        rings = []
        for z, in_ in ((0.25, 0.4), (waist, 0.0), (roof, 0.7), (height, 1.3)):
            a, b, s = x0 + back * in_, x1 - front * in_, 1.0 if z < height else 0.85
            rings.append([(a, -y * s, z), (b, -y * s, z), (b, y * s, z), (a, y * s, z)])
        hulls.append(rings)
        seats = np.arange(x0 + 1.2, x1 - 1.2, 1.6)
        inside += [
            (x, x + 0.12, s * 0.3 * width - 0.4, s * 0.3 * width + 0.4, waist, waist + 0.45)
            for x in seats.tolist()
            for s in (-1, 1)
        ]
        inside.append((x0 + 0.3, x1 - 0.3, -0.9 * y, 0.9 * y, 0.3, waist))
        pitch = np.linspace(x0 + back, x1 - front, max(3, int(each / 1.9)))
        posts += [
            (x - 0.08, x + 0.08, s * y - 0.02, s * y + 0.02, waist, roof)
            for x in pitch[1:-1].tolist()
            for s in (-0.985, 0.985)
        ]
        if i:
            inside.append((x0 - 0.6, x0, -0.9 * y, 0.9 * y, 0.4, 0.97 * height))
    of = np.full((3, 4), int(Material.PAINT))
    of[1] = Material.GLASS
    caps = np.full(4, int(Material.PAINT))
    hull = loft(np.array(hulls), np.tile(np.concatenate([of.repeat(2), caps]), (count, 1)))
    places = [-length / 2 + 2.2, length / 2 - 2.4]
    return solids(
        hull,
        boxes(inside, Material.CLOTH),
        boxes(posts, Material.PAINT),
        wheels(places, y - 0.02, y - 0.32, 0.42),
    )


def _trailer(size, u) -> Solids:
    length, width, height = size
    back, front, y = -length / 2, length / 2, width / 2
    bar = min(1.1, 0.3 * length)
    body = (back, front - bar, -y, y, 0.45, height)
    drawbar = (front - bar, front, -0.05, 0.05, 0.4, 0.5)
    return solids(
        boxes([body, drawbar], (Material.PAINT, Material.METAL)),
        wheels([back + 0.45 * (length - bar)], y - 0.02, y - 0.32, 0.3),
    )
