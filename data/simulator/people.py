"""People on foot, in groups, sitting and riding, and two-wheelers that are parked.

Segments of a body are shares of its stature after Drillis and Contini (1966; Winter, Biomechanics
and Motor Control of Human Movement, figure 4.1). Stature is 1.70 m on average, its standard
deviation 0.10 m. Angles of a walk are those of Perry, Gait Analysis (1992): steps are 0.41 of the
stature long. Angles of a run are those of Novacheck, Gait and Posture 7 (1998).

A box is drawn around a body, never a body into a box. KITTI's boxes keep their size in all frames of
a track, so the box of somebody who walks holds the whole stride.
"""

from bisect import bisect
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import accumulate
from math import cos, pi, radians, sin, sqrt
from typing import NamedTuple

import numpy as np

from millisecond.data.simulator.solids import (
    Extent,
    Hulls,
    Material,
    Solids,
    Thing,
    Volumes,
    boxes,
    limbs,
    solids,
    volumes,
)
from millisecond.data.simulator.statistics import SIZES

Point = tuple[float, float, float]
Pair = tuple[Point, Point]  # left, right

THIGH, SHANK, UPPER_ARM, FOREARM = 0.245, 0.246, 0.186, 0.18  # lengths; a forearm ends in the fist
HIP, SHOULDER = 0.05, 0.112  # half of the distance of the joints
ANKLE = 0.085  # over the sole of a shoe, metres
HEEL, TOE = 0.07, 0.2  # ends of a shoe, behind and before the ankle, metres

# Rings of trunk and head: height over the hips and over the neck, half across, half deep.
TRUNK = (
    (-0.05, 0.06, 0.055),
    (0.0, 0.104, 0.075),
    (0.09, 0.092, 0.066),
    (0.19, 0.1, 0.074),
    (0.285, 0.112, 0.064),
    (0.33, 0.036, 0.042),
)
NECK = 0.32  # over the hips
HEAD = (
    (-0.01, 0.034, 0.036),
    (0.02, 0.034, 0.044),
    (0.05, 0.044, 0.058),
    (0.09, 0.049, 0.062),
    (0.13, 0.043, 0.054),
    (0.15, 0.02, 0.026),
)

# Share of the cycle from one heel strike to the next; thigh forward of the vertical, bend of the
# knee, toes over the heel, degrees.
WALK = (
    (0.0, 20, 5, 20),
    (0.12, 19, 18, 0),
    (0.3, 2, 8, 0),
    (0.5, -20, 8, -18),
    (0.62, -10, 40, -62),
    (0.75, 15, 60, -48),
    (0.87, 25, 28, -5),
    (1.0, 20, 5, 20),
)
RUN = (
    (0.0, 28, 18, 5),
    (0.15, 12, 42, 0),
    (0.38, -22, 16, -50),
    (0.55, -8, 80, -95),
    (0.68, 20, 100, -70),
    (0.85, 38, 60, -20),
    (1.0, 28, 18, 5),
)

# Places of the left fist, and of the right one mirrored: forward, aside, up, shares of the stature.
HANG = (0.02, 0.14, 0.44)
HANDS = {
    "hanging": (HANG, HANG),
    "in pockets": ((0.05, 0.13, 0.5), (0.05, 0.13, 0.5)),
    "at the ear": (HANG, (0.05, 0.07, 0.92)),
    "with a telephone": ((0.03, 0.15, 0.46), (0.17, 0.04, 0.69)),
    "before the chest": ((0.16, 0.04, 0.68), (0.15, 0.05, 0.66)),
    "crossed": ((0.11, -0.05, 0.69), (0.09, -0.05, 0.67)),
    "on the back": ((-0.09, 0.02, 0.51), (-0.1, 0.02, 0.5)),
    "under an umbrella": (HANG, (0.13, 0.05, 0.68)),
    "at a bar": ((0.26, 0.12, 0.58), (0.26, 0.12, 0.58)),
    "down": ((0.25, 0.1, 0.36), (0.22, 0.1, 0.33)),
}

LIFT = 0.03  # the bottom of a person's box is at most so high over the ground, metres
SPOKES = 0.2  # mean way of a pulse among the spokes of a wheel, metres
CRANK = (-0.1, 0.0, 0.28)  # of a bicycle from its middle, metres

# Shares of what people do, carry and where they have their hands.
WAYS = {"walk": 0.6, "stand": 0.35, "run": 0.02, "bend": 0.03}
WALKING = {"hanging": 0.72, "at the ear": 0.07, "with a telephone": 0.08, "in pockets": 0.13}
STANDING = {
    "hanging": 0.35, "at the ear": 0.1, "with a telephone": 0.16, "in pockets": 0.17,
    "before the chest": 0.06, "crossed": 0.1, "on the back": 0.06,
}  # fmt: skip
CARRIED = {
    "nothing": 0.56, "rucksack": 0.14, "bag": 0.18, "shopping": 0.08, "box": 0.02, "umbrella": 0.02,
}  # fmt: skip
WITH = {"box": "before the chest", "umbrella": "under an umbrella", "shopping": "hanging"}
LUGGAGE = {"nothing": 0.6, "panniers": 0.14, "a basket": 0.15, "a child": 0.05, "a cargo box": 0.06}
# A third of KITTI's pedestrians have another one within a metre.
GROUPS = {
    "alone": 0.5, "two abreast": 0.2, "three abreast": 0.04, "two talk": 0.08, "three talk": 0.03,
    "a queue": 0.03, "a pram": 0.04, "a suitcase": 0.03, "a dog": 0.05,
}  # fmt: skip


