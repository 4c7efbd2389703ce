"""Whether boxes stand where their points are, or would if the labels were read another way."""

import math
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np

from millisecond.data.boxes import points_in_boxes

LONG = 1.3  # longer / shorter side from which a box tells its yaw
SLANTED = 0.35  # |sin(2 yaw)| from which a box tells the sign of its yaw
MOST = 2000  # boxes that are looked at
CHANCE = 0.01  # of a false alarm, over all readings together
NEARLY = 0.8  # of the best reading's lead, from which another one is named beside it

Read = Callable[[np.ndarray], np.ndarray]


class Reading(NamedTuple):
    """Another meaning that the numbers of a label may have."""

    mistake: str
    remedy: str
    read: Read  # boxes [M, 7] as labelled -> [M, 7] as they are meant


def _moved(**columns: Read) -> Read:
    places = {"x": 0, "y": 1, "z": 2, "yaw": 6}

    def read(boxes: np.ndarray) -> np.ndarray:
        other = boxes.copy()
        for name, value in columns.items():
            other[:, places[name]] = value(boxes)
        return other

    return read


READINGS = (
    Reading(
        "yaw seems to have the wrong sign; it is counter-clockwise from x, seen from above",
        "write -yaw for yaw",
        _moved(yaw=lambda b: -b[:, 6]),
    ),
    Reading(
        "yaw seems to be off by a quarter turn, or length and width exchanged; l lies along the "
        "heading, and yaw is 0 along x",
        "write yaw + pi/2 for yaw, or w l for l w",
        _moved(yaw=lambda b: b[:, 6] + np.pi / 2),
    ),
    Reading(
        "yaw seems to be clockwise and from the y axis, as rotation_y of a camera; it is "
        "counter-clockwise from x",
        "write -yaw - pi/2 for yaw",
        _moved(yaw=lambda b: -b[:, 6] - np.pi / 2),
    ),
    Reading(
        "yaw seems to be in degrees; it is in radians",
        "write yaw * pi/180 for yaw",
        _moved(yaw=lambda b: np.radians(b[:, 6])),
    ),
    Reading(
        "yaw seems to be in radians where degrees are read (labelCloud's form centroid_abs)",
        "write rotations.z * 180/pi for rotations.z",
        _moved(yaw=lambda b: np.degrees(b[:, 6])),
    ),
    Reading(
        "z seems to be the height of the lower face; it is the height of the box's centre",
        "write z + h/2 for z",
        _moved(z=lambda b: b[:, 2] + b[:, 5] / 2),
    ),
    Reading(
        "z seems to be the height of the upper face (in KITTI's form: y the height of the centre); "
        "z is the height of the box's centre (in KITTI's form: y the height of the lower face)",
        "write z - h/2 for z (in KITTI's form: y + h/2 for y)",
        _moved(z=lambda b: b[:, 2] - b[:, 5] / 2),
    ),
    Reading(
        "boxes seem to have other axes than the clouds: turned by a quarter to the left",
        "write y -x yaw-pi/2 for x y yaw",
        _moved(x=lambda b: b[:, 1], y=lambda b: -b[:, 0], yaw=lambda b: b[:, 6] - np.pi / 2),
    ),
    Reading(
        "boxes seem to have other axes than the clouds: turned by a quarter to the right",
        "write -y x yaw+pi/2 for x y yaw",
        _moved(x=lambda b: -b[:, 1], y=lambda b: b[:, 0], yaw=lambda b: b[:, 6] + np.pi / 2),
    ),
    Reading(
        "boxes seem to have other axes than the clouds: turned by half a turn",
        "write -x -y yaw+pi for x y yaw",
        _moved(x=lambda b: -b[:, 0], y=lambda b: -b[:, 1], yaw=lambda b: b[:, 6] + np.pi),
    ),
    Reading(
        "boxes seem to have other axes than the clouds: y points to the other side",
        "write -y -yaw for y yaw",
        _moved(y=lambda b: -b[:, 1], yaw=lambda b: -b[:, 6]),
    ),
    *(
        Reading(
            f"boxes seem to be in {unit}; they are in metres",
            f"write {metres:g} times their value for x y z l w h",
            partial(np.multiply, [metres] * 6 + [1]),
        )
        for unit, metres in (("millimetres", 0.001), ("centimetres", 0.01), ("feet", 0.3048))
    ),
)


class Doubt(NamedTuple):
    """A reading that suits the points better than the labels as they stand."""

    reading: Reading
    better: int  # boxes that hold more points read so
    worse: int  # boxes that hold fewer
    rivals: tuple[Reading, ...] = ()  # that nearly as many boxes speak for

    def line(self) -> str:
        """What is wrong with the labels, how to correct them, and the evidence."""
        others = "".join(f"; or {rival.mistake}; {rival.remedy}" for rival in self.rivals)
        return (
            f"{self.reading.mistake}; {self.reading.remedy} (read so, {self.better} of the "
            f"{self.better + self.worse} boxes that tell it hold more points than as labelled)"
            f"{others}"
        )


class LabelReadings:
    """Compares, over frames, the points in the boxes as they are labelled and in other readings.

    A box speaks for a reading if it holds more points read so than as labelled, and against it if
    it holds fewer. Were the labels right, at most half of the boxes would speak for it. So the sign
    test (Arbuthnott, 1710) judges every reading: of n boxes that speak, k speak for it by chance
    with the probability p = sum of C(n, i) / 2^n over i = k to n. A reading is believed where p is
    below CHANCE / number of readings (Bonferroni); boxes are taken as independent. A box counts
    once however many points it holds, so that a few near objects decide nothing.
    """

    def __init__(self):
        self._votes = np.zeros((len(READINGS), 2), np.int64)  # for the reading, against it
        self._boxes = 0

    def add(self, points: np.ndarray, boxes: np.ndarray) -> None:
        """points [P, 3 or more], boxes [M, 7] with the yaw as it stands in the labels."""
        if not len(boxes) or self._boxes >= MOST:
            return
        self._boxes += len(boxes)
        boxes = boxes.astype(np.float64)
        as_labelled = points_in_boxes(points, boxes).sum(axis=1)
        for votes, reading in zip(self._votes, READINGS, strict=True):
            other = reading.read(boxes)
            telling = _telling(boxes, other)
            more = points_in_boxes(points, other[telling]).sum(axis=1) - as_labelled[telling]
            votes += (more > 0).sum(), (more < 0).sum()

    def doubt(self) -> Doubt | None:
        """The reading that most boxes speak for, of those that chance does not explain."""
        better, worse = self._votes.T
        lead = better - worse
        best = int(lead.argmax())
        if chance_of(int(better[best]), int(worse[best])) >= CHANCE / len(READINGS):
            return None
        near = [row for row in np.flatnonzero(lead >= NEARLY * lead[best]) if row != best]
        rivals = tuple(READINGS[row] for row in near)
        return Doubt(READINGS[best], int(better[best]), int(worse[best]), rivals)


def chance_of(better: int, worse: int) -> float:
    """One-sided p of the sign test."""
    number = better + worse
    return sum(math.comb(number, k) for k in range(better, number + 1)) / 2**number


def _telling(boxes: np.ndarray, other: np.ndarray) -> np.ndarray:
    """[M] bool: the two readings of a box are different boxes."""
    moved = np.any(boxes[:, :3] != other[:, :3], axis=1)
    longish = boxes[:, 3:5].max(axis=1) > LONG * boxes[:, 3:5].min(axis=1)
    turned = np.abs(np.sin(boxes[:, 6] - other[:, 6])) > SLANTED
    return moved | (longish & turned)
