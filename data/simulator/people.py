"""People on foot, in groups, sitting and riding, and two-wheelers that are parked.

Segments of a body are shares of its stature after Drillis and Contini (1966; Winter, Biomechanics
and Motor Control of Human Movement, figure 4.1). Stature is 1.70 m on average, its standard
deviation 0.10 m. Angles of a walk are Perry's (Gait Analysis, 1992), angles of a run Novacheck's
(Gait and Pose 7, 1998).

A box is drawn around a body, never a body into a box. KITTI's boxes keep their size in all frames
of a track, so the box of somebody who walks holds the whole stride.
"""

from bisect import bisect
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import accumulate, pairwise
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
    tube,
    volumes,
)
from millisecond.data.simulator.statistics import SIZES

Point = tuple[float, float, float]
Pair = Sequence[Point]  # left, right
SIDES = (1.0, -1.0)  # left, right
FLAT = ((1.0, 0.0), (1.0, 0.0))  # both shoes on the ground

# Shares of the stature: lengths; half of the distance of the joints; what lies above the hips.
THIGH, SHANK, UPPER_ARM, FOREARM = 0.245, 0.246, 0.186, 0.18  # a forearm ends in the fist
HIP, SHOULDER = 0.05, 0.112
SHOULDERS, NECK, CROWN = 0.285, 0.32, 0.15  # the crown over the neck
ANKLE = 0.085  # over the sole of a shoe, metres
HEEL, TOE = 0.07, 0.2  # ends of a shoe, behind and before the ankle, metres

# Rings of trunk and head: height over the hips and over the neck, half across, half deep, and how
# far ahead: the seat and the upper back lie behind, the belly and the face before. Else only shoes,
# knees and elbows show where somebody who stands looks.
TRUNK = (
    (-0.05, 0.06, 0.055, -0.008), (0.0, 0.104, 0.075, -0.014), (0.09, 0.092, 0.066, 0.01),
    (0.19, 0.1, 0.074, 0.004), (SHOULDERS, 0.112, 0.064, -0.014), (0.33, 0.036, 0.042, -0.004),
)  # fmt: skip
HEAD = (
    (-0.01, 0.034, 0.036, -0.002), (0.02, 0.034, 0.044, 0.012), (0.05, 0.044, 0.058, 0.018),
    (0.09, 0.049, 0.062, 0.012), (0.13, 0.043, 0.054, 0.006), (CROWN, 0.02, 0.026, 0.004),
)  # fmt: skip

# Share of the cycle from one heel strike to the next; thigh forward of the vertical, bend of the
# knee, toes over the heel, degrees.
WALK = (
    (0.0, 20, 5, 20), (0.12, 19, 18, 0), (0.3, 2, 8, 0), (0.5, -20, 8, -18),
    (0.62, -10, 40, -62), (0.75, 15, 60, -48), (0.87, 25, 28, -5), (1.0, 20, 5, 20),
)  # fmt: skip
RUN = (
    (0.0, 28, 18, 5), (0.15, 12, 42, 0), (0.38, -22, 16, -50), (0.55, -8, 80, -95),
    (0.68, 20, 100, -70), (0.85, 38, 60, -20), (1.0, 28, 18, 5),
)  # fmt: skip
LAST = {WALK: 0.62, RUN: 0.55}  # when a shoe is farthest behind; it is farthest ahead at 0

# Places of both fists: forward, aside, up, shares of the stature.
HANG = (0.02, 0.13, 0.44)
HANDS = {
    "hanging": (HANG, HANG), "in pockets": ((0.05, 0.13, 0.5), (0.05, 0.13, 0.5)),
    "at the ear": (HANG, (0.05, 0.07, 0.92)), "on the back": ((-0.09, 0.02, 0.5),) * 2,
    "with a telephone": ((0.03, 0.15, 0.46), (0.17, 0.04, 0.69)),
    "before the chest": ((0.16, 0.04, 0.68), (0.15, 0.05, 0.66)),
    "crossed": ((0.11, -0.05, 0.69), (0.09, -0.05, 0.67)),
    "under an umbrella": (HANG, (0.13, 0.05, 0.68)),
    "at a bar": ((0.26, 0.12, 0.58), (0.26, 0.12, 0.58)),
    "down": ((0.25, 0.1, 0.36), (0.22, 0.1, 0.33)),
}  # fmt: skip

LIFT = 0.03  # the bottom of a person's box is at most so high over the ground, metres
SPOKES = 0.5  # mean way of a pulse in a wheel, metres: 36 spokes of 2 mm cover a twentieth of it
CRANK = (-0.1, 0.28)  # of a bicycle, from its middle and over the ground, metres


def _choice(**shares: float) -> Callable[[float], str]:
    """Which name a random number from 0 to 1 stands for; the sum of the shares is one."""
    names = [name.replace("_", " ") for name in shares]
    ends = list(accumulate(shares.values()))[:-1]
    return lambda u: names[bisect(ends, u)]