class Body(NamedTuple):
    """Somebody's measures."""

    tall: float  # stature, metres
    girth: float  # factor of the trunk's breadth and depth
    cloth: float  # thickness of clothes, metres
    hair: float  # thickness of hair, cap or hood, metres
    hem: float  # height of the hem of a skirt or a coat, share of the stature; 0 without
    carried: str
    broad: float = 1.0  # factor of the breadth of the shoulders

    @property
    def shoulder(self) -> float:
        """Half of the distance of the shoulders' joints, metres."""
        return SHOULDER * self.broad * self.tall


class Pose(NamedTuple):
    """Where the joints are, metres."""

    hip: Point
    lean: tuple[float, float]  # the trunk's direction, x and z of a unit vector
    knees: Pair
    ankles: Pair
    toes: tuple[tuple[float, float], tuple[float, float]]  # directions of the shoes, as `lean`
    elbows: Pair
    hands: Pair

    def trunk(self, up: float, fore: float = 0.0) -> Point:
        """A point so many metres up the trunk from the hips, and before its axis."""
        (x, y, z), (a, b) = self.hip, self.lean
        return x + up * a + fore * b, y, z + up * b - fore * a

    def head(self, neck: float, up: float) -> Point:
        """A point above the neck: people look ahead, so the head leans less than the trunk."""
        x, y, z = self.trunk(neck)
        a = 0.35 * self.lean[0]
        return x + a * up, y, z + sqrt(1 - a * a) * up


def _pick(shares: dict[str, float], rng: np.random.Generator) -> str:
    names, ends = list(shares), list(accumulate(shares.values()))
    return names[min(bisect(ends, rng.random() * ends[-1]), len(names) - 1)]


def _body(rng: np.random.Generator, low: float = 1.45, high: float = 1.88) -> Body:
    tall = min(max(1.7 + 0.1 * float(rng.standard_normal()), low), high)
    girth, cloth, hair, dressed, hem, broad = rng.random(6).tolist()
    return Body(
        tall,
        0.92 + 0.3 * girth * girth,
        0.008 + 0.025 * cloth,
        0.025 * hair,
        (0.25 + 0.2 * hem) * (dressed < 0.22),
        _pick(CARRIED, rng),
        0.8 + 0.32 * broad,
    )


def _joint(a: Point, b: Point, first: float, second: float, towards: Point) -> Point:
    """The elbow or knee of a limb from a to b, bent towards a direction; lengths in metres."""
    x, y, z = b[0] - a[0], b[1] - a[1], b[2] - a[2]
    far = sqrt(x * x + y * y + z * z)
    x, y, z = x / far, y / far, z / far
    along = min((far * far + first * first - second * second) / (2 * far), first)
    off = sqrt(first * first - along * along)
    share = towards[0] * x + towards[1] * y + towards[2] * z
    u, v, w = towards[0] - share * x, towards[1] - share * y, towards[2] - share * z
    off /= sqrt(u * u + v * v + w * w)
    return a[0] + along * x + off * u, a[1] + along * y + off * v, a[2] + along * z + off * w


def _pose(
    body: Body, hip: Point, lean: float, ankles: Pair, toes, hands: Pair, out: float, knees=None
) -> Pose:
    """Knees and elbows are found where they are not given. lean: degrees; out: of the elbows."""
    tall = body.tall
    pose = Pose(hip, (sin(radians(lean)), cos(radians(lean))), ankles, ankles, toes, hands, hands)
    x, _, z = pose.trunk(0.285 * tall)
    elbows = [
        _joint((x, side * body.shoulder, z), hand, UPPER_ARM * tall, FOREARM * tall,
               (-0.8, side * out, -0.5))
        for side, hand in zip((1, -1), hands, strict=True)
    ]  # fmt: skip
    knees = knees or [
        _joint((hip[0], side * HIP * tall, hip[2]), ankle, THIGH * tall, SHANK * tall,
               (1.0, 0.15 * side, 0.3))
        for side, ankle in zip((1, -1), ankles, strict=True)
    ]  # fmt: skip
    return pose._replace(knees=tuple(knees), elbows=tuple(elbows))


def _hands(body: Body, where: str, far: float = 1.0) -> Pair:
    far *= body.broad
    return tuple(
        (x * body.tall, side * far * y * body.tall, z * body.tall)
        for side, (x, y, z) in zip((1, -1), HANDS[where], strict=True)
    )


def stride(body: Body, gait, pace: float) -> tuple[float, float, float]:
    """How far the shoes reach back and ahead over a whole cycle, and the highest hips, metres."""
    back, ahead, rise = 0.0, 0.0, 0.0
    for phase in (row[0] for row in gait[:-1]):
        _, _, x, _, a, b, low, _ = _leg(body, gait, phase, pace)
        back = min(back, x - HEEL * a - 0.09 * abs(b))
        ahead = max(ahead, x + TOE * a + 0.09 * abs(b))
        rise = max(rise, min(-low, -_leg(body, gait, (phase + 0.5) % 1.0, pace)[6]))
    return back - 0.02, ahead + 0.02, rise


