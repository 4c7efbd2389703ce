"""Cars, and their ends: how nose and tail bend, and the parts that stand out of them."""

from bisect import bisect_left
from collections.abc import Iterable
from functools import partial
from typing import NamedTuple

import numpy as np

from millisecond.data.simulator.solids import (
    Hulls,
    Material,
    Solids,
    Thing,
    boxes,
    limbs,
    loft,
    solids,
)
from millisecond.data.simulator.statistics import (
    AMERICAN,
    BOTTOM,
    FRONT_GAP,
    SIDE_GAP,
    SIZES,
    TOP_GAP,
    UNSEEN,
    Anywhere,
)


class End(NamedTuple):
    """Nose or tail, half of it as seen from above; the other half is its mirror image."""

    depth: tuple[float, ...]  # metres behind the middle of the end
    half: tuple[float, ...]  # half the width there, as a share of its largest
    parts: tuple[tuple[float, float], ...]  # place as a share of half the width, most metres out


# On labelled scans, points at 0.4, 0.6 and 0.9 of half the width lie 0.04, 0.11 and 0.28 m behind
# the middle of a nose, and 0.03, 0.05 and 0.20 m behind the middle of a tail. Parts are plates,
# grilles, lamps.
NOSE = End(
    (0.0, 0.04, 0.11, 0.25, 0.4, 1.0),
    (0.12, 0.38, 0.64, 0.88, 0.95, 1.0),
    ((0.0, 0.08), (0.35, 0.08), (0.65, 0.1)),
)
TAIL = End(
    (0.0, 0.03, 0.06, 0.20, 0.3, 0.8),
    (0.12, 0.38, 0.68, 0.88, 0.94, 1.0),
    ((0.0, 0.05), (0.4, 0.04), (0.75, 0.06)),
)
NUMBERS = 3 * (len(NOSE.parts) + len(TAIL.parts))  # random ones that the parts of a car take
BACK = 0.15  # metres that a part reaches into the body


# Side profiles. x runs from the nose (0) to the tail (1), z is the top as a share of the height.
# The numbers: z of the nose; x, z of the windscreen's foot; x of its top; x, z of the roof's end;
# x, z of the rear screen's foot; z of the tail.
STYLES = {
    "hatchback": (0.46, (0.25, 0.66), 0.45, (0.88, 0.96), (0.975, 0.71), 0.56),
    "saloon": (0.46, (0.29, 0.66), 0.47, (0.72, 0.97), (0.87, 0.72), 0.62),
    "estate": (0.46, (0.27, 0.65), 0.45, (0.91, 0.97), (0.98, 0.71), 0.56),
    "suv": (0.52, (0.25, 0.66), 0.42, (0.90, 0.98), (0.975, 0.71), 0.58),
    "mpv": (0.42, (0.17, 0.60), 0.41, (0.92, 0.97), (0.98, 0.69), 0.52),
    "pickup": (0.52, (0.28, 0.66), 0.41, (0.57, 0.99), (0.62, 0.66), 0.60),
    "van": (0.38, (0.14, 0.50), 0.29, (0.97, 0.98), (0.985, 0.55), 0.50),
}
CAR_STYLES = ("hatchback", "saloon", "estate", "suv", "mpv", "pickup")
CAR_SHARES = (0.4, 0.2, 0.18, 0.1, 0.1, 0.02)
CAR_BOUNDS = np.cumsum(CAR_SHARES)[:-1].tolist()
AMERICAN_BOUNDS = np.cumsum([share for share, *_ in AMERICAN.values()])[:-1].tolist()
SWEPT = 0.75  # width of a bonnet's front and of lamps as a share of the bumper's width below
CORNERS = 10
# Seen from behind, labelled cars return 60 to 75 % of the pulses from 0.08 to 0.16 m below the top
# of the box. So the roof is flat except at its ends, and the screens have frames of metal.
BROW = 0.98  # z of the front of the roof
FRAME = 0.09  # metres between the glass of a screen and the roof


def car(rng: np.random.Generator) -> Thing:
    """A car of any style, sized by the labels, or an American one."""
    if isinstance(rng, Anywhere) and rng.random() < rng.american:
        return _american(rng)
    style = CAR_STYLES[bisect_left(CAR_BOUNDS, rng.random())]
    length, width, height = SIZES["Car"].draw(rng)
    tall = {"suv": 0.14, "mpv": 0.12, "pickup": 0.14, "saloon": -0.05}.get(style, -0.02)
    height = min(max(height + tall, 1.3), 1.97)
    return _vehicle(rng, style, (length, width, height), "Car")