WAYS = _choice(walk=0.6, stand=0.35, run=0.02, bend=0.03)
WALKING = _choice(hanging=0.72, at_the_ear=0.07, with_a_telephone=0.08, in_pockets=0.13)
STANDING = _choice(
    hanging=0.35, at_the_ear=0.1, with_a_telephone=0.16, in_pockets=0.17, before_the_chest=0.06,
    crossed=0.1, on_the_back=0.06,
)  # fmt: skip
CARRIED = _choice(nothing=0.57, rucksack=0.15, bag=0.18, shopping=0.08, umbrella=0.02)
LUGGAGE = _choice(nothing=0.6, panniers=0.14, basket=0.15, child=0.05, cargo=0.06)
# A third of KITTI's labelled pedestrians have another one within a metre.
GROUPS = _choice(
    alone=0.37, two_abreast=0.22, three_abreast=0.05, two_talk=0.09, three_talk=0.04, queue=0.04,
    party=0.04, pram=0.04, suitcase=0.03, dog=0.05, bicycle=0.03,
)  # fmt: skip


class Person(NamedTuple):
    """Somebody's measures."""

    tall: float  # stature, metres
    shoulder: float  # half of the distance of the shoulders, metres
    girth: float  # factor of the trunk's breadth and depth
    cloth: float  # thickness of clothes, metres
    hair: float  # thickness of hair, cap, hood or helmet, metres
    hem: float  # height of the hem of a skirt or a coat, share of the stature; 0 without
    carried: str


class Pose(NamedTuple):
    """Where the joints are, metres."""

    hip: tuple[float, float]  # x and z
    lean: tuple[float, float]  # the trunk's direction, x and z of a unit vector
    knees: Pair
    ankles: Pair
    toes: Sequence[tuple[float, float]]  # directions of the shoes, as `lean`
    elbows: Pair
    hands: Pair

    def trunk(self, up: float, fore: float = 0.0) -> Point:
        """A point so many metres up the trunk from the hips, and before its axis."""
        (x, z), (a, b) = self.hip, self.lean
        return x + up * a + fore * b, 0.0, z + up * b - fore * a

    def head(self, neck: float, up: float, fore: float = 0.0) -> Point:
        """A point above the neck: people look ahead, so the head leans less than the trunk."""
        x, _, z = self.trunk(neck)
        a = 0.35 * self.lean[0]
        return x + a * up + fore, 0.0, z + sqrt(1 - a * a) * up


def _body(rng: np.random.Generator, low: float = 1.45, high: float = 1.88) -> Person:
    tall = min(max(1.7 + 0.1 * float(rng.standard_normal()), low), high)
    girth, cloth, hair, dressed, hem, broad, carried = rng.random(7).tolist()
    shoulder, hem = (0.7 + 0.42 * broad) * SHOULDER * tall, (0.25 + 0.2 * hem) * (dressed < 0.22)
    girth, cloth, hair = 0.92 + 0.3 * girth * girth, 0.008 + 0.025 * cloth, 0.025 * hair
    return Person(tall, shoulder, girth, cloth, hair, hem, CARRIED(carried))


def _joint(ax, az, bx, bz, first: float, second: float) -> tuple[float, float]:
    """x and z of the joint of a limb from a to b, bent to the left of the way from a to b."""
    x, z = bx - ax, bz - az
    far = sqrt(x * x + z * z)
    along = min((far * far + first * first - second * second) / (2 * far), first)
    off = sqrt(first * first - along * along)
    return ax + (along * x - off * z) / far, az + (along * z + off * x) / far


def _pose(body: Person, hip, lean: float, ankles: Pair, toes, hands: Pair, out: float) -> Pose:
    """Knees bend forward, elbows back. lean: degrees; out: of the elbows, metres."""
    tall, (a, b) = body.tall, (sin(radians(lean)), cos(radians(lean)))
    top = hip[0] + SHOULDERS * tall * a, hip[1] + SHOULDERS * tall * b
    knees, elbows = [], []
    for side, (x, y, z), hand in zip(SIDES, ankles, hands, strict=True):
        u, w = _joint(hip[0], hip[1], x, z, THIGH * tall, SHANK * tall)
        knees.append((u, 0.6 * y + 0.4 * side * HIP * tall, w))
        u, w = _joint(hand[0], hand[2], top[0], top[1], FOREARM * tall, UPPER_ARM * tall)
        elbows.append((u, (side * body.shoulder + hand[1]) / 2 + side * out, w))
    return Pose(hip, (a, b), knees, ankles, toes, elbows, hands)


def _hands(body: Person, where: str, far: float = 1.0, rise: float = 0.0) -> Pair:
    far *= body.shoulder / (SHOULDER * body.tall)
    return [
        (x * body.tall, side * far * y * body.tall, z * body.tall + rise)
        for side, (x, y, z) in zip(SIDES, HANDS[where], strict=True)
    ]


def _leg(tall: float, gait, phase: float, pace: float) -> tuple[float, ...]:
    """x and z of knee and ankle from the hip, direction of the shoe, the lowest z of the shoe, the
    angle of the thigh. pace: length of the strides, 1 is the usual one."""
    k = 0
    while gait[k + 1][0] <= phase:
        k += 1
    (start, a, b, c), (end, d, e, f) = gait[k], gait[k + 1]
    share = (phase - start) / (end - start)
    turn = radians(pace * (a + share * (d - a)))
    shank = turn - radians((0.4 + 0.6 * pace) * (b + share * (e - b)))
    pitch = radians(pace * (c + share * (f - c)))
    x, z = THIGH * tall * sin(turn), -THIGH * tall * cos(turn)
    u, w = x + SHANK * tall * sin(shank), z - SHANK * tall * cos(shank)
    a, b = cos(pitch), sin(pitch)
    return x, z, u, w, a, b, w - ANKLE * a + min(TOE * b, -HEEL * b), turn