def _leg(body: Body, gait, phase: float, pace: float) -> tuple[float, ...]:
    """x and z of knee and ankle from the hip, direction of the shoe, lowest z of the shoe; and the
    angle of the thigh. pace: length of the stride, 1 is the usual one."""
    k = max(bisect([row[0] for row in gait], phase) - 1, 0)
    (start, *a), (end, *b) = gait[k], gait[min(k + 1, len(gait) - 1)]
    share = (phase - start) / (end - start) if end > start else 0.0
    thigh, knee, pitch = (p + share * (q - p) for p, q in zip(a, b, strict=True))
    thigh, knee, pitch = pace * thigh, (0.4 + 0.6 * pace) * knee, pace * pitch
    turn, shank, foot = radians(thigh), radians(thigh - knee), radians(pitch)
    x, z = THIGH * body.tall * sin(turn), -THIGH * body.tall * cos(turn)
    ankle = x + SHANK * body.tall * sin(shank), z - SHANK * body.tall * cos(shank)
    a, b = cos(foot), sin(foot)
    low = ankle[1] - ANKLE * a + min(TOE * b, -HEEL * b)
    return x, z, *ankle, a, b, low, turn


def striding(body: Body, gait, phase: float, pace: float, out: float, hands: str) -> Pose:
    """Somebody at this share of a cycle of `WALK` or `RUN`."""
    legs = [_leg(body, gait, (phase + half) % 1.0, pace) for half in (0.0, 0.5)]
    rise, tall = -min(leg[6] for leg in legs) + 0.03 * (gait is RUN), body.tall
    aside = (0.8 * HIP * tall, -0.8 * HIP * tall)
    knees = tuple((leg[0], y, rise + leg[1]) for leg, y in zip(legs, aside, strict=True))
    ankles = tuple((leg[2], y, rise + leg[3]) for leg, y in zip(legs, aside, strict=True))
    lean = 12.0 if gait is RUN else 4.0
    fists = _hands(body, hands)
    if hands == "hanging":  # an arm swings with the leg of the other side
        bend, reach = (0.5, 0.3) if gait is RUN else (0.12, 0.355)
        fists = tuple(
            (tall * (0.285 * sin(radians(lean)) + reach * sin(0.8 * leg[7] + bend)),
             side * (body.shoulder + (0.02 + 0.5 * out) * tall),
             rise + tall * (0.285 - reach * cos(0.8 * leg[7] + bend)))
            for side, leg in zip((1, -1), legs[::-1], strict=True)
        )  # fmt: skip
    toes = tuple((leg[4], leg[5]) for leg in legs)
    return _pose(body, (0.0, 0.0, rise), lean, ankles, toes, fists, 5 * out, knees)


def standing(body: Body, u: Sequence[float], hands: str, floor: float = 0.0) -> Pose:
    """Somebody who stands, or who bends down if the hands are down. floor: its height, metres."""
    apart, turned, aside, out, lean = u
    ahead, tall = 0.16 * (apart - 0.5), body.tall
    ankles = tuple((side * ahead, side * (0.06 + 0.09 * aside), floor + ANKLE) for side in (1, -1))
    toes = ((1.0, 0.0), (1.0, 0.0))
    down = hands == "down"
    height = floor + ANKLE + (0.96 if down else 0.99) * (THIGH + SHANK) * tall - 0.3 * ahead**2
    fists = tuple((x, y, z + floor) for x, y, z in _hands(body, hands, 0.9 + 0.3 * out))
    if down:
        fists = tuple((x + 0.2 * turned, y, z + 0.1 * apart) for x, y, z in fists)
    bend = 32.0 + 25.0 * lean if down else 8.0 * lean - 2.0
    hip = (-0.12 if down else 0.0, 0.0, height)
    return _pose(body, hip, bend, ankles, toes, fists, 0.6 * out)


def _tube(*rings: tuple[float, ...]) -> tuple[float, ...]:
    """A row of `limbs` through rings (x, y, z, radius across, radius deep)."""
    places = [value for ring in rings for value in ring[:3]]
    return (*places, *(ring[3] for ring in rings), *(ring[4] for ring in rings))


def _between(a: Point, b: Point, share: float) -> Point:
    return tuple(p + share * (q - p) for p, q in zip(a, b, strict=True))


def figure(body: Body, pose: Pose) -> list[Hulls]:
    """The hulls of somebody with clothes and what is carried."""
    tall, cloth, girth = body.tall, body.cloth, body.girth
    rows, shoes = [], []
    for k, side in enumerate((1, -1)):
        hip = (pose.hip[0], side * HIP * tall, pose.hip[2])
        shoulder = pose.trunk(0.285 * tall)
        shoulder = (shoulder[0], side * body.shoulder, shoulder[2])
        parts = (
            (hip, pose.knees[k], pose.ankles[k], 0.055 * girth, 0.052 * girth, 0.037, 0.034, 0.023),
            (shoulder, pose.elbows[k], pose.hands[k], 0.036, 0.032, 0.027, 0.025, 0.024),
        )
        for start, bend, end, *radii in parts:
            places = (start, _between(start, bend, 0.5), bend, _between(bend, end, 0.35), end)
            wide = [radius * tall + cloth for radius in radii]
            rows.append(_tube(*((*at, r, r) for at, r in zip(places, wide, strict=True))))
        (x, y, z), (a, b) = pose.ankles[k], pose.toes[k]
        heel = (x - HEEL * a + 0.04 * b, y, z - HEEL * b - 0.04 * a, 0.042, 0.045)
        toe = (x + TOE * a + 0.055 * b, y * 1.15, z + TOE * b - 0.055 * a, 0.042, 0.03)
        shoes.append(_tube(heel, toe))
    trunk = [
        _tube(*(
            (*pose.trunk(up * tall), wide * tall * (girth + body.broad) / 2 + cloth,
             deep * tall * girth + cloth)
            for up, wide, deep in TRUNK
        ))
    ]  # fmt: skip
    head = [
        _tube(*(
            (*pose.head(NECK * tall, up * tall), wide * tall + body.hair, deep * tall + body.hair)
            for up, wide, deep in HEAD
        ))
    ]  # fmt: skip
    if body.hem:
        trunk.append(_hem(body, pose))
    return [
        limbs(rows, Material.CLOTH),
        limbs(shoes, Material.CLOTH),
        limbs(trunk, Material.CLOTH, 8),
        limbs(head, Material.SKIN, 8),
        *_carried(body, pose),
    ]


