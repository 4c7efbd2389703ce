"""Things on pavements and verges: posts, signs, lights, bins, benches, shelters, cabinets."""

from functools import partial

import numpy as np

from millisecond.data.simulator.solids import (
    Material,
    Rows,
    Solids,
    Thing,
    boxes,
    limbs,
    solids,
    tube,
    upright,
)

# Things that a scan may take for somebody: height and radius of rings, metres.
TURNED = (
    ((0, 0.14), (0.1, 0.14), (0.12, 0.1), (0.65, 0.1), (0.72, 0.13), (0.85, 0.04)),  # hydrant
    ((0, 0.04), (1.0, 0.04), (1.05, 0.12), (1.5, 0.16), (2.2, 0.1), (2.5, 0.02)),  # folded parasol
    ((0, 0.05), (1.05, 0.05), (1.07, 0.14), (1.35, 0.17), (1.5, 0.14), (1.55, 0.04)),  # meter
    ((0, 0.22), (0.4, 0.28), (0.42, 0.1), (0.7, 0.33), (1.2, 0.28), (1.8, 0.03)),  # tree in a tub
    ((0, 0.2), (0.2, 0.28), (0.5, 0.3), (0.8, 0.2), (0.92, 0.08), (1.1, 0.14)),  # full sack
    ((0, 0.3), (0.5, 0.26), (0.52, 0.2), (1.3, 0.24), (1.5, 0.1), (1.75, 0.12)),  # statue
)


def lamp(rng: np.random.Generator) -> Thing:
    """A lamp post, half of the time with an arm over the road."""
    height, arm = rng.uniform(4.0, 9.0), rng.uniform(0.8, 2.2) if rng.random() < 0.5 else 0.0
    make = partial(_lamp, height, arm, rng.uniform(0.06, 0.12))
    return Thing(make, (-0.25, -max(arm, 0.25), 0.0, 0.25, 0.25, height + 0.2), stem=(0.5, 0.5))


def sign(rng: np.random.Generator) -> Thing:
    """One or two traffic signs on a post, facing along the street."""
    make = partial(_sign, rng.uniform(1.9, 2.6), rng.uniform(0.3, 0.45), int(rng.integers(1, 3)))
    return Thing(make, (-0.1, -0.5, 0.0, 0.1, 0.5, 4.0), stem=(0.6, 0.6))


def big_sign(rng: np.random.Generator) -> Thing:
    """A direction sign on two posts."""
    width, bottom = rng.uniform(1.5, 4.0), rng.uniform(0.8, 2.2)
    make = partial(_big_sign, width, bottom, rng.uniform(0.8, 2.0))
    return Thing(make, (-0.1, -width / 2, 0.0, 0.1, width / 2, bottom + 2.0))


def gantry(rng: np.random.Generator) -> Thing:
    """A sign bridge over a motorway's half; its posts stand at both ends of y."""
    return Thing(_gantry, (-0.3, -5.5, 0.0, 0.3, 5.5, 8.0))


def traffic_light(rng: np.random.Generator) -> Thing:
    """Lights on a post, sometimes more on an arm over the road."""
    arm = rng.uniform(2.0, 4.5) if rng.random() < 0.4 else 0.0
    return Thing(
        partial(_traffic_light, arm), (-0.3, -max(arm, 0.3), 0.0, 0.3, 0.3, 6.2), stem=(0.6, 0.6)
    )


def bollard(rng: np.random.Generator) -> Thing:
    """A post about as high as a child."""
    radius, height = rng.uniform(0.05, 0.18), rng.uniform(0.6, 1.2)
    return Thing(partial(_post, radius, height, Material.METAL), upright(0.4, 0.4, height))


def delineator(rng: np.random.Generator) -> Thing:
    """The white post of a country road."""
    return Thing(partial(_post, 0.06, 1.0, Material.PLASTIC), upright(0.15, 0.15, 1.0))


def bin_box(rng: np.random.Generator) -> Thing:
    """A wheeled bin, a litter bin or a cabinet."""
    length, width, height = rng.uniform((0.4, 0.35, 0.8), (1.4, 0.7, 1.5)).tolist()
    return Thing(partial(_cabinet, length, width, height), upright(length, width, height))


def column(rng: np.random.Generator) -> Thing:
    """An advertising column, a thick pillar or a telephone box: of a person's height or more."""
    radius, height = rng.uniform(0.2, 0.65), rng.uniform(1.5, 3.4)
    make = partial(_post, radius, height, Material.CONCRETE)
    return Thing(make, upright(2 * radius, 2 * radius, height))


def pole(rng: np.random.Generator) -> Thing:
    """A pole of any height with a foot, and boxes or boards on it below a person's height."""
    radius, height = rng.uniform(0.025, 0.14), rng.uniform(1.6, 7.0)
    kind, count, u = int(rng.integers(4)), int(rng.integers(0, 3)), rng.random((3, 6))
    make = partial(_pole, radius, height, kind, u[: 1 + count])
    return Thing(make, upright(1.0, 1.0, max(height, 2.3)), stem=(0.9, 0.9))