def striding(body: Person, gait, phase: float, pace: float, out: float, hands: str) -> Pose:
    """Somebody at this share of a cycle of `WALK` or `RUN`; out: of the elbows, metres."""
    tall, runs = body.tall, gait is RUN
    legs = [_leg(tall, gait, (phase + half) % 1.0, pace) for half in (0.0, 0.5)]
    rise = 0.03 * runs - min(legs[0][6], legs[1][6])
    fists = _hands(body, hands)
    if hands == "hanging":  # an arm swings with the leg of the other side
        bend, reach, far = (0.5, 0.3, 0.08) if runs else (0.12, 0.355, 0.04)
        fists = [
            (tall * (far + reach * sin(0.8 * leg[7] + bend)), side * (body.shoulder + 0.04 + out),
             rise + tall * (SHOULDERS - reach * cos(0.8 * leg[7] + bend)))
            for side, leg in zip(SIDES, legs[::-1], strict=True)
        ]  # fmt: skip
    aside = (0.8 * HIP * tall, -0.8 * HIP * tall)
    ankles = [(leg[2], y, rise + leg[3]) for leg, y in zip(legs, aside, strict=True)]
    toes = [leg[4:6] for leg in legs]
    return _pose(body, (0.0, rise), 12.0 if runs else 4.0, ankles, toes, fists, out)


def standing(body: Person, u: Sequence[float], hands: str, floor: float = 0.0) -> Pose:
    """Somebody who stands, or who bends down if the hands are down. floor: its height, metres."""
    apart, turned, aside, out, lean = u
    ahead, down = 0.16 * (apart - 0.5), hands == "down"
    # the weight rests on the middle of the shoes
    ankles = [(side * ahead - 0.04, side * (0.06 + 0.09 * aside), floor + ANKLE) for side in SIDES]
    far = (0.96 if down else 0.99 + 0.009 * turned) * (THIGH + SHANK) * body.tall
    height = floor + ANKLE + sqrt(far * far - (abs(ahead) + 0.04) ** 2)
    fists = _hands(body, hands, 0.9 + 0.3 * out, floor)
    if down:
        fists = [(x + 0.2 * turned, y, z + 0.1 * apart) for x, y, z in fists]
    bend = 32.0 + 25.0 * lean if down else 8.0 * lean - 2.0
    return _pose(body, (-0.12 * down, height), bend, ankles, FLAT, fists, 0.08 * out * out)


def _limb(start: Point, bend: Point, end: Point, radii: list[float], calf=0.0) -> tuple[float, ...]:
    """A row of `limbs` for an arm or a leg, with five radii. calf: how far it lies behind the line
    from knee to ankle, and the thigh before its own, share of their lengths."""
    (a, b, c), (u, v, w), (x, y, z) = start, bend, end
    upper = (a + u) / 2 - calf * (w - c), (b + v) / 2, (c + w) / 2 + calf * (u - a)
    ahead, aside, up = 0.65 * u + 0.35 * x, 0.65 * v + 0.35 * y, 0.65 * w + 0.35 * z
    lower = ahead + calf * (z - w), aside, up - calf * (x - u)
    return (a, b, c, *upper, u, v, w, *lower, x, y, z, *radii, *radii)


def figure(body: Person, pose: Pose, more: Callable[[], Solids] = solids) -> Solids:
    """Somebody with clothes and what is carried, and what `more` makes."""
    tall, cloth, girth, rows, shoes = body.tall, body.cloth, body.girth, [], []
    leg = [r * tall + cloth for r in (0.055 * girth, 0.052 * girth, 0.037, 0.034, 0.023)]
    arm = [r * tall + cloth for r in (0.036, 0.032, 0.027, 0.025, 0.024)]
    (x, z), (sx, _, sz) = pose.hip, pose.trunk(SHOULDERS * tall)
    for k, side in enumerate(SIDES):
        hip, top = (x, side * HIP * tall, z), (sx, side * body.shoulder, sz)
        rows.append(_limb(hip, pose.knees[k], pose.ankles[k], leg, 0.045))
        rows.append(_limb(top, pose.elbows[k], pose.hands[k], arm))
        (u, y, w), (a, b) = pose.ankles[k], pose.toes[k]
        back = (u - HEEL * a + 0.04 * b, y, w - HEEL * b - 0.04 * a, 0.042, 0.045)
        front = (u + TOE * a + 0.055 * b, y * 1.15, w + TOE * b - 0.055 * a, 0.042, 0.03)
        shoes.append(tube(back, front))
    broad = (girth + body.shoulder / (SHOULDER * tall)) / 2
    trunk = [
        (
            *pose.trunk(up * tall, fore * tall),
            wide * tall * broad + cloth,
            deep * tall * girth + cloth,
        )
        for up, wide, deep, fore in TRUNK
    ]
    head = [
        (*pose.head(NECK * tall, up * tall, fore * tall), *(r * tall + body.hair for r in radii))
        for up, *radii, fore in HEAD
    ]
    wraps = [tube(*trunk)] + ([_hem(body, pose)] if body.hem else [])
    parts = [limbs(rows, Material.CLOTH), limbs(shoes, Material.CLOTH), *_carried(body, pose)]
    parts += [limbs(wraps, Material.CLOTH, 8), limbs([tube(*head)], Material.SKIN, 8)]
    other = more()
    return solids(*parts, *other.hulls, volumes=other.volumes)


