"""People on foot (walking, standing, carrying, pushing, sitting), riders, parked two-wheelers."""

from bisect import bisect_left
from functools import partial

import numpy as np

from millisecond.data.simulator.solids import (
    Hulls,
    Material,
    Solids,
    Thing,
    Volumes,
    boxes,
    limbs,
    solids,
    upright,
    volumes,
)
from millisecond.data.simulator.statistics import BODY_GAP, SIZES

ARM = 0.05  # radius, metres
LIFT = (0.0, 0.03)  # the bottom of a person's box over the ground, least and most, metres
CARRY = ("nothing", "backpack", "bag", "suitcase", "pram", "umbrella", "box")
CARRY_SHARES = (0.5, 0.16, 0.16, 0.04, 0.06, 0.02, 0.06)
CARRY_BOUNDS = np.cumsum(CARRY_SHARES)[:-1].tolist()


def pedestrian(rng: np.random.Generator) -> Thing:
    """Somebody walking or standing; the box is the labels', the body inside it is smaller."""
    length, width, height = SIZES["Pedestrian"].draw(rng)
    with_ = CARRY[bisect_left(CARRY_BOUNDS, rng.random())]
    u = tuple(rng.random(12).tolist())
    front = 1.5 if with_ == "pram" else length / 2
    back = 0.9 if with_ == "suitcase" else length / 2
    top = height + (0.45 if with_ == "umbrella" else 0.1)
    side = max(width / 2, 0.75 if with_ == "umbrella" else 0.5)
    front, back = max(front, 0.6), max(back, 0.6)
    return Thing(
        partial(_walking, (length, width, height), with_, u),
        (-back, -side, 0.0, front, side, top),
        "Pedestrian",
        upright(length, width, height, rng.uniform(*LIFT)),
    )


def sitting_person(rng: np.random.Generator) -> Thing:
    """Somebody on a chair or a bench."""
    length, width, height = SIZES["Person_sitting"].draw(rng)
    half = max(length / 2, 0.55)
    return Thing(
        partial(_sitting, height, tuple(rng.random(6).tolist())),
        (-half, -0.45, 0.0, max(half, 0.75), 0.45, height + 0.1),
        "Person_sitting",
        upright(length, width, height, rng.uniform(*LIFT)),
    )


def _walking(box, with_: str, u) -> Solids:
    length, width, height = box
    tall = height - 0.02
    gap = BODY_GAP * (0.5 + u[0])
    # Feet reach to the ends of the box, but for the gap; a foot is 0.25 m long.
    stride = max(min(length / 2 - gap - 0.14, 0.36), 0.0)
    stride *= 1.0 if u[1] < 0.75 else 0.15
    shoulder = min(max(width / 2 - gap - ARM, 0.15), 0.23)  # an arm hangs beyond it
    out = min(0.16 * u[9], max(width / 2 - shoulder - 0.1, 0.0))  # of the elbows
    stout, clad = 0.11 + 0.06 * u[2], 1.0 + 0.35 * u[10]  # half a chest's depth; clothes
    step = 1.0 if u[3] < 0.5 else -1.0
    swing = 0.8 * stride * u[4] + 0.03
    hip, chest, neck = 0.5 * tall, 0.72 * tall, 0.83 * tall
    lean = 0.04 * u[5]
    rows = []
    for side in (1.0, -1.0):
        foot, y = side * step * stride, side * 0.09
        knee = 0.55 * foot + 0.05
        lift = 0.1 if foot < 0 and stride > 0.1 else 0.04
        rows += [
            (0, y, hip, knee, y, 0.27 * tall, 0.085 * clad, 0.06 * clad),
            (knee, y, 0.27 * tall, foot - 0.03, y, lift, 0.06 * clad, 0.045 * clad),
            (foot - 0.08, y, lift, foot + 0.16, y, 0.04, 0.05, 0.04),
        ]
    rows += _arms(tall, shoulder, out, clad, (-step * swing, step * swing), with_, u[6])
    dress = u[7] < 0.15
    rows += [
        (0, 0, 0.3 * tall if dress else hip - 0.04, lean, 0, chest, 0.2 if dress else 0.17, 0.2)
    ]
    cloth = limbs(rows, Material.CLOTH)
    slope = 0.79 * tall  # from here the shoulders fall away from the neck
    trunk = [
        (lean, 0, chest - 0.14, lean, 0, slope, shoulder - 0.01, shoulder + 0.02, stout, stout),
        (lean, 0, slope, lean, 0, 0.86 * tall, shoulder + 0.02, 0.07, stout, 0.07),
    ]
    head = [
        (lean, 0, neck - 0.02, lean + 0.01, 0, 0.9 * tall, 0.06, 0.085),
        (lean + 0.01, 0, 0.9 * tall, lean + 0.02, 0, tall, 0.09, 0.06),
    ]
    parts = [cloth, limbs(trunk, Material.CLOTH, 8), limbs(head, Material.SKIN, 8)]
    return solids(*parts, *_carried(with_, tall, shoulder, u))