def _hem(body: Body, pose: Pose) -> tuple[float, ...]:
    """A skirt or the lower part of a coat, around both thighs."""
    tall = body.tall
    rings = []
    for k in range(6):
        share = k / 5
        z = pose.hip[2] + 0.06 * tall - share * (pose.hip[2] + 0.06 * tall - body.hem * tall)
        down = min(max((pose.hip[2] - z) / (pose.hip[2] - pose.knees[0][2]), 0.0), 1.0)
        ends = [pose.hip[0] + down * (knee[0] - pose.hip[0]) for knee in pose.knees]
        deep = (max(ends) - min(ends)) / 2 + 0.078 * tall + body.cloth
        rings.append((sum(ends) / 2, 0.0, z, (0.1 + 0.03 * share) * tall + body.cloth, deep))
    return _tube(*rings)


def _carried(body: Body, pose: Pose) -> list[Hulls]:
    tall, what = body.tall, body.carried
    if what == "rucksack":
        back = -0.074 * tall * body.girth - 0.08
        low, high = pose.trunk(0.08 * tall, back), pose.trunk(0.29 * tall, back)
        return [limbs([_tube((*low, 0.16, 0.09), (*high, 0.13, 0.07))], Material.CLOTH, 8)]
    if what == "bag":
        x, y, z = pose.trunk(0.0)
        y = -body.shoulder * body.girth - 0.06
        low, high = (x, y, z - 0.08 * tall, 0.06, 0.15), (x, y, z + 0.06 * tall, 0.05, 0.14)
        return [limbs([_tube(low, high)], Material.CLOTH, 8)]
    x, y, z = pose.hands[1]
    if what == "shopping":
        return [
            limbs([_tube((x, y, z - 0.42, 0.09, 0.14), (x, y, z, 0.04, 0.1))], Material.PLASTIC, 8)
        ]
    if what == "box":
        return [boxes([(x - 0.08, x + 0.2, -0.2, 0.2, z - 0.12, z + 0.14)], Material.WOOD)]
    if what == "umbrella":
        top = tall + 0.25
        rods = [(x, y, z, x, y, top, 0.015, 0.015), (x, y, top - 0.22, x, y, top, 0.52, 0.06)]
        return [limbs(rods, Material.CLOTH, 8)]
    return []


def _reach(body: Body, pose: Pose) -> Extent:
    """The extent of a body without the canopy of an umbrella, a little more than its hulls."""
    tall, cloth, girth = body.tall, body.cloth, body.girth
    chest, belly = pose.trunk(0.19 * tall), pose.trunk(0.0)
    depth = 0.076 * tall * girth + cloth
    crown, face = pose.head(NECK * tall, 0.15 * tall), 0.063 * tall + body.hair
    x = [chest[0] - depth, chest[0] + depth, belly[0] - depth, belly[0] + depth]
    x += [crown[0] - face, crown[0] + face]
    wide = max(body.shoulder + 0.036 * tall, 0.056 * tall * (girth + 1)) + cloth
    if body.hem:
        ends = [knee[0] for knee in pose.knees]
        deep = 0.078 * tall + cloth + 0.01
        x += [min(ends) - deep, max(ends) + deep]
        wide = max(wide, 0.13 * tall + cloth)
    y = [-wide, wide]
    for k in range(2):
        (a, b), ankle = pose.toes[k], pose.ankles[k]
        x += [ankle[0] - HEEL * a - 0.09 * abs(b) - 0.01, ankle[0] + TOE * a + 0.09 * abs(b) + 0.01]
        for joint, radius in (
            (pose.knees[k], 0.04),
            (pose.elbows[k], 0.03),
            (pose.hands[k], 0.027),
        ):
            radius = radius * tall + cloth
            x += [joint[0] - radius, joint[0] + radius]
            y += [joint[1] - radius, joint[1] + radius]
        y += [1.15 * ankle[1] - 0.045, 1.15 * ankle[1] + 0.045]
    hand = pose.hands[1]
    if body.carried == "rucksack":
        x.append(min(pose.trunk(up * tall, -0.074 * tall * girth - 0.17)[0] for up in (0.08, 0.29)))
    elif body.carried == "bag":
        x += [belly[0] - 0.15, belly[0] + 0.15]
        y.append(-body.shoulder * girth - 0.12)
    elif body.carried == "shopping":
        x += [hand[0] - 0.14, hand[0] + 0.14]
        y.append(hand[1] - 0.09)
    elif body.carried == "box":
        x.append(hand[0] + 0.2)
    return min(x), min(y), 0.0, max(x), max(y), crown[2] + 0.01


