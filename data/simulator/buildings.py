"""Houses, sheds, garden walls, fences and guard rails. Length lies along x."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

from millisecond.data.simulator.solids import (
    Material,
    Rows,
    Solids,
    Thing,
    boxes,
    limbs,
    solids,
    volumes,
)

FACE = 2.0  # from the axis of a house to its front, metres; the front looks to -y
DEEP = 1.2  # from the front to the wall behind the glass, metres


def house(rng: np.random.Generator) -> Thing:
    """A front with doors, windows, ledges, sometimes balconies, steps and an awning; a flat roof
    or gables.
    """
    length, height = rng.uniform(7.0, 20.0), rng.uniform(3.2, 13.0)
    make = partial(_house, length, height, tuple(rng.random(8).tolist()), rng.random(16))
    return Thing(make, (-length / 2, -FACE - 1.3, 0.0, length / 2, FACE + 1, height + 3))


class _Front(NamedTuple):
    """Where the windows of a front are, metres."""

    half: float  # of its length
    height: float
    storey: float
    storeys: int
    bay: float
    bays: int
    window: float  # its width
    reveal: float  # its depth
    sill: float  # over the floor
    lintel: float

    @classmethod
    def of(cls, length: float, height: float, u: Sequence[float]) -> _Front:
        storey, bay = 2.7 + 0.6 * u[1], 2.0 + 1.4 * u[2]
        bays = max(2, int(length / bay))
        bay = length / bays
        return cls(
            half=length / 2,
            height=height,
            storey=storey,
            storeys=max(1, int(height / storey)),
            bay=bay,
            bays=bays,
            window=bay * (0.35 + 0.3 * u[3]),
            reveal=0.12 + 0.15 * u[0],
            sill=0.75 + 0.3 * u[4],
            lintel=storey - 0.45,
        )


def _house(length, height, u, v) -> Solids:
    y, half, front = -FACE, length / 2, _Front.of(length, height, u)
    # Rooms behind the glass: a wall some way in; piers and bands in front of it.
    rows: Rows = [(-half, half, y + DEEP, FACE, 0, height)]
    rows += _piers(front) + _bands(front)
    glass, ledges = _windows(front, u, v)
    rows += ledges + _entrance(-half + front.bay * (int(v[0] * front.bays) + 0.5))
    if u[7] < 0.15:
        rows.append((-half + 0.5, half - 0.5, y - 1.3, y, 2.7, 2.85))  # an awning
    gables: Rows = []
    if v[1] < 0.6:
        ridge = height - 0.1
        gables = [(-half, -0.1, ridge, half, -0.1, ridge, FACE + 0.4, FACE + 0.4, 2.4, 2.4)]
    elif v[2] < 0.5:
        rows.append((-half, half, y - 0.4, FACE, height - 0.2, height))
    parts = [boxes(rows, Material.CONCRETE), boxes(glass, Material.GLASS)]
    parts += [limbs(gables, Material.CONCRETE, 4)] if gables else []
    return solids(*parts)


def _piers(front: _Front) -> Rows:
    """The wall between the windows of a storey."""
    half, y, wide = front.half, -FACE, (front.bay - front.window) / 2
    edges = (-half + front.bay * np.arange(front.bays + 1)).tolist()
    return [
        (max(x - wide, -half), min(x + wide, half), y, y + DEEP, 0, front.height) for x in edges
    ]


def _bands(front: _Front) -> Rows:
    """The wall between the windows of one storey and the next."""
    half, y = front.half, -FACE
    rows: Rows = []
    for i in range(front.storeys + 1):
        bottom = i * front.storey - (front.storey - front.lintel) if i else 0.0
        top = min(i * front.storey + front.sill, front.height)
        if i < front.storeys or bottom < front.height:
            top = front.height if i == front.storeys else top
            rows.append((-half, half, y + 0.01, y + DEEP, max(bottom, 0), top))
    return rows


def _windows(front: _Front, u: Sequence[float], v: np.ndarray) -> tuple[Rows, Rows]:
    """The panes, and the balconies or ledges below them."""
    half, y = front.half, -FACE
    glass: Rows = []
    ledges: Rows = []
    for b in range(front.bays):
        x0 = -half + b * front.bay + (front.bay - front.window) / 2
        x1 = x0 + front.window
        for i in range(front.storeys):
            z = i * front.storey
            pane = y + front.reveal
            glass.append((x0, x1, pane, pane + 0.03, z + front.sill, z + front.lintel))
            if u[5] < 0.35 and i > 0 and v[b % 16] < 0.5:
                left, right = max(x0 - 0.4, -half), min(x1 + 0.4, half)
                ledges.append((left, right, y - 1.1, y, z - 0.1, z + 0.1))
                ledges.append((left, right, y - 1.1, y - 1.05, z + 0.1, z + 1.0))
            elif u[6] < 0.5:
                left, right, z = max(x0 - 0.1, -half), min(x1 + 0.1, half), z + front.sill
                ledges.append((left, right, y - 0.12, y, z - 0.08, z))
    return glass, ledges


def _entrance(x: float) -> Rows:
    """A door and the two steps before it."""
    y = -FACE
    return [
        (x - 0.9, x + 0.9, y - 0.9, y, 0, 0.17),
        (x - 0.8, x + 0.8, y - 0.5, y, 0.17, 0.34),
        (x - 0.55, x + 0.55, y + 0.1, y + 0.2, 0.3, 2.2),
    ]


def shed(rng: np.random.Generator) -> Thing:
    """A garage, a kiosk or a plain hall."""
    length, height = rng.uniform(3.0, 9.0), rng.uniform(2.2, 4.5)
    make = partial(_shed, length, height)
    return Thing(make, (-length / 2, -FACE - 0.1, 0.0, length / 2, FACE, height))


def wall(rng: np.random.Generator) -> Thing:
    """A garden wall, sometimes with a railing on it."""
    length, height = rng.uniform(3.0, 12.0), rng.uniform(0.5, 2.2)
    make = partial(_wall, length, height, bool(height < 1.2 and rng.random() < 0.5))
    return Thing(make, (-length / 2, -0.2, 0.0, length / 2, 0.2, height + 0.9))


def fence(rng: np.random.Generator) -> Thing:
    """Boards, bars between posts, or wire mesh."""
    length, height = rng.uniform(3.0, 12.0), rng.uniform(0.8, 2.0)
    kind = ("boards", "bars", "wire", "rails")[int(rng.integers(4))]
    make = partial(_fence, length, height, kind, float(rng.uniform(0.1, 0.22)))
    return Thing(make, (-length / 2, -0.08, 0.0, length / 2 + 0.15, 0.08, height + 0.1))


def guard_rail(rng: np.random.Generator) -> Thing:
    """A steel beam on posts, as beside motorways; sometimes two beams."""
    make = partial(_guard_rail, bool(rng.random() < 0.4))
    return Thing(make, (-4.0, -0.2, 0.0, 4.0, 0.2, 0.8))


def concrete_barrier(rng: np.random.Generator) -> Thing:
    """A concrete step barrier of a motorway's median."""
    return Thing(partial(_barrier, rng.uniform(0.8, 1.0)), (-4.0, -0.3, 0.0, 4.0, 0.3, 1.0))


