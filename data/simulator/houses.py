"""Houses: a front in which windows lie in bays and storeys. Length lies along x."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

from data.simulator.materials import Material
from data.simulator.solids import Rows, Solids, boxes, limbs, solids
from data.simulator.things import Thing

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