def _around(*extents: Extent) -> Extent:
    columns = list(zip(*extents, strict=True))
    x0, y0, z0, x1, y1, z1 = *map(min, columns[:3]), *map(max, columns[3:])
    return x0, y0, z0, x1, y1, z1


def _labelled(rng, kind: str, make, extent: Extent, gaps, canopy: float = 0.0) -> Thing:
    """A thing and its box as an annotator draws it: longer, wider and higher than the extent by
    up to twice the gaps, within the limits of the labels. canopy: radius of what hangs over."""
    u, box = rng.random(6).tolist(), []
    limits = SIZES.get(kind, SIZES["Cyclist"])
    start = (*extent[:2], LIFT * u[5])
    for axis, low in enumerate(start):
        size = extent[axis + 3] - low
        gap = 2 * gaps[axis] * u[axis]
        if kind in SIZES:
            gap = min(max(gap, limits.low[axis] - size), limits.high[axis] - size)
        share = 0.25 + 0.5 * u[axis + 3] if axis < 2 else 0.0
        box.append((low - share * gap, low + size + (1 - share) * gap))
    (x0, x1), (y0, y1), (z0, z1) = box
    extent = _around((*extent[:2], 0.0, *extent[3:]), (x0, y0, 0.0, x1, y1, z1))
    if canopy:
        extent = _around(extent, (-0.5, -0.8, 0.0, 0.8, 0.6, extent[5] + 0.3))
    return Thing(make, extent, kind, (x0, y0, z0, x1, y1, z1))


def _person(body: Body, pose: Pose, parts: Sequence[Hulls] = ()) -> Solids:
    return solids(*figure(body, pose), *parts)


def pedestrian(rng: np.random.Generator, way: str = "", pace: float = 0.0, push=False) -> Thing:
    """Somebody who walks, stands, runs or bends down, as `WAYS` says unless given. pace: length of
    the strides, 1 is the usual one; push: a pram."""
    way = way or _pick(WAYS, rng)
    body, u = _body(rng, 1.6 if way == "bend" else 1.45), rng.random(5).tolist()
    hands = _pick(STANDING if way == "stand" else WALKING, rng)
    if push or way in ("run", "bend"):
        hands = "at a bar" if push else "down" if way == "bend" else "hanging"
        body = body._replace(carried="rucksack" if body.carried == "rucksack" else "nothing")
    hands = WITH.get(body.carried, hands)
    if way in ("stand", "bend"):
        pose = standing(body, u, hands)
        extent = _reach(body, pose)
    else:
        # Nobody's stride is longer than the longest labelled box.
        pace = pace or 0.95 + 0.15 * float(rng.standard_normal())
        gait, most = (RUN, 1.6) if way == "run" else (WALK, 2.2)
        pace = min(max(pace, 0.5), most / body.tall)
        pose = striding(body, gait, u[0], pace, 0.08 * u[1] * u[1], hands)
        back, ahead, rise = stride(body, gait, pace)
        x0, y0, _, x1, y1, top = _reach(body, pose)
        rise -= pose.hip[2]
        extent = (min(x0, back), y0, 0.0, max(x1, ahead), y1, top + max(rise, 0.0))
    make, canopy = partial(_person, body, pose), 0.52 * (body.carried == "umbrella")
    return _labelled(rng, "Pedestrian", make, extent, (0.04, 0.08, 0.04), canopy)


def walkers(rng: np.random.Generator) -> Thing:
    """Somebody alone, or a group of `GROUPS`: the others are the company of the first."""
    group = _pick(GROUPS, rng)
    if group == "alone":
        return pedestrian(rng)
    if group in ("two abreast", "three abreast"):
        pace = 0.95 + 0.12 * float(rng.standard_normal())
        people = [pedestrian(rng, "walk", pace) for _ in range(3 if "three" in group else 2)]
        places, y = [], 0.0
        for k, other in enumerate(people[1:]):
            y += people[k].extent[4] - other.extent[1] + 0.15 * rng.random()
            places.append((other, float(rng.uniform(-0.25, 0.25)), y, 0.0))
        return replace(people[0], company=tuple(places))
    if group == "a queue":
        people = [pedestrian(rng, "stand") for _ in range(int(rng.integers(3, 5)))]
        places, x = [], 0.0
        for k, other in enumerate(people[1:]):
            x += people[k].extent[0] - other.extent[3] - 0.5 * rng.random()
            places.append((other, x, 0.0, 0.0))
        return replace(people[0], company=tuple(places))
    if group in ("two talk", "three talk"):
        people = [pedestrian(rng, "stand") for _ in range(3 if "three" in group else 2)]
        aside = max(max(-p.extent[1], p.extent[4]) for p in people)
        away = max(p.extent[3] for p in people) + 0.58 * aside * (len(people) - 2)
        away += rng.uniform(0.03, 0.25)
        places = []
        for k, other in enumerate(people[1:], 1):
            turn = 2 * pi * k / len(people)
            places.append((other, away * (1 - cos(turn)), -away * sin(turn), turn))
        return replace(people[0], company=tuple(places))
    person = pedestrian(rng, "walk", push=group == "a pram")
    back, right, _, ahead, _, _ = person.extent
    if group == "a pram":
        place = (_scenery(_pram, rng, (0.0, -0.32, 0.0, 1.0, 0.32, 1.15)), ahead, 0.0, 0.0)
    elif group == "a suitcase":
        case = _scenery(_suitcase, rng, (-0.32, -0.25, 0.0, 0.0, 0.25, 1.0))
        place = (case, back, -0.2, 0.0)
    else:
        dog = _scenery(_dog, rng, (-0.5, -0.15, 0.0, 0.5, 0.15, 0.8))
        place = (dog, float(rng.uniform(-0.3, 0.7)), right - 0.2, 0.0)
    return replace(person, company=(place,))