def noise_barrier(rng: np.random.Generator) -> Thing:
    """A tall wall of panels between steel posts."""
    height = rng.uniform(2.5, 5.0)
    return Thing(partial(_noise_barrier, height), (-6.0, -0.2, 0.0, 6.0, 0.2, height))


def overpass(rng: np.random.Generator, width: float) -> Thing:
    """A bridge over the road, or a short tunnel: abutments and a deck; the road lies along x."""
    length, clear = rng.uniform(4.0, 25.0), rng.uniform(4.3, 5.5)
    half, reach = width / 2, width / 2 + 8
    rows: Rows = [
        (-length / 2, length / 2, -reach, -half, -2, clear),
        (-length / 2, length / 2, half, reach, -2, clear),
        (-length / 2, length / 2, -reach, reach, clear, clear + 1.2),
    ]
    make = partial(_bridge, rows)
    return Thing(make, (-length / 2, -reach, -2.0, length / 2, reach, clear + 1.2))


def _bridge(rows: Rows) -> Solids:
    return solids(boxes(rows, Material.CONCRETE))


def stairs(rng: np.random.Generator) -> Thing:
    """Outdoor stairs with a handrail, up to a raised entrance."""
    make = partial(_stairs, int(rng.integers(3, 9)), rng.uniform(1.2, 3.0))
    return Thing(make, (-1.6, -1.4, 0.0, 1.6, 1.4, 2.6))


