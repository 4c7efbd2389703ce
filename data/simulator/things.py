"""Things that stand or move in a street, each made of a few solids, sizes drawn at random."""

from dataclasses import dataclass

import numpy as np

from data.simulator.solids import Cylinder, Frustum, Material

GLASS = Material(0.08, 0.05, 0.55)
TYRE = Material(0.05, 0.03, 0.3)
CLOTH = Material(0.3, 0.12, 0.05)
SKIN = Material(0.4, 0.08, 0.05)
BARK = Material(0.3, 0.08, 0.05)
LEAVES = Material(0.35, 0.15, 0.35)
METAL = Material(0.55, 0.15, 0.08)
GREY = Material(0.4, 0.1, 0.05)

Solids = tuple[Frustum | Cylinder, ...]


@dataclass(frozen=True)
class Thing:
    """Solids in one frame: x along the heading, y left, z up from the ground below the origin."""

    solids: Solids
    kind: str | None = None  # KITTI type, None for scenery

    def bounds(self) -> np.ndarray:
        """The tight extent of all solids, [2, 3]: lowest and highest corner, metres."""
        corners = np.array([solid.bounds() for solid in self.solids])
        return np.array([corners[:, 0].min(0), corners[:, 1].max(0)])


def _paint(rng: np.random.Generator) -> Material:
    return Material(rng.uniform(0.12, 0.55), 0.08, rng.uniform(0.03, 0.2))


def _wheels(length: float, width: float, radius: float = 0.32) -> Solids:
    y = width / 2 - 0.11
    places = [(x, side * y) for x in (-0.31 * length, 0.31 * length) for side in (-1, 1)]
    return tuple(Frustum.box(2 * radius, 0.2, (0.0, 2 * radius), TYRE, at) for at in places)


def car(rng: np.random.Generator) -> Thing:
    """A body, a lower bonnet at the front, a cabin with slanted screens, and four wheels."""
    length, width, height = rng.normal((3.9, 1.63, 1.53), (0.35, 0.08, 0.1)).clip(
        (3.0, 1.4, 1.3), (5.2, 1.95, 1.95)
    )
    paint = _paint(rng)
    front, back, y = length / 2, -length / 2, width / 2
    sill, waist = 0.2, height * rng.uniform(0.54, 0.6)
    bonnet = length * rng.uniform(0.2, 0.28)
    boot = length * rng.uniform(0.0, 0.14)
    body = Frustum(
        (back, front - bonnet, -y, y), (back + 0.08, front - bonnet, -y, y), (sill, waist), paint
    )
    nose = Frustum(
        (front - bonnet, front, -y, y),
        (front - bonnet, front - 0.12, -y + 0.06, y - 0.06),
        (sill, waist - 0.1),
        paint,
    )
    cabin = Frustum(
        (back + boot, front - bonnet, -y + 0.03, y - 0.03),
        (back + boot + 0.3, front - bonnet - 0.65, -y + 0.2, y - 0.2),
        (waist, height - 0.06),
        GLASS,
    )
    u0, u1, v0, v1 = cabin.top
    roof = Frustum(
        cabin.top, (u0 + 0.05, u1 - 0.05, v0 + 0.03, v1 - 0.03), (height - 0.06, height), paint
    )
    return Thing((body, nose, cabin, roof, *_wheels(length, width)), "Car")


def van(rng: np.random.Generator) -> Thing:
    """A tall body with a short sloped front."""
    length, width, height = rng.normal((5.1, 1.9, 2.2), (0.4, 0.1, 0.2)).clip(
        (4.3, 1.7, 1.9), (6.5, 2.2, 2.9)
    )
    paint = _paint(rng)
    front, back, y = length / 2, -length / 2, width / 2
    cargo = Frustum(
        (back, front - 1.5, -y, y),
        (back + 0.05, front - 1.5, -y + 0.05, y - 0.05),
        (0.3, height),
        paint,
    )
    nose = Frustum(
        (front - 1.5, front, -y, y), (front - 1.5, front - 0.1, -y, y), (0.3, 1.05), paint
    )
    screen = Frustum(
        (front - 1.5, front - 0.45, -y + 0.02, y - 0.02),
        (front - 1.5, front - 1.1, -y + 0.1, y - 0.1),
        (1.05, height),
        GLASS,
    )
    return Thing((cargo, nose, screen, *_wheels(length, width, 0.35)), "Van")