def _scenery(make, rng: np.random.Generator, extent: Extent) -> Thing:
    return Thing(partial(make, tuple(rng.random(3).tolist())), extent)


def _child(x: float, z: float) -> list[Hulls]:
    """A small child that sits there."""
    rods = [
        (x, 0, z, x, 0, z + 0.34, 0.13, 0.1),
        (x, 0, z + 0.34, x + 0.02, 0, z + 0.54, 0.08, 0.06),
    ]
    return [limbs(rods, Material.CLOTH)]


def _pram(u) -> Solids:
    rows = [(x, y, 0.0, 0.13 + 0.02 * u[0]) for x in (0.25, 0.75) for y in (-0.27, 0.27)]
    tub = [(0.2, 0.95, -0.2, 0.2, 0.45, 0.72 + 0.2 * u[1]), (0.2, 0.5, -0.2, 0.2, 0.72, 1.0)]
    bar = limbs([(0.02, 0, 1.02, 0.35, 0, 0.5, 0.22, 0.22, 0.02, 0.02)], Material.METAL)
    return solids(boxes(tub, Material.CLOTH), _rims(rows), bar)


def _suitcase(u) -> Solids:
    rows = [
        (-0.3, -0.05, -0.22, 0.22, 0.04, 0.5 + 0.25 * u[0]),
        (-0.1, -0.08, -0.1, 0.1, 0.5, 0.98),
    ]
    return solids(boxes(rows, Material.PLASTIC))


def _dog(u) -> Solids:
    """A dog whose shoulders are 0.25 to 0.65 m high."""
    high, size = 0.25 + 0.4 * u[0], (0.25 + 0.4 * u[0]) / 0.65
    x, z = 0.3 * size, 0.8 * high
    rods = [(-x, 0, z, x, 0, z, 0.1 * size, 0.13 * size)]
    rods += [(x, 0, z + 0.04, x + 0.12 * size, 0, z + 0.2 * size, 0.08 * size, 0.07 * size)]
    rods += [(x + 0.06 * size, 0, z + 0.2 * size, 1.6 * x, 0, z + 0.15 * size, 0.08 * size, 0.04)]
    rods += [
        (side * x, y * size, z, side * x + 0.1 * size * (u[1] - 0.5), y * size, 0, 0.05 * size, 0.03)
        for side in (-1, 1) for y in (-0.07, 0.07)
    ]  # fmt: skip
    return solids(limbs(rods, Material.FOLIAGE))


def sitting_person(rng: np.random.Generator) -> Thing:
    """Somebody on a chair or a bench."""
    return _seated(rng, False)


def wheelchair_user(rng: np.random.Generator) -> Thing:
    """Somebody in a wheelchair: KITTI's type for all who sit, and the box holds the wheelchair."""
    return _seated(rng, True)


def _seated(rng: np.random.Generator, wheels: bool) -> Thing:
    body, u = _body(rng, 1.45, 1.78)._replace(carried="nothing", hem=0.0), rng.random(8).tolist()
    seat = 0.48 if wheels else 0.38 + 0.05 * u[0]
    hip = (-0.12, 0.0, seat + 0.08)
    feet = (0.42, 0.22) if wheels else (0.1 + 0.5 * u[1] ** 2.5, ANKLE)
    ankles = tuple((feet[0], side * (0.08 + 0.08 * u[2]), feet[1]) for side in (1, -1))
    ahead, wide, up = ((0.22, 0.09, 0.2), (0.36, 0.12, 0.33), (0.28, 0.04, 0.45), (0.1, 0.27, 0.2))[
        3 if wheels and u[3] < 0.6 else int(3 * u[4])
    ]
    hands = tuple((hip[0] + ahead, side * wide, hip[2] + up) for side in (1, -1))
    pose = _pose(body, hip, 24.0 * u[5] - 14.0, ankles, ((1.0, 0.0),) * 2, hands, 0.25 * u[6])
    extent = _reach(body, pose)
    if wheels:
        extent = _around(extent, (-0.44, -0.33, 0.0, 0.6, 0.33, 0.95))
        return _labelled(
            rng, "Person_sitting", partial(_wheelchair, body, pose), extent, (0.04, 0.02, 0.04)
        )
    chair = [(-0.27, 0.18, -0.22, 0.22, seat - 0.07, seat - 0.02)]
    chair += [(-0.3, -0.26, -0.22, 0.22, 0.0, seat + 0.35)]
    make = partial(_person, body, pose, (boxes(chair, Material.WOOD),))
    extent = _around(extent, (-0.3, -0.22, 0.0, 0.18, 0.22, 0.0))
    return _labelled(rng, "Person_sitting", make, extent, (0.06, 0.04, 0.03))