def poles(rng: np.random.Generator) -> Thing:
    """Two or three poles beside each other, sometimes with a bar: a stand, a barrier."""
    count, apart, bar = int(rng.integers(2, 4)), rng.uniform(0.25, 1.2), bool(rng.random() < 0.5)
    radius, height = rng.uniform(0.02, 0.08), rng.uniform(0.8, 3.0)
    make = partial(_poles, count, apart, bar, radius, height)
    half = (count - 1) * apart / 2 + 0.1
    return Thing(make, upright(2 * half, 0.2, height + 0.1))


def person_like(rng: np.random.Generator) -> Thing:
    """A thing of a person's size, see `TURNED`."""
    high, wide = rng.uniform(0.85, 1.15), rng.uniform(0.8, 1.25)
    rings = TURNED[int(rng.integers(len(TURNED)))]
    row = tube(*((0.0, 0.0, high * z, wide * r, wide * r) for z, r in rings))
    radius = wide * max(r for _, r in rings)
    make = partial(solids, limbs([row], Material.PLASTIC, 8))
    return Thing(make, upright(2 * radius, 2 * radius, high * rings[-1][0]))


def bench(rng: np.random.Generator) -> Thing:
    """A bench, nearly always with a back."""
    return Thing(
        partial(_bench, rng.uniform(1.4, 2.0), bool(rng.random() < 0.8)), upright(2, 0.7, 0.95)
    )


def table(rng: np.random.Generator) -> Thing:
    """A table of a street cafe with empty chairs, sometimes a parasol."""
    make = partial(_table, bool(rng.random() < 0.3), int(rng.integers(0, 4)))
    return Thing(make, upright(2.4, 2.4, 2.6))


def shelter(rng: np.random.Generator) -> Thing:
    """A bus shelter: a roof on posts, panes of glass, a bench; open to -y."""
    return Thing(partial(_shelter, rng.uniform(2.5, 4.5)), (-2.3, -0.8, 0.0, 2.3, 0.8, 2.6))


def container(rng: np.random.Generator) -> Thing:
    """A skip, a bottle bank or a builder's cabin."""
    length, width, height = rng.uniform((1.2, 1.1, 1.2), (5.0, 2.2, 2.6)).tolist()
    return Thing(partial(_cabinet, length, width, height), upright(length, width, height))


def _post(radius: float, height: float, material: Material) -> Solids:
    return solids(limbs([(0, 0, 0, 0, 0, height, radius, 0.9 * radius)], material, 8))


def _pole(radius: float, height: float, kind: int, u: np.ndarray) -> Solids:
    (a, b, *_), *hung = u.tolist()
    parts = [limbs([(0, 0, 0, 0, 0, height, radius, 0.8 * radius)], Material.METAL, 8)]
    wide, high = radius + 0.05 + 0.25 * a, 0.2 + 0.8 * b
    if kind == 0:
        row = tube((0, 0, 0, wide, wide), (0, 0, high, radius, radius))
        parts.append(limbs([row], Material.CONCRETE, 8))
    elif kind == 1:
        parts.append(boxes([(-wide, wide, -wide, wide, 0, high)], Material.CONCRETE))
    rows: Rows = []
    for x, y, length, deep, tall, z in hung:
        half, low = (0.1 + 0.25 * length) / 2, 0.3 + 1.2 * z
        side, before = (0.2 * (y - 0.5), radius + 0.01) if x < 0.6 else (0.0, -0.1)
        behind, top = before + 0.02 + 0.28 * deep, low + 0.2 + 0.6 * tall
        rows.append((before, behind, side - half, side + half, low, top))
    if rows:
        parts.append(boxes(rows, Material.PLASTIC))
    return solids(*parts)


def _poles(count: int, apart: float, bar: bool, radius: float, height: float) -> Solids:
    first = -(count - 1) * apart / 2
    places = [first + k * apart for k in range(count)]
    rods: Rows = [(x, 0, 0, x, 0, height, radius, radius) for x in places]
    if bar:
        rods += [
            (first, 0, share * height, -first, 0, share * height, radius, radius)
            for share in (0.5, 1)
        ]
    return solids(limbs(rods, Material.METAL))


def _cabinet(length: float, width: float, height: float) -> Solids:
    x, y = length / 2, width / 2
    rows: Rows = [
        (-0.95 * x, 0.95 * x, -0.95 * y, 0.95 * y, 0, 0.93 * height),
        (-x, x, -y, y, 0.9 * height, height),
    ]
    return solids(boxes(rows, Material.PLASTIC))