def _shed(length, height) -> Solids:
    half = length / 2
    gates = [
        (x, x + 2.3, -FACE - 0.06, -FACE, 0.05, 2.1)
        for x in np.arange(-half + 0.3, half - 2.4, 2.8).tolist()
    ]
    body = boxes([(-half, half, -FACE, FACE, 0, height)], Material.CONCRETE)
    return solids(body, *([boxes(gates, Material.METAL)] if gates else []))


def _wall(length, height, railing: bool) -> Solids:
    half = length / 2
    parts = [boxes([(-half, half, -0.13, 0.13, 0, height)], Material.CONCRETE)]
    if railing:
        bars = [
            (x, x + 0.03, -0.015, 0.015, height, height + 0.8)
            for x in np.arange(-half, half - 0.03, 0.4).tolist()
        ]
        bars.append((-half, half, -0.03, 0.03, height + 0.78, height + 0.85))
        parts.append(boxes(bars, Material.METAL))
    return solids(*parts)


def _fence(length, height, kind: str, pitch: float) -> Solids:
    half = length / 2
    posts = np.arange(-half + 0.06, half, 2.0).tolist()
    rows: Rows = [(x - 0.05, x + 0.05, -0.05, 0.05, 0, height + 0.05) for x in posts]
    if kind == "wire":
        rows.append((-half, half, -0.02, 0.02, height - 0.04, height))
        count = max(1, int(length / 2))
        each = length / count
        net = [
            (-half + each * (i + 0.5), 0, height / 2, each / 2, 0.015, height / 2)
            for i in range(count)
        ]
        # About a quarter of the pulses meet a wire.
        return solids(boxes(rows, Material.METAL), volumes=volumes(net, False, 0.1, Material.METAL))
    if kind == "rails":
        rows += [(-half, half, -0.03, 0.03, z, z + 0.12) for z in (0.35 * height, 0.75 * height)]
        return solids(boxes(rows, Material.WOOD))
    wide, of = (0.6 * pitch, Material.WOOD) if kind == "boards" else (0.025, Material.METAL)
    rows += [
        (x, x + wide, -0.02, 0.02, 0.08, height) for x in np.arange(-half, half, pitch).tolist()
    ]
    rows += [(-half, half, 0.02, 0.05, z, z + 0.06) for z in (0.2, 0.85 * height)]
    return solids(boxes(rows, of))


def _guard_rail(double: bool) -> Solids:
    rows: Rows = [(x - 0.05, x + 0.05, -0.08, 0.08, 0, 0.72) for x in (-3, -1, 1, 3)]
    beams = (-0.12, 0.12) if double else (-0.12,)
    rows += [(-4, 4, y - 0.04, y + 0.04, z, z + 0.12) for y in beams for z in (0.44, 0.6)]
    rows += [(-4, 4, y * 0.75 - 0.02, y * 0.75 + 0.02, 0.46, 0.7) for y in beams]
    return solids(boxes(rows, Material.METAL))


def _barrier(height) -> Solids:
    rows: Rows = [(-4, 4, -0.28, 0.28, 0, 0.25), (-4, 4, -0.13, 0.13, 0.25, height)]
    return solids(boxes(rows, Material.CONCRETE))


def _noise_barrier(height) -> Solids:
    rows: Rows = [(-6, 6, -0.06, 0.06, 0, height)]
    rows += [(x - 0.1, x + 0.1, -0.15, 0.15, 0, height) for x in (-5.9, -2, 2)]
    return solids(boxes(rows, Material.CONCRETE))


def _stairs(steps: int, width: float) -> Solids:
    y = width / 2 * 0.9
    rows: Rows = [(-1.5 + 0.3 * i, 1.5, -y, y, 0.16 * i, 0.16 * (i + 1)) for i in range(steps)]
    top = 0.16 * steps
    rail = [
        (-1.5, -y, 0.95, -1.5 + 0.3 * steps, -y, top + 0.95, 0.025, 0.025),
        (-1.45, -y, 0, -1.45, -y, 0.95, 0.025, 0.025),
    ]
    return solids(boxes(rows, Material.CONCRETE), limbs(rail, Material.METAL, 4))