def _american(rng: np.random.Generator) -> Thing:
    style = list(AMERICAN)[bisect_left(AMERICAN_BOUNDS, rng.random())]
    _, mean, spread = AMERICAN[style]
    size = np.array(mean) + np.array(spread) * rng.standard_normal(3).clip(-2, 2)
    gaps = (SIDE_GAP + FRONT_GAP, 2 * SIDE_GAP, TOP_GAP - BOTTOM)
    return _vehicle(rng, style, tuple((size + gaps).tolist()), "Car")


def van(rng: np.random.Generator) -> Thing:
    """A tall van, sized by the labels, with or without windows behind."""
    return _vehicle(rng, "van", SIZES["Van"].draw(rng), "Van")


def _vehicle(rng: np.random.Generator, style: str, box, kind: str) -> Thing:
    length, width, height = box
    body = (length - SIDE_GAP - FRONT_GAP, width - 2 * SIDE_GAP, height + BOTTOM - TOP_GAP)
    u, (end, flank) = tuple(rng.random(12 + NUMBERS).tolist()), rng.random(2).tolist()
    unseen = (UNSEEN[0] * end, UNSEEN[1] * end, UNSEEN[2] * flank)
    make = partial(_solids, style, body, u)
    side, top = width / 2 + 0.2, height + BOTTOM
    back, front = -body[0] / 2 - SIDE_GAP, body[0] / 2 + FRONT_GAP
    box = (back, -width / 2, BOTTOM, front, width / 2, top)
    return Thing(make, (back, -side, 0.0, front, side, top), kind, box, unseen=unseen)


class _Shape(NamedTuple):
    """A car of one style; x from the nose (0) to the tail (1), z as a share of the height."""

    length: float
    width: float
    height: float
    nose: float  # z
    cowl: tuple[float, float]  # x, z of the windscreen's foot, as below
    top: float  # x
    roof: tuple[float, float]
    foot: tuple[float, float]
    tail: float  # z
    pillar: float  # x behind the front doors
    lean: float  # of the side windows
    blind: bool  # no windows behind the seats
    radius: float  # of a wheel, metres
    axles: np.ndarray  # [2] x
    edges: tuple[float, float]  # x between which the roof is flat
    bend: tuple[float, float]  # of nose and tail, about 1: how far their corners lie back
    bumper: tuple[float, float]  # metres by which the nose's and the tail's bumper stand out

    @property
    def belt(self) -> float:
        """z of the foot of the windows."""
        return self.cowl[1] + 0.01

    @property
    def arch(self) -> float:
        """Half the length of a wheel arch, as a share of the length."""
        return (self.radius + 0.06) / self.length

    @property
    def outline(self) -> tuple[np.ndarray, np.ndarray]:
        """x, and half the width there as a share of its largest."""
        nose, tail = (
            np.array(end.depth) * far / self.length
            for end, far in zip((NOSE, TAIL), self.bend, strict=True)
        )
        return np.append(nose, 1 - tail[::-1]), np.append(NOSE.half, TAIL.half[::-1])

    @property
    def steps(self) -> tuple[float, float]:
        """x where the nose's bumper ends, and where the tail's bumper begins."""
        return self.bumper[0] / self.length, 1 - self.bumper[1] / self.length

    @property
    def glass(self) -> tuple[float, float]:
        """x where the windscreen's glass ends, and where the rear screen's glass begins."""
        front = FRAME / (self.height * (BROW - self.cowl[1])) * (self.top - self.cowl[0])
        rear = FRAME / (self.height * (self.roof[1] - self.foot[1])) * (self.foot[0] - self.roof[0])
        return self.top - front, self.roof[0] + rear