def _arms(
    tall: float, shoulder: float, out: float, clad: float, hands, with_: str, bend: float
) -> list[tuple]:
    """Upper arms and forearms, elbows `out`; hands hold the bar of a pram, a box, or swing."""
    rows = []
    top, elbow, hand = 0.81 * tall, 0.62 * tall, 0.47 * tall
    for side, swing in zip((1.0, -1.0), hands, strict=True):
        y = side * (shoulder + 0.01)
        if with_ in ("pram", "box"):
            reach, at, inward = 0.42, 0.58 * tall, side * 0.18
        elif bend > 0.85 and side > 0:
            reach, at, inward = 0.22, 0.72 * tall, side * 0.12  # at the telephone
        else:
            reach, at, inward = swing + 0.08, hand, y
        middle, wide = 0.5 * swing, y + side * out
        rows += [
            (0, y, top, middle, wide, elbow, ARM * clad, 0.045 * clad),
            (middle, wide, elbow, reach, inward, at, 0.045 * clad, 0.035 * clad),
        ]
    return rows


def _carried(with_: str, tall: float, shoulder: float, u) -> list[Hulls]:
    if with_ == "backpack":
        return [boxes([(-0.32, -0.12, -0.16, 0.16, 0.55 * tall, 0.82 * tall)], Material.CLOTH)]
    if with_ == "bag":
        y = shoulder + 0.03
        return [boxes([(-0.15, 0.18, y, y + 0.12, 0.25 * tall, 0.45 * tall)], Material.CLOTH)]
    if with_ == "suitcase":
        return [boxes([(-0.85, -0.6, -0.22, 0.22, 0.04, 0.65)], Material.PLASTIC)]
    if with_ == "box":
        return [boxes([(0.2, 0.5, -0.2, 0.2, 0.5 * tall, 0.68 * tall)], Material.WOOD)]
    if with_ == "umbrella":
        top = tall + 0.3
        rods = [
            (0.05, 0, 0.6 * tall, 0.05, 0, top, 0.015, 0.015),
            (0, 0, top - 0.2, 0, 0, top, 0.55, 0.1),
        ]
        return [limbs(rods, Material.CLOTH, 8)]
    if with_ == "pram":
        wheels = [
            (x, s * 0.28, 0.14, x, s * 0.28 + 0.05, 0.14, 0.14, 0.14)
            for x in (0.55, 1.1)
            for s in (-1, 1)
        ]
        tub = boxes(
            [(0.55, 1.3, -0.2, 0.2, 0.45, 0.75 + 0.2 * u[8]), (0.55, 0.9, -0.2, 0.2, 0.75, 1.0)],
            Material.CLOTH,
        )
        mesh = limbs(wheels, Material.RUBBER, 8)
        bar = limbs([(0.42, 0, 1.0, 0.7, 0, 0.5, 0.2, 0.2, 0.02, 0.02)], Material.METAL)
        return [tub, mesh, bar]
    return []


def _sitting(height: float, u) -> Solids:
    top = height - 0.05
    seat, neck = 0.42 + 0.04 * u[0], top - 0.28
    lean = -0.12 * u[1]
    rows = []
    for side in (-1.0, 1.0):
        y = side * 0.1
        foot = 0.36 + 0.2 * u[2]
        rows += [
            (-0.12, y, seat + 0.06, 0.34, 1.3 * y, seat + 0.08, 0.085, 0.065),
            (0.34, 1.3 * y, seat + 0.08, foot, 1.3 * y, 0.06, 0.06, 0.045),
            (foot - 0.06, 1.3 * y, 0.06, foot + 0.14, 1.3 * y, 0.04, 0.05, 0.04),
            (-0.12 + lean, 2.2 * y, neck - 0.03, -0.02, 2.4 * y, seat + 0.2, 0.055, 0.045),
            (-0.02, 2.4 * y, seat + 0.2, 0.25, y, seat + 0.2, 0.045, 0.035),
        ]
    trunk = [
        (-0.12, 0, seat, -0.12 + lean, 0, neck - 0.08, 0.18, 0.2, 0.14, 0.12),
        (-0.12 + lean, 0, neck - 0.08, -0.12 + lean, 0, neck + 0.04, 0.2, 0.07, 0.12, 0.07),
    ]
    head = [
        (-0.12 + lean, 0, neck, -0.1 + lean, 0, neck + 0.12, 0.06, 0.085),
        (-0.1 + lean, 0, neck + 0.12, -0.1 + lean, 0, top, 0.09, 0.06),
    ]
    chair = [
        (-0.3, 0.15, -0.22, 0.22, seat - 0.07, seat - 0.02),
        (-0.34, -0.3, -0.22, 0.22, 0.0, seat + 0.35),
    ]
    return solids(
        limbs(rows, Material.CLOTH),
        limbs(trunk, Material.CLOTH),
        limbs(head, Material.SKIN),
        boxes(chair, Material.WOOD),
    )