def _hem(body: Person, pose: Pose) -> tuple[float, ...]:
    """A skirt or the lower part of a coat, around both thighs."""
    tall, (x, top), rings = body.tall, pose.hip, []
    for k in range(6):
        share = k / 5
        z = top + 0.06 * tall - share * (top + 0.06 * tall - body.hem * tall)
        down = min(max((top - z) / (top - pose.knees[0][2]), 0.0), 1.0)
        a, b = (x + down * (knee[0] - x) for knee in pose.knees)
        wide, deep = (0.1 + 0.03 * share) * tall, abs(a - b) / 2 + 0.078 * tall
        rings.append(((a + b) / 2, 0.0, z, wide + body.cloth, deep + body.cloth))
    return tube(*rings)


def _carried(body: Person, pose: Pose) -> list[Hulls]:
    tall, what, (x, y, z) = body.tall, body.carried, pose.hands[1]
    if what == "rucksack":
        back = -0.074 * tall * body.girth - 0.08
        low, high = pose.trunk(0.08 * tall, back), pose.trunk(0.29 * tall, back)
        return [limbs([tube((*low, 0.16, 0.09), (*high, 0.13, 0.07))], Material.CLOTH, 8)]
    if what == "bag":
        (x, z), y = pose.hip, -body.shoulder * body.girth - 0.06
        row = tube((x, y, z - 0.08 * tall, 0.06, 0.15), (x, y, z + 0.06 * tall, 0.05, 0.14))
        return [limbs([row], Material.CLOTH, 8)]
    if what == "shopping":
        row = tube((x, y, z - 0.42, 0.09, 0.14), (x, y, z, 0.04, 0.1))
        return [limbs([row], Material.PLASTIC, 8)]
    if what == "umbrella":
        canopy = (x, y, tall + 0.03, x, y, tall + 0.25, 0.52, 0.06)
        rod = (x, y, z, x, y, tall + 0.25, 0.015, 0.015)
        return [limbs([rod, canopy], Material.CLOTH, 8)]
    return []


def reach(body: Person, pose: Pose) -> Extent:
    """The extent of somebody without an umbrella, a little more than the hulls."""
    tall, cloth, girth, hip = body.tall, body.cloth, body.girth, pose.hip[0]
    crown, face = pose.head(NECK * tall, CROWN * tall, 0.014 * tall), 0.064 * tall + body.hair
    deep = 0.076 * tall * girth + cloth
    middles = [pose.trunk(up * tall, fore * tall)[0] for up, _, _, fore in TRUNK[1:5]]
    joints = (*pose.knees, *pose.elbows, *pose.hands)
    x, y = [joint[0] for joint in joints], [abs(joint[1]) for joint in joints[2:]]
    thick, hips = 0.031 * tall + cloth, 0.056 * tall * (girth + 1) + cloth
    x0, x1 = min(min(x) - thick, crown[0] - face), max(max(x) + thick, crown[0] + face)
    x0, x1 = min(x0, min(middles) - deep), max(x1, max(middles) + deep)
    wide = max(max(y) + thick, body.shoulder + 0.036 * tall + cloth, hips)
    if body.hem:
        x0, x1 = min(x0, min(x[:2]) - deep - 0.02), max(x1, max(x[:2]) + deep + 0.02)
        wide = max(wide, 0.13 * tall + cloth)
    for ankle, (a, b) in zip(pose.ankles, pose.toes, strict=True):
        x0 = min(x0, ankle[0] - HEEL * a - 0.09 * abs(b) - 0.01)
        x1 = max(x1, ankle[0] + TOE * a + 0.09 * abs(b) + 0.01)
        wide = max(wide, 1.15 * abs(ankle[1]) + 0.045)
    right = wide
    if body.carried == "rucksack":
        back = -0.074 * tall * girth - 0.17
        x0 = min(x0, pose.trunk(0.08 * tall, back)[0], pose.trunk(0.29 * tall, back)[0])
    elif body.carried == "bag":
        x0, x1 = min(x0, hip - 0.15), max(x1, hip + 0.15)
        right = max(wide, body.shoulder * girth + 0.12)
    elif body.carried == "shopping":
        x0, x1 = min(x0, x[-1] - 0.14), max(x1, x[-1] + 0.14)
        right = max(wide, y[-1] + 0.09)
    return x0, -right, 0.0, x1, wide, crown[2] + 0.01


def _labelled(rng, kind: str, body: Person, pose: Pose, gaps, extent=None, more=solids) -> Thing:
    """Somebody with what `more` makes, and the box as an annotator draws it: longer, wider and
    higher by up to twice the gaps, within the limits of the labels. extent: what `more` makes, or
    the strides of a whole cycle."""
    whole, u, limits, box = reach(body, pose), rng.random(6).tolist(), SIZES.get(kind), []
    for axis in range(3):
        low, high = whole[axis], whole[axis + 3]
        if extent:
            low, high = min(low, extent[axis]), max(high, extent[axis + 3])
        low = low if axis < 2 else LIFT * u[5]
        size, gap = high - low, 2 * gaps[axis] * u[axis]
        if limits:
            gap = min(max(gap, limits.low[axis] - size), limits.high[axis] - size)
        first = gap * (0.25 + 0.5 * u[axis + 3]) if axis < 2 else 0.0
        box.append((low - first, high + gap - first))
    (x0, x1), (y0, y1), (z0, z1) = box
    over = 0.52 if body.carried == "umbrella" else 0.0
    whole = (x0 - over, y0 - over, 0.0, x1 + over, y1 + over, z1 + 0.6 * over)
    return Thing(partial(figure, body, pose, more), whole, kind, (x0, y0, z0, x1, y1, z1))