def _shape(style: str, size: tuple[float, float, float], u: tuple[float, ...]) -> _Shape:
    nose, cowl, top, roof, foot, tail = STYLES[style]
    length, width, height = size
    shift = 0.06 * (u[0] - 0.5)  # of the windscreen
    top = top + shift
    roof = (min(roof[0] + 0.06 * (u[6] - 0.5), foot[0] - 0.015), roof[1])
    return _Shape(
        *(length, width, height, nose),
        cowl=(cowl[0] + shift, cowl[1] + 0.04 * (u[1] - 0.5)),
        top=top,
        roof=roof,
        foot=foot,
        tail=tail,
        pillar=top + 0.2 + 0.04 * (u[4] - 0.5),
        lean=0.1 if style == "van" else 0.2 + 0.06 * u[5],
        blind=style == "van" and u[3] < 0.6,
        radius=0.29 + 0.05 * u[2] + (0.03 if style in ("suv", "van", "pickup") else 0),
        axles=np.array([0.84 / length, 1 - 0.76 / length]),  # overhangs of cars differ little
        edges=(
            top + min(0.2 / length, 0.3 * (roof[0] - top)),
            roof[0] - min((0.15 + 0.25 * u[7]) / length, 0.6 * (roof[0] - top)),
        ),
        bend=(0.6 + 0.8 * u[8], 0.5 + u[9]),
        bumper=(0.02 + 0.08 * u[10], min(0.01 + 0.07 * u[11], (0.994 - foot[0]) * length)),
    )


def _solids(style: str, size: tuple[float, float, float], u: tuple[float, ...]) -> Solids:
    car = _shape(style, size, u)
    ways = (-car.arch, -0.7 * car.arch, 0.7 * car.arch, car.arch)
    knots = [car.cowl[0], car.top, *car.edges, *car.glass, car.roof[0], car.foot[0]]
    knots += [*car.outline[0], *car.steps, car.steps[0] + 0.015, car.steps[1] - 0.002]
    knots += [0.06, car.pillar, car.pillar + 0.03]
    knots += [axle + way for axle in car.axles for way in ways]
    x = np.unique(np.clip(knots, 0, 1))
    # The loft runs from the tail to the nose.
    caps = np.full(2 * (CORNERS - 2), int(Material.PAINT))
    of = np.concatenate([_materials(car, x)[::-1].repeat(2), caps])
    hull = loft(_rings(car, x)[None, ::-1], of[None])
    y = 0.485 * car.width
    return solids(
        hull,
        _inside(car),
        wheels(car.length * (0.5 - car.axles), y, y - 0.2, car.radius),
        _mirrors(car),
        _parts(car, u[12:]),
    )


def _rings(car: _Shape, x: np.ndarray) -> np.ndarray:
    """Cross-sections [S, CORNERS, 3] at x: up the left side, over the roof, down the right side."""
    heights = _heights(car, x)
    z_top = heights[4]
    half = car.width / 2 * np.interp(x, *car.outline)
    swept = np.interp(x, (0, car.cowl[0]), (SWEPT, 1))
    # The side windows lean inwards.
    low = np.minimum(z_top, car.belt * car.height)
    tumble = car.lean * (z_top - low) / (car.height * (1 - car.belt))
    upper = swept * (0.97 - tumble), swept * (0.9 - 1.15 * tumble)
    sides = (0.93, 1, 0.97 * swept, *upper)
    across = np.array([side * half for side in sides])
    rings = np.empty((len(x), CORNERS, 3))
    rings[..., 0] = (car.length * (0.5 - x))[:, None]
    rings[:, :5, 1], rings[:, 5:, 1] = across.T, -across[::-1].T
    rings[:, :5, 2], rings[:, 5:, 2] = heights.T, heights[::-1].T
    return rings


def _heights(car: _Shape, x: np.ndarray) -> np.ndarray:
    """[5, S] metres: sill, widest place, foot of the windows, edge of the roof, top."""
    nose, tail, height = car.nose, car.tail, car.height
    lip, step = car.steps
    ways: tuple[float, ...] = (0, lip, lip + 0.015, 0.06, car.cowl[0], car.top, *car.edges)
    tops: tuple[float, ...] = (nose - 0.12, nose - 0.1, nose + 0.02, nose + 0.1, car.cowl[1])
    tops += (BROW, 1, 1, car.roof[1], car.foot[1], tail, tail - 0.16, tail - 0.18)
    ways += (car.roof[0], car.foot[0], step - 0.002, step, 1)
    top = height * np.interp(x, ways, tops)
    belt = np.minimum(top, car.belt * height)
    off = np.abs(x[:, None] - car.axles).min(1) * car.length
    arched = 2 * car.radius + 0.04 - 0.6 * np.maximum(off - 0.15, 0)
    plain = np.interp(x, (0, 0.015, 0.045, 0.9, 0.985, 1), (0.37, 0.3, 0.19, 0.2, 0.2, 0.33))
    sill = np.where(off < car.arch * car.length - 1e-6, arched, plain)
    sill = np.minimum(sill, 0.8 * belt)
    waist = np.maximum(np.minimum(0.42 * height, 0.9 * belt), sill + 0.02)
    foot = np.maximum(belt, waist + 0.01)
    edge = np.maximum(belt + 0.9 * (top - belt), foot)
    return np.array([sill, waist, foot, edge, np.maximum(top, foot)])


