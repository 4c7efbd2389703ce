"""Trees, bushes and hedges: volumes into which pulses go."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np

from millisecond.data.simulator.solids import (
    Material,
    Rows,
    Solids,
    Thing,
    joined,
    limbs,
    solids,
    tube,
    upright,
    volumes,
)


def tree(rng: np.random.Generator) -> Thing:
    """A trunk, branches and a crown of several overlapping balls of leaves."""
    return _tree(rng, rng.uniform(1.9, 3.5), rng.uniform(1.2, 4.0))


def young_tree(rng: np.random.Generator) -> Thing:
    """A thin trunk with a small crown, mostly with something at its foot, see `_foot`."""
    thing = _tree(rng, rng.uniform(1.5, 2.8), rng.uniform(0.6, 1.1))
    foot = partial(_foot, int(rng.integers(6)), *rng.random(6).tolist())
    return replace(thing, make=partial(_planted, thing.make, foot), stem=(1.3, 1.3))


def cone(rng: np.random.Generator) -> Thing:
    """A slim conifer or a clipped one, about as tall as a person."""
    radius, height, path = rng.uniform((0.25, 1.1, 0.02), (0.55, 2.8, 0.2)).tolist()
    make = partial(_cone, radius, height, path, rng.uniform(0.1, 0.8))
    return Thing(make, upright(2 * radius, 2 * radius, height))


def fir(rng: np.random.Generator) -> Thing:
    """A conifer with branches down to the ground."""
    radius, height = rng.uniform(0.9, 2.0), rng.uniform(4.0, 10.0)
    path = rng.uniform(0.1, 0.4)
    return Thing(partial(_fir, radius, height, path), upright(2 * radius, 2 * radius, height))


def bush(rng: np.random.Generator) -> Thing:
    """A shrub, often about as tall and wide as a person."""
    across, height = rng.uniform(0.3, 1.0), rng.uniform(0.5, 2.2)
    make = partial(_bush, across, height, rng.uniform(0.05, 0.35), rng.random((4, 4)))
    return Thing(make, (-across, -across, 0.0, across, across, height))


def hedge(rng: np.random.Generator) -> Thing:
    """A clipped or a wild hedge; its length lies along x."""
    length, width, height = rng.uniform((3.0, 0.5, 0.7), (14.0, 1.2, 2.3))
    make = partial(_hedge, length, width, height, rng.uniform(0.05, 0.3), rng.random((16, 3)))
    return Thing(make, (-length / 2, -0.7 * width, 0.0, length / 2, 0.7 * width, height + 0.25))


def thicket(rng: np.random.Generator) -> Thing:
    """Bushes and small trees grown together, as along country roads; its length lies along x."""
    length, deep, height = rng.uniform((5.0, 1.2, 1.5), (14.0, 2.2, 6.0))
    make = partial(_thicket, length, deep, height, rng.uniform(0.15, 0.6), rng.random((14, 6)))
    return Thing(make, (-length / 2 - 1.4, -deep, -0.1, length / 2 + 1.4, deep, height))


def tall_grass(rng: np.random.Generator) -> Thing:
    """Grass and weeds at the edge of the road; its length lies along x."""
    length, width, height = rng.uniform((3.0, 0.4, 0.15), (9.0, 0.7, 0.7))
    make = partial(_grass, length, width, height, rng.uniform(0.2, 0.5), rng.random((8, 3)))
    return Thing(make, (-length / 2, -width, -height, length / 2, width, height))


def _tree(rng: np.random.Generator, bare: float, across: float) -> Thing:
    trunk = 0.05 + 0.09 * across * rng.uniform(0.6, 1.4)
    height = bare + across * rng.uniform(1.6, 2.6)
    make = partial(
        _crowned, bare, across, height, trunk, rng.uniform(0.15, 0.6), rng.random((6, 4))
    )
    return Thing(make, (-across, -across, 0.0, across, across, height), stem=(0.7, 0.7))


def _crowned(bare, across, height, trunk, path, u) -> Solids:
    tall = height - bare
    rows, branches = [], []
    for a, b, c, d in u.tolist():
        r = across * (0.35 + 0.25 * a)
        x, y = (across - r) * (2 * b - 1), (across - r) * (2 * c - 1)
        half = min(r * (0.8 + 0.6 * d), tall / 2)
        z = bare + half + (tall - 2 * half) * d
        rows.append((x, y, z, r, r, half))
        branches.append((0, 0, 0.85 * bare, 0.8 * x, 0.8 * y, z, 0.35 * trunk, 0.02))
    rods = [(0, 0, 0, 0.03 * (u[0, 0] - 0.5), 0, bare + 0.3 * tall, trunk, 0.6 * trunk)]
    return solids(
        limbs(rods, Material.WOOD, 8),
        limbs(branches[:4], Material.WOOD, 4),
        volumes=volumes(rows, True, path),
    )


def _planted(tree: Callable[[], Solids], foot: Callable[[], Solids]) -> Solids:
    return joined(tree(), foot())


def _foot(kind: int, a: float, b: float, c: float, d: float, e: float, f: float) -> Solids:
    """Around a trunk: stakes with a bar, a guard of rods, a growth, a sack of water, or nothing."""
    across, high = 0.15 + 0.4 * a, 0.5 + 1.4 * b
    rows: Rows
    if kind < 2:  # the stakes stand upright or lean to the trunk
        count, top = 2 + int(2.9 * c), across * (1 if d < 0.6 else 0.2)
        turns = [2 * np.pi * (e + k / count) for k in range(count)]
        around = [(float(np.cos(turn)), float(np.sin(turn))) for turn in turns]
        rows = [(across * x, across * y, 0, top * x, top * y, high, 0.04, 0.04) for x, y in around]
        (x, y), (u, v) = (0.9 * top * np.array(around[:2])).tolist()
        rows.append((x, y, 0.9 * high, u, v, 0.9 * high, 0.03, 0.03))
        return solids(limbs(rows, Material.WOOD, 4))
    if kind == 2:
        turns = [np.pi * k / 4 for k in range(8)]
        around = [(0.6 * across * float(np.cos(t)), 0.6 * across * float(np.sin(t))) for t in turns]
        rows = [(x, y, 0, x, y, 0.8 + 0.7 * high, 0.012, 0.012) for x, y in around]
        return solids(limbs(rows, Material.METAL, 4))
    if kind == 3:
        low, wide = 0.15 + 0.4 * b, 0.15 + 0.6 * across
        rows = [(0.1 * (c - 0.5), 0.1 * (d - 0.5), low, wide, wide, low)]
        rows.append(
            (0.2 * (e - 0.5), 0.2 * (f - 0.5), 1.4 * low, 0.6 * wide, 0.5 * wide, 1.4 * low)
        )
        return solids(volumes=volumes(rows, True, 0.05 + 0.3 * e))
    if kind == 4:
        row = tube((0, 0, 0, 0.3, 0.3), (0, 0, 0.4 * high, 0.22, 0.22), (0, 0, high, 0.06, 0.06))
        return solids(limbs([row], Material.PLASTIC, 8))
    return solids()


def _cone(radius, height, path, taper) -> Solids:
    rows = []
    for step in (0.0, 0.33, 0.66, 1.0):
        r, half = radius * (1 - taper * step), 0.5 * height * (0.55 - 0.2 * step)
        rows.append((0, 0, half + step * (height - 2 * half), r, r, half))
    return solids(volumes=volumes(rows, True, path))


def _fir(radius, height, path) -> Solids:
    steps = np.linspace(0.0, 1.0, 5)[:-1].tolist()
    rows = []
    for step in steps:
        half = height * 0.17
        middle = 0.3 + half + step * (height - 0.3 - 2 * half) * 1.3
        r = radius * (1 - 0.9 * step)
        rows.append((0, 0, min(middle, height - half), r, r, half))
    rod = (0, 0, 0, 0, 0, 0.8 * height, 0.15, 0.05)
    return solids(limbs([rod], Material.WOOD, 6), volumes=volumes(rows, True, path))


def _bush(across, height, path, u) -> Solids:
    rows = []
    for a, b, c, d in u.tolist():
        r = across * (0.5 + 0.35 * a)
        half = height * (0.25 + 0.2 * d)
        z = half + (height - 2 * half) * a
        rows.append(((across - r) * (2 * b - 1), (across - r) * (2 * c - 1), z, r, r, half))
    return solids(volumes=volumes(rows, True, path))


def _hedge(length, width, height, path, u) -> Solids:
    """Boxes end to end with balls along the top, so that no face is flat."""
    count = max(1, int(np.ceil(length / 2.5)))
    each = length / count
    xs = (-length / 2 + each * (np.arange(count) + 0.5)).tolist()
    low = 0.88 * height
    square = [
        (x, 0.1 * (a - 0.5) * width, low / 2, each / 2, width / 2, low / 2)
        for x, (a, _, _) in zip(xs, u.tolist(), strict=False)
    ]
    lump = 0.4 * each, 0.55 * width, 0.22 * height
    lumps = [
        (x + each * (a - 0.5) * 0.2, 0.3 * (b - 0.5) * width, low * (0.75 + 0.25 * c), *lump)
        for x, (a, b, c) in zip(xs, u[::-1].tolist(), strict=False)
    ]
    parts = volumes(square, False, path), volumes(lumps, True, path)
    return joined(*(solids(volumes=part) for part in parts))


def _thicket(length, deep, height, path, u) -> Solids:
    rows, stems = [], []
    for a, b, c, d, e, f in u.tolist():
        tall = height * (0.35 + 0.65 * a)
        r = min(0.5 + 0.9 * b, deep * 0.8)
        half = tall * (0.3 + 0.2 * c)
        x, y = length * (d - 0.5), (deep - r) * (2 * e - 1)
        rows.append((x, y, tall - half, r, r, half))
        stems.append((x, y, 0, x + 0.3 * (f - 0.5), y, tall - half, 0.05, 0.03))
    return solids(limbs(stems, Material.WOOD, 4), volumes=volumes(rows, True, path))


def _grass(length, width, height, path, u) -> Solids:
    xs = np.linspace(-length / 2, length / 2, 9)[:-1] + length / 16
    rows = []
    for x, (a, b, c) in zip(xs.tolist(), u.tolist(), strict=True):
        half = length / 16, width * (0.4 + 0.4 * b), height * (0.5 + 0.5 * c)
        rows.append((x, 0.4 * width * (a - 0.5), 0.0, *half))
    return solids(volumes=volumes(rows, True, path))