def pedestrian(rng: np.random.Generator, way: str = "", pace: float = 0.0, push=False) -> Thing:
    """Somebody who walks, stands, runs or bends down, as `WAYS` says unless given. pace: length of
    the strides, 1 is the usual one; push: a pram."""
    *u, going, holding = rng.random(7).tolist()
    way = way or WAYS(going)
    body = _body(rng, 1.6 if way == "bend" else 1.45)
    hands = (STANDING if way == "stand" else WALKING)(holding)
    if push or way in ("run", "bend"):
        hands = "at a bar" if push else "down" if way == "bend" else "hanging"
        body = body._replace(carried="rucksack" if body.carried == "rucksack" else "nothing")
    hands = {"umbrella": "under an umbrella", "shopping": "hanging"}.get(body.carried, hands)
    if way in ("stand", "bend"):
        pose, extent = standing(body, u, hands), None
    else:
        # Nobody's stride is longer than the longest labelled box.
        pace = pace or 0.95 + 0.15 * float(rng.standard_normal())
        gait, most = (RUN, 1.6) if way == "run" else (WALK, 2.2)
        pace = min(max(pace, 0.5), most / body.tall)
        pose = striding(body, gait, u[0], pace, 0.08 * u[1] * u[1], hands)
        extent = _cycle(body, gait, pace)
    return _labelled(rng, "Pedestrian", body, pose, (0.04, 0.08, 0.04), extent)


def _cycle(body: Person, gait, pace: float) -> Extent:
    """The extent of the shoes over a whole cycle, and the height when the hips are highest."""
    first, last = (_leg(body.tall, gait, phase, pace) for phase in (0.0, LAST[gait]))
    back = last[2] - HEEL * last[4] - 0.09 * abs(last[5]) - 0.02
    ahead = first[2] + TOE * first[4] + 0.09 * abs(first[5]) + 0.02
    share = 0.997 * (THIGH + SHANK) + NECK + CROWN
    return back, 0.0, 0.0, ahead, 0.0, ANKLE + share * body.tall + 0.05 * (gait is RUN)


def walkers(rng: np.random.Generator) -> Thing:
    """Somebody alone, or a group of `GROUPS`: the others are the company of the first."""
    group = GROUPS(rng.random())
    if group == "alone":
        return pedestrian(rng)
    if group in BESIDE:
        person = pedestrian(rng, "walk", push=group in ("pram", "bicycle"))
        back, right, _, ahead, _, _ = person.extent
        make, extent = BESIDE[group]
        x, y = {
            "pram": (ahead + 0.02, 0.0), "suitcase": (back, 0.0), "dog": (0.2, right - 0.2),
            "bicycle": (0.2, right - 0.38),
        }[group]  # fmt: skip
        thing = Thing(partial(make, *rng.random(2).tolist()), extent)
        return replace(person, company=((thing, x, y, 0.0),))
    least, more = {"queue": (3, 2), "party": (4, 3)}.get(group, (2 + group.startswith("three"), 1))
    count, abreast = least + int(rng.integers(more)), group.endswith("abreast")
    pace, walk = max(0.95 + 0.12 * float(rng.standard_normal()), 0.5), abreast or group == "party"
    people = [pedestrian(rng, "walk" if walk else "stand", pace) for _ in range(count)]
    places, x, y, u = [], 0.0, 0.0, rng.random(2 * count).tolist()
    long, wide = (max(p.extent[k + 3] for p in people) - min(p.extent[k] for p in people)
                  for k in (0, 1))  # fmt: skip
    # who talk stand on a circle and look to its middle
    aside = max(max(-p.extent[1], p.extent[4]) for p in people) * 0.58 * (count - 2)
    away = max(p.extent[3] for p in people) + aside + 0.03 + 0.2 * u[0]
    for k, (a, b) in enumerate(pairwise(people), 1):
        turn = 0.0
        if abreast:
            x, y = 0.5 * u[k] - 0.25, y + a.extent[4] - b.extent[1] + 0.02 + 0.15 * u[-k]
        elif group == "queue":
            x += a.extent[0] - b.extent[3] - 0.03 - 0.5 * u[k]
        elif group == "party":  # pairs one behind the other
            row, column = divmod(k, 2)
            x, y = -row * (long + 0.2) - 0.2 * u[k], column * (wide + 0.2 * u[0])
        else:
            turn = 2 * pi * k / count
            x, y = away * (1 - cos(turn)), -away * sin(turn)
        places.append((b, x, y, turn))
    return replace(people[0], company=tuple(places))


def _pram(size: float, deep: float) -> Solids:
    wheels = [(x, y, 0.13 + 0.02 * size) for x in (0.25, 0.75) for y in (-0.27, 0.27)]
    tub = [(0.2, 0.95, -0.2, 0.2, 0.45, 0.72 + 0.2 * deep), (0.2, 0.5, -0.2, 0.2, 0.72, 1.0)]
    bar = limbs([(0.02, 0, 1.02, 0.35, 0, 0.5, 0.22, 0.22, 0.02, 0.02)], Material.METAL)
    return solids(boxes(tub, Material.CLOTH), _rims(wheels), bar)