def _wheelchair(body: Body, pose: Pose) -> Solids:
    rows = [(-0.12, y, 0.0, 0.3) for y in (-0.3, 0.3)] + [
        (0.36, y, 0.0, 0.09) for y in (-0.24, 0.24)
    ]
    chair = [(-0.34, 0.2, -0.23, 0.23, 0.4, 0.46), (-0.36, -0.32, -0.22, 0.22, 0.4, 0.92)]
    chair += [(0.35, 0.58, -0.18, 0.18, 0.1, 0.14)]
    rods = [(0.18, y, 0.42, 0.4, y, 0.14, 0.02, 0.02) for y in (-0.16, 0.16)]
    return solids(
        *figure(body, pose),
        boxes(chair, Material.CLOTH),
        limbs(rods, Material.METAL, 4),
        _rims(rows),
        volumes=_spokes([(-0.12, y, 0.0, 0.3) for y in (-0.3, 0.3)]),
    )


def _rims(rows: Sequence[tuple]) -> Hulls:
    """Tyres and rims of wheels (x, y, 0, radius) that stand on the ground."""
    turns = [2 * pi * k / 10 for k in range(11)]
    return limbs([
        _tube(*(
            (x + (radius - 0.022) * cos(turn), y, radius + (radius - 0.022) * sin(turn), 0.025, 0.025)
            for turn in turns
        ))
        for x, y, _, radius in rows
    ], Material.RUBBER, 4)  # fmt: skip


def _spokes(rows: Sequence[tuple]) -> Volumes:
    discs = [(x, y, radius, 0.9 * radius, 0.015, 0.9 * radius) for x, y, _, radius in rows]
    return volumes(discs, True, SPOKES, Material.METAL)


def _frame(axles: tuple[float, float], radius: float, grip: Point, seat: Point) -> list[tuple]:
    """Rods of a bicycle's frame, fork, crank, rack, saddle and handlebar; grip: the left end."""
    (rear, front), (x, _, z), (bar, wide, high) = axles, seat, grip
    crank, head = (CRANK[0], 0.0, CRANK[2]), (front - 0.2, 0.0, 0.9)
    rods = [
        (crank, (x, 0, z), 0.02),
        (crank, (head[0], 0, 0.78), 0.023),
        ((x + 0.05, 0, z - 0.15), head, 0.02),
        ((rear, 0.05, radius), crank, 0.02),
        ((rear, -0.05, radius), (x, 0, z - 0.1), 0.02),
        ((front, 0, radius), (head[0] - 0.03, 0, high), 0.022),
        ((rear - 0.2, 0, 2 * radius + 0.06), (x, 0, 2 * radius + 0.06), 0.03),
        ((crank[0] - 0.12, 0.07, crank[2] - 0.12), (crank[0] + 0.12, 0.07, crank[2] + 0.12), 0.03),
        ((bar, -wide, high), (bar, wide, high), 0.02),
    ]
    saddle = (x - 0.14, 0, z + 0.03, x + 0.13, 0, z + 0.05, 0.08, 0.03, 0.03, 0.03)
    return [(*a, *b, r, r, r, r) for a, b, r in rods] + [saddle]


def _bicycle(length: float, radius: float, grip: Point, seat: Point, luggage: str) -> Solids:
    rear, front = radius - length / 2, length / 2 - radius
    wheels, parts = [(rear, 0, 0, radius), (front, 0, 0, radius)], []
    if luggage == "panniers":
        sides = ((-0.22, -0.07), (0.07, 0.22))
        cases = [(rear - 0.15, rear + 0.2, *side, 0.4, 0.75) for side in sides]
        parts = [boxes(cases, Material.CLOTH)]
    elif luggage == "a basket":
        basket = (grip[0] + 0.05, grip[0] + 0.33, -0.17, 0.17, grip[2] - 0.25, grip[2])
        parts = [boxes([basket], Material.PLASTIC)]
    elif luggage == "a child":
        shell = boxes([(rear - 0.22, rear - 0.16, -0.16, 0.16, 0.75, 1.2)], Material.PLASTIC)
        parts = [shell, *_child(rear, 0.75)]
    elif luggage == "a cargo box":
        wheels = [(rear, 0, 0, radius), (front, 0.34, 0, radius), (front, -0.34, 0, radius)]
        tub = boxes([(front - 0.5, length / 2, -0.3, 0.3, 0.3, 0.85)], Material.WOOD)
        parts = [tub, *_child(front - 0.2, 0.5)]
    frame = limbs(_frame((rear, front), radius, grip, seat), Material.METAL, 4)
    return solids(frame, _rims(wheels), *parts, volumes=_spokes(wheels))


def bicycle(rng: np.random.Generator) -> Thing:
    """A parked bicycle: it has no label."""
    u, luggage = rng.random(2).tolist(), _pick(LUGGAGE, rng)
    luggage = "nothing" if luggage == "a child" else luggage
    length = 2.0 if luggage == "a cargo box" else 1.6 + 0.2 * u[0]
    make = partial(_bicycle, length, 0.34, (0.25, 0.28, 1.05), (-0.3, 0.0, 0.88), luggage)
    return Thing(make, (-length / 2 - 0.05, -0.4, 0.0, length / 2 + 0.05, 0.4, 1.15))