WHEEL = 0.34
SPOKES = 0.09  # mean way of a pulse in a wheel, metres: about a third goes through from the side


def cyclist(rng: np.random.Generator) -> Thing:
    """Somebody on a bicycle; the box is the labels', rider and bicycle fill most of it."""
    length, width, height = SIZES["Cyclist"].draw(rng)
    half = max(length / 2, 0.8)
    return Thing(
        partial(_cyclist, (length, width, height), tuple(rng.random(8).tolist())),
        (-half, -0.5, 0.0, half, 0.5, height + 0.1),
        "Cyclist",
        upright(length, width, height, 0.025),
    )


def bicycle(rng: np.random.Generator) -> Thing:
    """A parked bicycle: it has no label."""
    make = partial(_bicycle, 1.6 + 0.2 * rng.random(), tuple(rng.random(2).tolist()))
    return Thing(make, (-0.95, -0.35, 0.0, 0.95, 0.35, 1.15))


def motorcycle(rng: np.random.Generator) -> Thing:
    """A parked motorcycle or scooter: it has no label."""
    make = partial(_motorcycle, bool(rng.random() < 0.5), tuple(rng.random(3).tolist()))
    return Thing(make, (-1.15, -0.45, 0.0, 1.15, 0.45, 1.45))


def _wheels(distance: float, thick: float = 0.02, radius: float = WHEEL, path=SPOKES) -> Volumes:
    rows = [(x, 0, radius, radius, thick, radius) for x in (-distance / 2, distance / 2)]
    return volumes(rows, True, path, Material.RUBBER)


def _frame(distance: float, bars: float) -> list[tuple]:
    """Rods of a bicycle's frame, saddle and handlebar."""
    rear, front = -distance / 2, distance / 2
    crank, seat, head = (-0.08, 0.28), (-0.25, 0.85), (front - 0.22, 0.85)
    return [
        (crank[0], 0, crank[1], seat[0], 0, seat[1], 0.02, 0.02),
        (crank[0], 0, crank[1], head[0], 0, head[1] - 0.1, 0.022, 0.022),
        (seat[0] + 0.05, 0, seat[1] - 0.15, head[0], 0, head[1], 0.018, 0.018),
        (rear, 0, WHEEL, crank[0], 0, crank[1], 0.015, 0.015),
        (rear, 0, WHEEL, seat[0], 0, seat[1] - 0.1, 0.015, 0.015),
        (front, 0, WHEEL, head[0], 0, head[1] + 0.12, 0.02, 0.02),
        (seat[0] - 0.14, 0, seat[1] + 0.04, seat[0] + 0.12, 0, seat[1] + 0.06, 0.08, 0.03),
        (head[0] + 0.02, -bars, head[1] + 0.17, head[0] + 0.02, bars, head[1] + 0.17, 0.02, 0.02),
    ]


def _bicycle(length: float, u) -> Solids:
    distance = length - 2 * WHEEL
    basket = [(distance / 2 - 0.1, distance / 2 + 0.2, -0.15, 0.15, 0.7, 0.95)]
    parts = [limbs(_frame(distance, 0.28), Material.METAL, 4)]
    parts += [boxes(basket, Material.PLASTIC)] if u[0] < 0.3 else []
    return solids(*parts, volumes=_wheels(distance))