def _suitcase(size: float, _) -> Solids:
    rows = [
        (-0.3, -0.05, -0.22, 0.22, 0.04, 0.5 + 0.25 * size),
        (-0.1, -0.08, -0.1, 0.1, 0.5, 0.98),
    ]
    return solids(boxes(rows, Material.PLASTIC))


def _dog(size: float, step: float) -> Solids:
    """A dog whose back is 0.25 to 0.65 m high."""
    rods = [
        (-0.3, 0, 0.5, 0.3, 0, 0.52, 0.1, 0.13), (0.3, 0, 0.56, 0.4, 0, 0.72, 0.08, 0.07),
        (0.36, 0, 0.72, 0.5, 0, 0.68, 0.08, 0.04),
        *((x, y, 0.5, x + 0.1 * step - 0.05, y, 0, 0.05, 0.03)
          for x in (-0.3, 0.3) for y in (-0.07, 0.07)),
    ]  # fmt: skip
    return solids(
        limbs([tuple((0.4 + 0.6 * size) * v for v in row) for row in rods], Material.CLOTH)
    )


def _pushed(size: float, luggage: float) -> Solids:
    packed = "basket" if luggage < 0.3 else "panniers" if luggage < 0.5 else "nothing"
    return _bicycle(1.6 + 0.2 * size, 0.34, (0.25, 0.28, 1.05), (-0.3, 0.88), packed)


BESIDE = {
    "pram": (_pram, (0.0, -0.32, 0.0, 1.0, 0.32, 1.15)),
    "suitcase": (_suitcase, (-0.32, -0.25, 0.0, 0.0, 0.25, 1.0)),
    "dog": (_dog, (-0.5, -0.15, 0.0, 0.5, 0.15, 0.8)),
    "bicycle": (_pushed, (-0.95, -0.33, 0.0, 0.95, 0.33, 1.15)),
}


def sitting_person(rng: np.random.Generator) -> Thing:
    """Somebody on a chair or a bench."""
    u = rng.random(3).tolist()
    seat, feet = 0.35 + 0.1 * u[0] + 0.28 * (u[2] < 0.06), (0.08 + 0.55 * u[1] ** 3, ANKLE)
    rows = [(-0.27, 0.18, -0.22, 0.22, seat - 0.07, seat - 0.02)]
    rows.append((-0.3, -0.26, -0.22, 0.22, 0.0, seat + 0.35))
    hand = ((0.22, 0.09, 0.2), (0.36, 0.12, 0.33), (0.28, 0.04, 0.45))[int(3 * u[0])]
    extent = (-0.3, -0.22, 0.0, 0.18, 0.22, 0.0)
    return _seated(rng, seat, feet, hand, extent, partial(solids, boxes(rows, Material.WOOD)))


def wheelchair_user(rng: np.random.Generator) -> Thing:
    """Somebody in a wheelchair: KITTI's type for all who sit, and the box holds the wheelchair."""
    hand = (0.1, 0.25, 0.2) if rng.random() < 0.6 else (0.22, 0.09, 0.2)
    wheels = [(-0.12, y, 0.3) for y in (-0.3, 0.3)]
    rows = [
        (-0.34, 0.2, -0.23, 0.23, 0.4, 0.46), (-0.36, -0.32, -0.22, 0.22, 0.4, 0.92),
        (0.35, 0.58, -0.18, 0.18, 0.1, 0.14), (0.17, 0.4, -0.17, -0.14, 0.14, 0.42),
    ]  # fmt: skip
    rims = _rims([*wheels, (0.36, 0.24, 0.09), (0.36, -0.24, 0.09)])
    chair = partial(solids, boxes(rows, Material.CLOTH), rims, volumes=_spokes(wheels))
    return _seated(rng, 0.48, (0.42, 0.22), hand, (-0.44, -0.33, 0.0, 0.6, 0.33, 0.95), chair)


def _seated(rng, seat: float, feet, hand: Point, extent: Extent, more) -> Thing:
    """hand: the left one, from the hip."""
    body, u = _rider(rng, 1.78)._replace(carried="nothing"), rng.random(3).tolist()
    x, z = -0.12, seat + 0.08
    ankles = [(feet[0], side * (0.08 + 0.1 * u[0]), feet[1]) for side in SIDES]
    hands = [(x + hand[0], side * hand[1], z + hand[2]) for side in SIDES]
    pose = _pose(body, (x, z), 44.0 * u[1] - 14.0, ankles, FLAT, hands, 0.08 * u[2])
    return _labelled(rng, "Person_sitting", body, pose, (0.03, 0.05, 0.03), extent, more)


TURNS = [(cos(2 * pi * k / 10), sin(2 * pi * k / 10)) for k in range(11)]


def _rims(wheels: Sequence[tuple]) -> Hulls:
    """Tyres and rims of wheels (x, y, radius) that stand on the ground."""
    rows = []
    for x, y, radius in wheels:
        r = radius - 0.022
        rows.append(tube(*((x + r * a, y, radius + r * b, 0.025, 0.025) for a, b in TURNS)))
    return limbs(rows, Material.RUBBER, 4)


