"""The ends of cars: how nose and tail bend, and what stands out of them."""

from typing import NamedTuple

import numpy as np

from data.simulator.materials import Material
from data.simulator.solids import Hulls, boxes


class End(NamedTuple):
    """Nose or tail, half of it as seen from above; the other half is its mirror image."""

    depth: tuple[float, ...]  # metres behind the middle of the end
    half: tuple[float, ...]  # half the width there, as a share of its largest
    parts: tuple[tuple[float, float], ...]  # place as a share of half the width, most metres out


# On labelled scans points at 0.4, 0.6 and 0.9 of half the width lie 0.04, 0.11 and 0.28 m behind
# those in the middle of noses, 0.03, 0.05 and 0.20 m of tails. Parts are plates, grilles, lamps.
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


def outline(length: float, bend: tuple[float, float]) -> tuple[np.ndarray, np.ndarray]:
    """x from nose (0) to tail (1), and half the width there as a share of its largest.

    length: metres; bend: of nose and tail, about 1, how far their corners lie back.
    """
    nose, tail = (
        np.array(end.depth) * far / length for end, far in zip((NOSE, TAIL), bend, strict=True)
    )
    return np.append(nose, 1 - tail[::-1]), np.append(NOSE.half, TAIL.half[::-1])


def parts(
    size: tuple[float, float, float],
    tops: tuple[float, float],
    bend: tuple[float, float],
    u: tuple[float, ...],
) -> Hulls:
    """What stands out of nose and tail, random in place and size.

    size: of the body, metres; tops: of nose and tail, as shares of the height; bend: see `outline`;
    u: NUMBERS from 0 to 1.
    """
    length, width, height = size
    rows, numbers = [], iter(u)
    for sign, end, top, far in zip((1, -1), (NOSE, TAIL), tops, bend, strict=True):
        for place, most in end.parts:
            out, wide, high = next(numbers), next(numbers), next(numbers)
            depth = float(np.interp(place, end.half, end.depth)) * far - out * most
            x = sign * (length / 2 - depth)
            ends = sorted((x, x - sign * BACK))
            raised = (top - 0.32) * high if place else 0.0  # a plate stays low
            z, half = (0.27 + 0.1 * wide + raised) * height, (0.05 + 0.08 * wide) * width
            tall = 0.06 + 0.1 * high
            for side in (-1, 1) if place else (1,):
                y = side * place * width / 2
                rows.append((*ends, y - half, y + half, z - tall / 2, z + tall / 2))
    return boxes(rows, Material.PAINT)