def _cyclist(box, u) -> Solids:
    length, width, height = box
    top = height - 0.09
    distance = min(max(length - 0.12, 1.45), 1.85) - 2 * WHEEL
    bars = min(max(width / 2 - 0.05, 0.2), 0.31)
    seat, lean = (-0.25, 0.9), 0.12 + 0.3 * u[0]
    shoulder = (seat[0] + lean, 0.83 * top)
    grip = (distance / 2 - 0.22, 1.02)
    phase = 0.17 * (2 * u[1] - 1)
    clad = 1.0 + 0.35 * u[5]  # clothes
    rows = []
    for side, up in ((1.0, phase), (-1.0, -phase)):
        y = side * 0.1
        pedal = (-0.08 + 0.17 - abs(up), 0.28 + up)
        knee = (0.16 + 0.3 * up, 0.68 + 0.5 * up)
        wide = side * (0.17 + 0.05 * u[2])
        middle = (shoulder[0] + grip[0]) / 2 - 0.05, (shoulder[1] + grip[1]) / 2 - 0.12
        elbow = middle[0], side * (bars + 0.02), middle[1]
        rows += [
            (seat[0], y, seat[1], knee[0], y, knee[1], 0.085 * clad, 0.06 * clad),
            (knee[0], y, knee[1], pedal[0], y, pedal[1], 0.06 * clad, 0.045 * clad),
            (pedal[0] - 0.08, y, pedal[1], pedal[0] + 0.16, y, pedal[1] - 0.02, 0.045, 0.04),
            (shoulder[0], wide, shoulder[1], *elbow, 0.05 * clad, 0.045 * clad),
            (*elbow, grip[0], side * (bars - 0.03), grip[1], 0.045 * clad, 0.035 * clad),
        ]
    crown = (shoulder[0] + 0.1 + 0.05 * u[0], 0, top)
    wide, deep = 0.19 + 0.04 * u[3], 0.11 + 0.04 * u[6]
    trunk = [
        (seat[0] - 0.02, 0, seat[1] - 0.04, *_at(shoulder), 0.17, wide, deep, deep),
        (*_at(shoulder), *_part(shoulder, crown, 0.4), wide, 0.07, deep, 0.07),
    ]
    head = [
        (shoulder[0], 0, shoulder[1] - 0.05, *_part(shoulder, crown, 0.5), 0.07, 0.09),
        (*_part(shoulder, crown, 0.5), *crown, 0.1, 0.07),
    ]
    parts = [
        limbs(rows, Material.CLOTH),
        limbs(trunk, Material.CLOTH),
        limbs(head, Material.SKIN),
        limbs(_frame(distance, bars), Material.METAL, 4),
    ]
    if u[4] < 0.2:
        parts.append(boxes([(-0.6, -0.3, -0.2, 0.2, 0.5, 0.8)], Material.CLOTH))  # panniers
    elif u[4] < 0.35:
        x, z = (seat[0] + shoulder[0]) / 2 - 0.28, (seat[1] + shoulder[1]) / 2
        parts.append(boxes([(x, x + 0.2, -0.15, 0.15, z - 0.15, z + 0.25)], Material.CLOTH))
    return solids(*parts, volumes=_wheels(distance))


def _at(point) -> tuple[float, float, float]:
    return point[0], 0.0, point[1]


def _part(shoulder, crown, share: float) -> tuple[float, float, float]:
    """A point on the way from the shoulders to the crown of the head."""
    x = shoulder[0] + share * (crown[0] - shoulder[0])
    return x, 0.0, shoulder[1] + share * (crown[2] - shoulder[1])


def _motorcycle(scooter: bool, u) -> Solids:
    distance, radius = (1.25, 0.25) if scooter else (1.4, 0.31)
    half = distance / 2
    rods = [
        (half, 0, radius, half - 0.3, 0, 1.0, 0.05, 0.05),
        (half - 0.28, -0.36, 1.02, half - 0.28, 0.36, 1.02, 0.025, 0.025),
    ]
    if scooter:
        rows = [
            (-0.8, -0.1, -0.19, 0.19, 0.3, 0.8),
            (-0.1, 0.35, -0.17, 0.17, 0.25, 0.35),
            (0.33, 0.42, -0.2, 0.2, 0.25, 0.95),
            (-0.8, 0.0, -0.16, 0.16, 0.75, 0.85),
        ]
    else:
        rows = [
            (-0.3, 0.3, -0.18, 0.18, 0.25, 0.65),
            (-0.05, 0.4, -0.17, 0.17, 0.65, 0.95),
            (-0.85, 0.0, -0.14, 0.14, 0.7, 0.85),
        ]
    if u[0] < 0.4:
        rows.append((half - 0.34, half - 0.28, -0.2, 0.2, 0.95, 1.35))  # a screen
    if u[1] < 0.4:
        rows.append((-1.05, -0.7, -0.2, 0.2, 0.8, 1.15))  # a case
    tyres = _wheels(distance, 0.07, radius, 0.03)
    return solids(boxes(rows, Material.PAINT), limbs(rods, Material.METAL, 5), volumes=tyres)