def _spokes(wheels: Sequence[tuple], thick: float = 0.015, path: float = SPOKES) -> Volumes:
    discs = [(x, y, radius, 0.9 * radius, thick, 0.9 * radius) for x, y, radius in wheels]
    return volumes(discs, True, path, Material.RUBBER)


def _bicycle(length: float, radius: float, grip: Point, seat, luggage: str) -> Solids:
    """grip: the left end of the handlebar; seat: x and z of the saddle."""
    rear, front, more = radius - length / 2, length / 2 - radius, []
    wheels, rack = [(rear, 0.0, radius), (front, 0.0, radius)], 2 * radius + 0.06
    (x, z), (bar, wide, high), (a, b) = seat, grip, CRANK
    rods = [
        (a, 0, b, x, 0, z, 0.02), (a, 0, b, front - 0.2, 0, 0.78, 0.023),
        (x + 0.05, 0, z - 0.15, front - 0.2, 0, 0.9, 0.02), (rear, 0.05, radius, a, 0, b, 0.02),
        (rear, -0.05, radius, x, 0, z - 0.1, 0.02), (front, 0, radius, front - 0.23, 0, high, 0.02),
        (rear - 0.2, 0, rack, x, 0, rack, 0.03), (bar, -wide, high, bar, wide, high, 0.02),
        (a - 0.12, 0.07, b - 0.12, a + 0.12, 0.07, b + 0.12, 0.03),
        (x - 0.14, 0, z + 0.03, x + 0.13, 0, z + 0.05, 0.06),
    ]  # fmt: skip
    cases = {
        "panniers": [(rear - 0.15, rear + 0.2, y, y + 0.15, 0.4, 0.75) for y in (-0.22, 0.07)],
        "basket": [(bar + 0.05, bar + 0.33, -0.17, 0.17, high - 0.25, high)],
        "child": [(rear - 0.22, rear - 0.16, -0.16, 0.16, 0.75, 1.2)],
        "cargo": [(front - 0.5, length / 2, -0.3, 0.3, 0.3, 0.85)],
    }
    if luggage == "cargo":  # two wheels in front, a box with a child between them
        wheels[1:] = [(front, 0.34, radius), (front, -0.34, radius)]
    if luggage in ("child", "cargo"):
        x, z = (rear, 0.75) if luggage == "child" else (front - 0.2, 0.5)
        head = (x, 0, z + 0.34, x, 0, z + 0.54, 0.08, 0.06)
        more.append(limbs([(x, 0, z, x, 0, z + 0.34, 0.13, 0.1), head], Material.CLOTH))
    if luggage in cases:
        more.append(boxes(cases[luggage], Material.PLASTIC))
    frame = limbs([(*rod, rod[-1]) for rod in rods], Material.METAL, 4)
    return solids(frame, _rims(wheels), *more, volumes=_spokes(wheels))


def bicycle(rng: np.random.Generator) -> Thing:
    """A parked bicycle: it has no label."""
    u, luggage = rng.random(2).tolist(), LUGGAGE(rng.random()).replace("child", "nothing")
    half = 1.0 if luggage == "cargo" else 0.8 + 0.1 * u[0]
    make = partial(_bicycle, 2 * half, 0.34, (0.25, 0.28, 1.05), (-0.3, 0.88), luggage)
    return Thing(make, (-half - 0.05, -0.4, 0.0, half + 0.05, 0.4, 1.15))


def bicycle_stand(rng: np.random.Generator) -> Thing:
    """A low rail with bicycles on both sides, square to it."""
    places = rng.uniform(0.4, 0.8) * np.arange(rng.integers(2, 9))
    half, places = places[-1] / 2 + 0.1, (places - places[-1] / 2).tolist()
    rail = boxes([(-half, half, -0.03, 0.03, 0.1, 0.4)], Material.METAL)
    turns = (pi * (rng.integers(2, size=len(places)) - 0.5)).tolist()
    stand = Thing(partial(solids, rail), (-half, -0.05, 0.0, half, 0.05, 0.4))
    bikes = ((bicycle(rng), x, 0.1 * turn, turn) for x, turn in zip(places, turns, strict=True))
    return replace(stand, company=tuple(bikes))


def _rider(rng: np.random.Generator, high: float = 1.88) -> Person:
    body = _body(rng, 1.45, high)
    return body._replace(carried="rucksack" if body.carried == "rucksack" else "nothing", hem=0.0)


