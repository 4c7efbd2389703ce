"""Sizes of labelled objects, fitted to the labels of KITTI.

Source of every figure but of American cars: the labels of the 7,481 training frames of the KITTI
object benchmark (Geiger, Lenz, Urtasun, CVPR 2012). Means, standard deviations and correlations are
of all labels of a class; limits are the 1st and the 99th percentile.
"""

from typing import NamedTuple

import numpy as np


class InHills(np.random.Generator):
    """The random numbers of a street in hills. With a plain generator it is as flat as KITTI's."""


class Anywhere(InHills):
    """The random numbers of a street that may lie anywhere: in hills, with American cars, and with
    as many people and vehicles far away as near. With any other generator cars are European, and
    far ones and people are as rare as KITTI's labels.
    """

    def __init__(self, numbers: np.random.BitGenerator):
        super().__init__(numbers)
        self.american = 0.9 * self.random()  # share of the cars


class Sizes(NamedTuple):
    """Normal distribution of (length, width, height) in metres, cut off at limits."""

    mean: tuple[float, float, float]
    spread: tuple[float, float, float]
    correlation: tuple[float, float, float]  # length-width, length-height, width-height
    low: tuple[float, float, float]
    high: tuple[float, float, float]

    def draw(self, rng: np.random.Generator) -> tuple[float, float, float]:
        """One size; the Cholesky factor is written out, so no library's order of sums matters."""
        a, b, c = rng.standard_normal(3).tolist()
        lw, lh, wh = self.correlation
        second = (1 - lw * lw) ** 0.5
        cross = (wh - lw * lh) / second
        third = max(1 - lh * lh - cross * cross, 0.0) ** 0.5
        unit = (a, lw * a + second * b, lh * a + cross * b + third * c)
        length, width, height = (
            min(max(mean + spread * value, low), high)
            for mean, spread, value, low, high in zip(
                self.mean, self.spread, unit, self.low, self.high, strict=True
            )
        )
        return length, width, height


SIZES = {
    # Whole cars and vans. Labels show less of them, see UNSEEN: 3.88, 1.63, 1.53 on average for a
    # car, 5.08, 1.90, 2.21 for a van.
    "Car": Sizes(
        (4.10, 1.69, 1.53), (0.40, 0.10, 0.14), (0.35, 0.17, 0.31),
        (2.94, 1.42, 1.27), (5.10, 1.94, 1.97),
    ),
    "Van": Sizes(
        (5.30, 1.96, 2.21), (0.83, 0.17, 0.32), (0.65, 0.82, 0.67),
        (3.72, 1.62, 1.71), (7.07, 2.52, 2.87),
    ),
    "Truck": Sizes(
        (10.11, 2.59, 3.25), (2.86, 0.22, 0.45), (0.41, 0.21, 0.38),
        (5.42, 2.06, 2.32), (16.79, 2.97, 4.19),
    ),
    # Without the few whose labelled length is the length of one visible end.
    "Tram": Sizes(
        (16.09, 2.54, 3.53), (7.85, 0.22, 0.18), (0.02, -0.21, 0.10),
        (12.0, 2.17, 3.17), (35.24, 2.81, 3.84),
    ),
    "Pedestrian": Sizes(
        (0.84, 0.66, 1.76), (0.23, 0.14, 0.11), (0.20, 0.27, 0.13),
        (0.30, 0.38, 1.50), (1.32, 0.96, 1.97),
    ),
    "Person_sitting": Sizes(
        (0.80, 0.59, 1.27), (0.22, 0.08, 0.11), (-0.33, 0.18, 0.33),
        (0.50, 0.48, 1.06), (1.33, 0.75, 1.64),
    ),
    "Cyclist": Sizes(
        (1.76, 0.60, 1.74), (0.18, 0.12, 0.09), (0.32, 0.37, 0.13),
        (1.19, 0.34, 1.44), (2.12, 0.88, 1.97),
    ),
}  # fmt: skip

# Bodies of American cars: share, (length, width, height), standard deviations, metres. They lie
# about the makers' figures for 27 models of 2015 to 2023; the shares are estimates.
AMERICAN = {
    "saloon": (0.33, (4.80, 1.84, 1.44), (0.12, 0.03, 0.03)),
    "suv": (0.40, (4.82, 1.92, 1.75), (0.24, 0.07, 0.09)),
    "pickup": (0.14, (5.72, 2.00, 1.89), (0.24, 0.08, 0.08)),
    "mpv": (0.06, (5.19, 2.00, 1.75), (0.05, 0.03, 0.03)),
    "hatchback": (0.07, (4.27, 1.76, 1.52), (0.18, 0.04, 0.05)),
}

# How an annotator's box lies about the object, measured on near objects of labelled scans. The
# ground is below the bottom of the box: 0.02 to 0.06 m for a vehicle, 0.03 m for a cyclist, 0 to
# 0.03 m for a person. The highest point is 0.05 to 0.09 m below the top. Half of the points on a
# car's bumper are at least 0.11 m inside in front and 0.06 m behind, on its doors 0.07 m. A walking
# body is 0.1 to 0.2 m inside in every direction: its box holds the whole stride, see `people.py`.
BOTTOM = 0.04
TOP_GAP = 0.06
SIDE_GAP = 0.05
FRONT_GAP = 0.085

# Annotators leave out a part of the unseen end of a vehicle, from 0 to these metres. It is the tail
# of a vehicle that comes towards the sensor, the nose of a vehicle ahead, and the side that is
# turned away. Labels of cars that cross (heading within 20 degrees, at most partly occluded) are
# 4.06 m long on average, of oncoming cars 3.96 m, of cars ahead 3.79 m. Labelled scans are compared
# with simulated scans whose boxes hold the whole body. On labelled scans the seen side reaches
# nearer to the far face of the box, by 0.27 m and 0.29 m (vans: 0.24 to 0.48 m). The near face
# reaches nearer to the hidden side, by 0.05 to 0.1 m.
UNSEEN = (0.44, 0.62, 0.12)
