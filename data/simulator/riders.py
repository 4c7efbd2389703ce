"""Bicycles, ridden and parked, and parked motorcycles and scooters."""

from functools import partial

import numpy as np

from data.simulator.materials import Material
from data.simulator.solids import Solids, Volumes, boxes, limbs, solids, volumes
from data.simulator.statistics import SIZES
from data.simulator.things import Thing, upright

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