def cyclist(rng: np.random.Generator) -> Thing:
    """Somebody on a bicycle; the box holds rider, bicycle and luggage."""
    body, u, luggage = _rider(rng), rng.random(8).tolist(), LUGGAGE(rng.random())
    cargo, small = luggage == "cargo", u[0] < 0.1 and luggage != "cargo"
    radius = 0.26 if small else 0.32 + 0.03 * u[1]
    length = 1.95 + 0.1 * u[2] if cargo else 1.35 + 0.15 * u[2] if small else 1.6 + 0.24 * u[2]
    sport = 0.0 if cargo else u[3] * u[3]  # how far the rider bends down
    wide, bar = 0.16 + 0.14 * u[4], (0.1 + 0.3 * sport - 0.1 * small, 1.12 - 0.17 * sport)
    saddle = (0.42 + 0.02 * u[5]) * body.tall
    hip = CRANK[0] - 0.31 * saddle, CRANK[1] + 0.95 * saddle
    x, z, turn = CRANK[0] - 0.12, CRANK[1] + 0.1, 2 * pi * u[6]
    pedal = 0.17 * cos(turn), 0.17 * sin(turn)
    ankles = [(x + side * pedal[0], side * 0.11, z + side * pedal[1]) for side in SIDES]
    hands = [(bar[0], side * (wide - 0.04), bar[1] + 0.02) for side in SIDES]
    toes, out = ((0.98, -0.2),) * 2, 0.1 * u[7] * u[7]
    if rng.random() < 0.1:  # waits before the saddle, a foot on the ground
        hip = hip[0] + 0.15, min(hip[1], ANKLE + 0.98 * (THIGH + SHANK) * body.tall)
        ankles[0], toes = (hip[0], 0.2, ANKLE), (FLAT[0], toes[1])
    pose = _pose(body, hip, 9.0 + 36.0 * sport, ankles, toes, hands, out)
    grip, seat, side = (bar[0], wide, bar[1]), (hip[0], hip[1] - 0.1), 0.37 if cargo else wide
    ridden = partial(_bicycle, length, radius, grip, seat, luggage)
    extent = (-length / 2, -side, 0.0, length / 2, side, 0.0)
    return _labelled(rng, "Cyclist", body, pose, (0.05, 0.03, 0.03), extent, ridden)


def scooter_rider(rng: np.random.Generator) -> Thing:
    """Somebody on an electric scooter. KITTI's drives of 2011 have none. Waymo's rules of labelling
    call the rider a pedestrian, and the box, which holds the scooter, has a pedestrian's size."""
    body, u = _rider(rng, 1.74), rng.random(4).tolist()
    pose = standing(body, (1.0, u[1], 0.0, u[2], u[3]), "at a bar", 0.14)
    front = 0.45 + 0.05 * u[0]
    bar, extent = front - 0.12, (-0.55, -0.25, 0.0, front + 0.11, 0.25, 1.2)
    rods = [
        (front, 0, 0.12, bar, 0, 1.1, 0.03, 0.03),
        (bar, -0.24, 1.1, bar, 0.24, 1.1, 0.02, 0.02),
    ]
    deck = boxes([(-0.4, front - 0.08, -0.08, 0.08, 0.08, 0.14)], Material.RUBBER)
    wheels = _rims([(-0.43, 0, 0.11), (front, 0, 0.11)])
    ridden = partial(solids, limbs(rods, Material.METAL, 4), deck, wheels)
    return _labelled(rng, "Pedestrian", body, pose, (0.03, 0.05, 0.03), extent, ridden)


def motorcyclist(rng: np.random.Generator) -> Thing:
    """Somebody on a motorcycle or a motor scooter. It is Misc: KITTI's cyclists ride bicycles but
    for a few, and a motorcycle has neither their sizes nor their shapes."""
    body, u = _rider(rng)._replace(hair=0.03), rng.random(6).tolist()
    ankles = [(0.1 if u[0] < 0.5 else -0.05, side * 0.2, 0.43) for side in SIDES]
    hands = [(0.33, side * 0.3, 1.06) for side in SIDES]
    pose = _pose(body, (-0.3, 0.92), 8.0 + 20.0 * u[1], ankles, FLAT, hands, 0.08 * u[2])
    extent, ridden = (-1.05, -0.36, 0.0, 1.02, 0.36, 1.35), partial(_motorcycle, u[0] < 0.5, u[3:])
    return _labelled(rng, "Misc", body, pose, (0.05, 0.03, 0.03), extent, ridden)


def motorcycle(rng: np.random.Generator) -> Thing:
    """A parked motorcycle or scooter: it has no label."""
    make = partial(_motorcycle, bool(rng.random() < 0.5), rng.random(3).tolist())
    return Thing(make, (-1.15, -0.45, 0.0, 1.15, 0.45, 1.45))


def _motorcycle(scooter: bool, u) -> Solids:
    half, radius = (0.625, 0.25) if scooter else (0.7, 0.31)
    bar, fork = half - 0.28, (half, 0, radius, half - 0.3, 0, 1.0, 0.05, 0.05)
    rods = [fork, (bar, -0.36, 1.02, bar, 0.36, 1.02, 0.025, 0.025)]
    if scooter:
        rows = [
            (-0.8, -0.1, -0.19, 0.19, 0.3, 0.8), (-0.1, 0.35, -0.17, 0.17, 0.25, 0.35),
            (0.33, 0.42, -0.2, 0.2, 0.25, 0.95), (-0.8, 0.0, -0.16, 0.16, 0.75, 0.85),
        ]  # fmt: skip
    else:
        rows = [
            (-0.3, 0.3, -0.18, 0.18, 0.25, 0.65), (-0.05, 0.4, -0.17, 0.17, 0.65, 0.95),
            (-0.85, 0.0, -0.14, 0.14, 0.7, 0.85),
        ]  # fmt: skip
    if u[0] < 0.4:
        rows.append((half - 0.34, half - 0.28, -0.2, 0.2, 0.95, 1.35))  # a screen
    if u[1] < 0.4:
        rows.append((-1.05, -0.7, -0.2, 0.2, 0.8, 1.15))  # a case
    tyres = _spokes([(-half, 0, radius), (half, 0, radius)], 0.07, 0.03)
    return solids(boxes(rows, Material.PAINT), limbs(rods, Material.METAL, 5), volumes=tyres)