def _materials(car: _Shape, x: np.ndarray) -> np.ndarray:
    """Of the faces [S - 1, CORNERS] between the cross-sections."""
    middle = (x[1:] + x[:-1]) / 2
    cabin = (middle > car.cowl[0]) & (middle < car.foot[0])
    last = car.top + 0.1 if car.blind else car.roof[0]
    beside = (middle > (car.cowl[0] + car.top) / 2) & (middle < last)
    beside &= (middle < car.pillar) | (middle > car.pillar + 0.03)
    front, rear = car.glass
    screen = cabin & ((middle < front) | ((middle > rear) & (not car.blind)))
    material = np.full((len(middle), CORNERS), int(Material.PAINT))
    material[beside, 2] = material[beside, 6] = Material.GLASS
    material[screen, 3:6] = Material.GLASS
    return material


def _inside(car: _Shape) -> Hulls:
    """The inside behind the glass: a floor below the windows, and seats."""
    front = car.length * (0.5 - car.cowl[0]) - 0.05
    back = car.length * (0.5 - car.foot[0]) + 0.1
    deck, top = (car.belt - 0.1) * car.height, min(car.belt + 0.17, 0.9) * car.height
    y = 0.4 * car.width
    rows = [(back, front, -y, y, 0.25, deck)]
    for behind in (0.55, 1.4):
        x = car.length * (0.5 - car.top) - behind
        if x > back + 0.2:
            middles = [side * 0.2 * car.width for side in (-1, 1)]
            rows += [(x, x + 0.14, at - 0.24, at + 0.24, deck, top) for at in middles]
    return boxes(rows, Material.INTERIOR)


def wheels(places: Iterable[float], outer: float, inner: float, radius: float) -> Hulls:
    """A pair of wheels at every x of `places`; outer, inner: y of their faces, metres."""
    rows = [
        (x, side * a, radius, x, side * b, radius, radius, radius)
        for x in places
        for side, a, b in ((1, inner, outer), (-1, outer, inner))
    ]
    return limbs(rows, Material.RUBBER, 10)


def _mirrors(car: _Shape) -> Hulls:
    x, y = car.length * (0.5 - car.cowl[0]) - 0.3, car.width / 2 - 0.02
    low, high = car.belt * car.height - 0.02, car.belt * car.height + 0.13
    rows = [(x, x + 0.12, y, y + 0.17, low, high), (x, x + 0.12, -y - 0.17, -y, low, high)]
    return boxes(rows, Material.PAINT)


def _parts(car: _Shape, u: tuple[float, ...]) -> Hulls:
    """The parts that stand out of nose and tail, random in place and size. u: NUMBERS from 0 to
    1."""
    rows, numbers = [], iter(u)
    ends = ((1, NOSE, car.nose, car.bend[0]), (-1, TAIL, car.tail, car.bend[1]))
    for sign, end, top, far in ends:
        for place, most in end.parts:
            out, wide, high = next(numbers), next(numbers), next(numbers)
            depth = float(np.interp(place, end.half, end.depth)) * far - out * most
            x = sign * (car.length / 2 - depth)
            low, up = sorted((x, x - sign * BACK))
            raised = (top - 0.32) * high if place else 0.0  # a plate stays low
            z, half = (0.27 + 0.1 * wide + raised) * car.height, (0.05 + 0.08 * wide) * car.width
            tall = 0.06 + 0.1 * high
            for side in (-1, 1) if place else (1,):
                y = side * place * car.width / 2
                rows.append((low, up, y - half, y + half, z - tall / 2, z + tall / 2))
    return boxes(rows, Material.PAINT)