def _lamp(height: float, arm: float, radius: float) -> Solids:
    rods: Rows = [(0, 0, 0, 0, 0, height, radius, 0.6 * radius)]
    head = (-0.15, 0.15, -0.25, 0.25, height - 0.1, height + 0.1)
    if arm:
        rods.append((0, 0, height - 0.2, 0, -arm, height, 0.04, 0.03))
        head = (-0.12, 0.12, -arm, -arm + 0.6, height, height + 0.12)
    return solids(limbs(rods, Material.METAL), boxes([head], Material.METAL))


def _sign(bottom: float, half: float, count: int) -> Solids:
    rows: Rows = [
        (-0.03, 0.0, -half, half, bottom + i * 0.7, bottom + i * 0.7 + 0.65) for i in range(count)
    ]
    rod = (0.03, 0, 0, 0.03, 0, bottom + 0.7 * count, 0.035, 0.035)
    return solids(boxes(rows, Material.SIGN), limbs([rod], Material.METAL))


def _big_sign(width: float, bottom: float, height: float) -> Solids:
    y = width / 2
    rods: Rows = [
        (0.05, s * 0.7 * y, 0, 0.05, s * 0.7 * y, bottom + height, 0.05, 0.05) for s in (-1, 1)
    ]
    return solids(
        boxes([(-0.04, 0, -y, y, bottom, bottom + height)], Material.SIGN),
        limbs(rods, Material.METAL),
    )


def _gantry() -> Solids:
    y = 5.5
    rows: Rows = [(-0.15, 0.15, at - 0.15, at + 0.15, 0, 6.8) for at in (-y + 0.2, y - 0.2)]
    rows += [(-0.15, 0.15, -y, y, 6.2, 6.6)]
    sides = ((-0.8 * y, -0.1 * y), (0.1 * y, 0.8 * y))
    panels: Rows = [(-0.25, -0.18, *ends, 5.2, 7.6) for ends in sides]
    return solids(boxes(rows, Material.METAL), boxes(panels, Material.SIGN))


def _traffic_light(arm: float) -> Solids:
    rods: Rows = [(0, 0, 0, 0, 0, 5.6 if arm else 3.3, 0.07, 0.06)]
    rows: Rows = [(-0.2, 0.0, -0.15, 0.15, 2.2, 3.1)]
    if arm:
        rods.append((0, 0, 5.5, 0, -arm, 5.6, 0.05, 0.04))
        rows.append((-0.2, 0.0, -arm, -arm + 0.3, 5.1, 6.0))
    return solids(limbs(rods, Material.METAL), boxes(rows, Material.PLASTIC))


def _bench(length: float, back: bool) -> Solids:
    x = length / 2
    rows: Rows = [(-x, x, -0.22, 0.22, 0.4, 0.46)]
    rows += [(s - 0.04, s + 0.04, -0.2, 0.2, 0, 0.4) for s in (-0.8 * x, 0.8 * x)]
    if back:
        rows += [(-x, x, 0.22, 0.27, 0.55, 0.68), (-x, x, 0.24, 0.29, 0.75, 0.88)]
    return solids(boxes(rows, Material.WOOD))


def _table(parasol: bool, chairs: int) -> Solids:
    rows: Rows = [(-0.4, 0.4, -0.4, 0.4, 0.7, 0.74), (-0.05, 0.05, -0.05, 0.05, 0, 0.7)]
    for x, y in ((0.85, 0), (-0.85, 0), (0, 0.85), (0, -0.85))[:chairs]:
        rows += [
            (x - 0.2, x + 0.2, y - 0.2, y + 0.2, 0.4, 0.46),
            (x - 0.2, x + 0.2, y + 0.15, y + 0.2, 0, 0.9),
        ]
    parts = [boxes(rows, Material.WOOD)]
    if parasol:
        rods: Rows = [(0, 0, 0.7, 0, 0, 2.5, 0.025, 0.025), (0, 0, 2.1, 0, 0, 2.55, 1.15, 0.1)]
        parts.append(limbs(rods, Material.CLOTH, 8))
    return solids(*parts)


def _shelter(length: float) -> Solids:
    x = length / 2
    posts: Rows = [(s, s + 0.06, y, y + 0.06, 0, 2.35) for s in (-x, x - 0.06) for y in (-0.6, 0.6)]
    roof: Rows = [
        (-x - 0.05, x + 0.05, -0.75, 0.75, 2.35, 2.5),
        (-x * 0.6, x * 0.6, 0.3, 0.6, 0.42, 0.48),
    ]
    panes: Rows = [(-x, x, 0.64, 0.66, 0.2, 2.2), (-x + 0.02, -x + 0.04, -0.5, 0.6, 0.2, 2.2)]
    panes += [(x - 0.04, x - 0.02, -0.5, 0.6, 0.2, 2.2)]
    return solids(boxes(posts + roof, Material.METAL), boxes(panes, Material.GLASS))