def pedestrian(rng: np.random.Generator) -> Thing:
    """Two legs in mid-stride, swinging arms, a torso and a head."""
    height = np.clip(rng.normal(1.74, 0.09), 1.45, 2.0)
    stride, swing = rng.uniform(0.05, 0.28), rng.uniform(0.05, 0.26)
    step = rng.choice((-1.0, 1.0))
    hip, shoulder = 0.48 * height, 0.84 * height
    clothes = Material(rng.uniform(0.1, 0.5), 0.08, 0.05)
    return Thing(
        (
            Cylinder(0.09, (0.0, hip), clothes, (step * stride, 0.1)),
            Cylinder(0.09, (0.0, hip), clothes, (-step * stride, -0.1)),
            Cylinder(rng.uniform(0.16, 0.21), (hip, shoulder), CLOTH),
            Cylinder(0.06, (hip, shoulder - 0.05), clothes, (-step * swing, 0.24)),
            Cylinder(0.06, (hip, shoulder - 0.05), clothes, (step * swing, -0.24)),
            Cylinder(0.11, (shoulder, height), SKIN),
        ),
        "Pedestrian",
    )


def cyclist(rng: np.random.Generator) -> Thing:
    """A bicycle, thin as it is, and a rider who leans over it."""
    length, height = rng.normal((1.76, 1.74), (0.08, 0.08)).clip((1.5, 1.5), (2.0, 2.0))
    half, saddle, shoulder = length / 2, 0.55 * height, 0.86 * height
    lean = rng.uniform(0.1, 0.3)
    wheels = [
        Frustum.box(0.66, 0.06, (0.0, 0.66), TYRE, (side * (half - 0.33), 0.0)) for side in (-1, 1)
    ]
    torso = Frustum(
        (-0.3, 0.0, -0.2, 0.2), (-0.3 + lean, lean, -0.22, 0.22), (saddle, shoulder), CLOTH
    )
    return Thing(
        (
            *wheels,
            Frustum.box(length - 0.66, 0.05, (0.45, 0.6), METAL),
            Frustum.box(0.08, rng.uniform(0.5, 0.65), (0.95, 1.05), METAL, (half - 0.42, 0.0)),
            Cylinder(0.08, (0.25, saddle), CLOTH, (0.02, 0.13)),
            Cylinder(0.08, (0.4, saddle), CLOTH, (0.14, -0.13)),
            torso,
            Cylinder(0.11, (shoulder, height), SKIN, (lean - 0.1, 0.0)),
        ),
        "Cyclist",
    )


def building(rng: np.random.Generator) -> Thing:
    """A house front, seldom a low garden wall; its length lies along x."""
    height = rng.uniform(0.8, 1.6) if rng.random() < 0.2 else rng.uniform(4, 12)
    wall = Material(rng.uniform(0.15, 0.5), 0.06, 0.04)
    return Thing((Frustum.box(rng.uniform(8, 20), 4.0, (0.0, height), wall),))


def tree(rng: np.random.Generator) -> Thing:
    """A trunk and a crown that lets some of the pulses through."""
    crown = rng.uniform(1.9, 2.6)
    return Thing(
        (
            Cylinder(rng.uniform(0.1, 0.25), (0.0, crown), BARK),
            Cylinder(rng.uniform(0.8, 1.5), (crown, crown + rng.uniform(1.5, 3)), LEAVES),
        )
    )


def pole(rng: np.random.Generator) -> Thing:
    """A lamp post, or a short bollard about as thick as a person."""
    if rng.random() < 0.3:
        return Thing((Cylinder(rng.uniform(0.1, 0.2), (0.0, rng.uniform(0.8, 1.2)), GREY),))
    return Thing((Cylinder(rng.uniform(0.05, 0.12), (0.0, rng.uniform(4, 7)), METAL),))


def bin_box(rng: np.random.Generator) -> Thing:
    """A litter bin or a cabinet on the pavement."""
    length, width, height = rng.uniform((0.4, 0.4, 0.8), (1.4, 0.7, 1.5))
    return Thing((Frustum.box(length, width, (0.0, height), GREY),))
