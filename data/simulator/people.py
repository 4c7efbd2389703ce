"""People on foot: walking, standing, carrying, pushing, and sitting."""

from bisect import bisect_left
from functools import partial

import numpy as np

from data.simulator.materials import Material
from data.simulator.solids import Hulls, Solids, boxes, limbs, solids
from data.simulator.statistics import BODY_GAP, SIZES
from data.simulator.things import Thing, upright

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