def cyclist(rng: np.random.Generator) -> Thing:
    """Somebody on a bicycle; the box holds rider, bicycle and luggage."""
    body, u, luggage = _rider(rng), rng.random(9).tolist(), _pick(LUGGAGE, rng)
    tall, cargo, small = body.tall, luggage == "a cargo box", u[0] < 0.1
    radius = 0.26 if small else 0.32 + 0.03 * u[1]
    length = 1.95 + 0.1 * u[2] if cargo else 1.35 + 0.15 * u[2] if small else 1.6 + 0.24 * u[2]
    sport = 0.0 if cargo else u[3] * u[3]  # how far the rider bends down
    wide = 0.3 if cargo else 0.2 + 0.1 * u[4]
    at = 0.1 + 0.3 * sport - 0.1 * small, 1.12 - 0.17 * sport
    saddle = (0.42 + 0.02 * u[5]) * tall
    hip = (CRANK[0] - 0.31 * saddle, 0.0, CRANK[2] + 0.95 * saddle)
    turn = 2 * pi * u[6]
    ankles = tuple(
        (
            CRANK[0] - 0.12 + side * 0.17 * cos(turn),
            side * 0.11,
            CRANK[2] + 0.1 + side * 0.17 * sin(turn),
        )
        for side in (1, -1)
    )
    hands = tuple((at[0], side * (wide - 0.04), at[1] + 0.02) for side in (1, -1))
    pose = _pose(body, hip, 9.0 + 36.0 * sport, ankles, ((0.98, -0.2),) * 2, hands, 0.25 * u[7])
    ride = partial(
        _bicycle, length, radius, (at[0], wide, at[1]), (hip[0], 0.0, hip[2] - 0.1), luggage
    )
    side = 0.37 if cargo else wide
    extent = _around(_reach(body, pose), (-length / 2, -side, 0.0, length / 2, side, 0.0))
    return _labelled(rng, "Cyclist", partial(_riding, body, pose, ride), extent, (0.05, 0.03, 0.03))


def _rider(rng: np.random.Generator, high: float = 1.88) -> Body:
    body = _body(rng, 1.45, high)
    return body._replace(carried="rucksack" if body.carried == "rucksack" else "nothing", hem=0.0)


def _riding(body: Body, pose: Pose, ride) -> Solids:
    ridden = ride()
    return solids(*figure(body, pose), *ridden.hulls, volumes=ridden.volumes)


def scooter_rider(rng: np.random.Generator) -> Thing:
    """Somebody on an electric scooter. KITTI's drives of 2011 have none. Waymo's rules of labelling
    call its rider a pedestrian, and the box, which holds the scooter, has a pedestrian's size."""
    body, u = _rider(rng, 1.74), rng.random(5).tolist()
    pose = standing(body, (1.0, u[1], 0.0, u[3], u[4]), "at a bar", 0.14)
    front = 0.45 + 0.05 * u[0]
    extent = _around(_reach(body, pose), (-0.55, -0.25, 0.0, front + 0.11, 0.25, 1.2))
    make = partial(_riding, body, pose, partial(_scooter, front))
    return _labelled(rng, "Pedestrian", make, extent, (0.03, 0.05, 0.03))


def _scooter(front: float) -> Solids:
    rods = [
        (front, 0, 0.12, front - 0.12, 0, 1.1, 0.03, 0.025),
        (front - 0.12, -0.24, 1.1, front - 0.12, 0.24, 1.1, 0.02, 0.02),
    ]
    deck = boxes([(-0.4, front - 0.08, -0.08, 0.08, 0.08, 0.14)], Material.RUBBER)
    return solids(
        limbs(rods, Material.METAL, 4), deck, _rims([(-0.43, 0, 0, 0.11), (front, 0, 0, 0.11)])
    )


def motorcyclist(rng: np.random.Generator) -> Thing:
    """Somebody on a motorcycle or a motor scooter: Misc, for KITTI's Cyclists are bicycles but for
    a few, and neither their sizes nor their shapes are those of a motorcycle."""
    body, u = _rider(rng), rng.random(6).tolist()
    scooter = u[0] < 0.5
    ankles = tuple((0.1 if scooter else -0.05, side * 0.2, 0.43) for side in (1, -1))
    hands = tuple((0.33, side * 0.3, 1.06) for side in (1, -1))
    pose = _pose(body._replace(hair=0.03), (-0.3, 0.0, 0.92), 8 + 20 * u[1], ankles,
                 ((1.0, 0.0),) * 2, hands, 0.6 + 0.5 * u[2])  # fmt: skip
    ride = partial(_motorcycle, scooter, tuple(u[3:]))
    extent = _around(_reach(body, pose), (-1.05, -0.36, 0.0, 1.02, 0.36, 1.35))
    make = partial(_riding, body._replace(hair=0.03), pose, ride)
    return _labelled(rng, "Misc", make, extent, (0.05, 0.03, 0.03))


def motorcycle(rng: np.random.Generator) -> Thing:
    """A parked motorcycle or scooter: it has no label."""
    make = partial(_motorcycle, bool(rng.random() < 0.5), tuple(rng.random(3).tolist()))
    return Thing(make, (-1.15, -0.45, 0.0, 1.15, 0.45, 1.45))


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
    places = [(x, 0, radius, radius, 0.07, radius) for x in (-half, half)]
    tyres = volumes(places, True, 0.03, Material.RUBBER)
    return solids(boxes(rows, Material.PAINT), limbs(rods, Material.METAL, 5), volumes=tyres)
