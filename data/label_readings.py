"""Whether boxes stand where their points are, or would if the labels were read another way."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from data.boxes import points_in_boxes

LONG = 1.3  # longer / shorter side from which a box tells its yaw
SLANTED = 0.35  # |sin(2 yaw)| from which a box tells the sign of its yaw
FEWEST = 50  # points that must be in the boxes of the better reading
MOST = 2000  # boxes that are looked at
BETTER = 1.5  # times more points in the boxes make another reading the likely one


def _moved(**columns: Callable[[np.ndarray], np.ndarray]) -> Callable[[np.ndarray], np.ndarray]:
    places = {"x": 0, "y": 1, "z": 2, "yaw": 6}

    def read(boxes: np.ndarray) -> np.ndarray:
        other = boxes.copy()
        for name, value in columns.items():
            other[:, places[name]] = value(boxes)
        return other

    return read


X, Y, YAW = (lambda b: b[:, 0]), (lambda b: b[:, 1]), (lambda b: b[:, 6])
READINGS: Mapping[str, Callable[[np.ndarray], np.ndarray]] = {
    "yaw seems to have the wrong sign; it is counter-clockwise from x, seen from above": _moved(
        yaw=lambda b: -b[:, 6]
    ),
    "yaw seems to be off by a quarter turn, or length and width exchanged; l lies along the "
    "heading, and yaw is 0 along x": _moved(yaw=lambda b: b[:, 6] + np.pi / 2),
    "yaw seems to be clockwise and from the y axis, as rotation_y of a camera; it is "
    "counter-clockwise from x": _moved(yaw=lambda b: -b[:, 6] - np.pi / 2),
    "yaw seems to be in degrees; it is in radians": _moved(yaw=lambda b: np.radians(b[:, 6])),
    "yaw seems to be in radians where degrees are read (labelCloud's form centroid_abs)": _moved(
        yaw=lambda b: np.degrees(b[:, 6])
    ),
    "z seems to be that of the lower face; it is that of the box's centre": _moved(
        z=lambda b: b[:, 2] + b[:, 5] / 2
    ),
    "boxes seem to have other axes than the clouds: turned by a quarter to the left": _moved(
        x=lambda b: b[:, 1], y=lambda b: -b[:, 0], yaw=lambda b: b[:, 6] - np.pi / 2
    ),
    "boxes seem to have other axes than the clouds: turned by a quarter to the right": _moved(
        x=lambda b: -b[:, 1], y=lambda b: b[:, 0], yaw=lambda b: b[:, 6] + np.pi / 2
    ),
    "boxes seem to have other axes than the clouds: turned by half a turn": _moved(
        x=lambda b: -b[:, 0], y=lambda b: -b[:, 1], yaw=lambda b: b[:, 6] + np.pi
    ),
    "boxes seem to have other axes than the clouds: y points to the other side": _moved(
        y=lambda b: -b[:, 1], yaw=lambda b: -b[:, 6]
    ),
}


class LabelReadings:
    """Counts, over frames, the points in the boxes as they are labelled and in other readings."""

    def __init__(self):
        self._counts = np.zeros((len(READINGS), 2), np.int64)  # as labelled, as read otherwise
        self._boxes = 0

    def add(self, points: np.ndarray, boxes: np.ndarray) -> None:
        """points [P, 3 or more], boxes [M, 7] with the yaw as it stands in the labels."""
        if not len(boxes) or self._boxes >= MOST:
            return
        self._boxes += len(boxes)
        boxes = boxes.astype(np.float64)
        as_labelled = _above_the_floor(points, boxes)
        for row, read in enumerate(READINGS.values()):
            other = read(boxes)
            telling = _telling(boxes, other)
            if telling.any():
                self._counts[row, 0] += as_labelled[telling].sum()
                self._counts[row, 1] += _above_the_floor(points, other[telling]).sum()

    def line(self) -> str | None:
        """The reading that holds far more points than the labels do, if there is one."""
        as_labelled, otherwise = self._counts.T
        gain = otherwise / np.maximum(as_labelled, 1)
        gain[otherwise < FEWEST] = 0
        best = int(gain.argmax())
        if gain[best] < BETTER:
            return None
        return (
            f"{list(READINGS)[best]} (the boxes hold {as_labelled[best]} points, read so "
            f"{otherwise[best]})"
        )


def _telling(boxes: np.ndarray, other: np.ndarray) -> np.ndarray:
    """[M] bool: the two readings of a box are different boxes."""
    moved = np.any(boxes[:, :3] != other[:, :3], axis=1)
    longish = boxes[:, 3:5].max(axis=1) > LONG * boxes[:, 3:5].min(axis=1)
    turned = np.abs(np.sin(boxes[:, 6] - other[:, 6])) > SLANTED
    return moved | (longish & turned)


def _above_the_floor(points: np.ndarray, boxes: np.ndarray) -> np.ndarray:
    """[M] points in the upper four fifths of boxes: what they stand on belongs to no object."""
    upper = boxes.copy()
    upper[:, 2] += boxes[:, 5] / 10
    upper[:, 5] *= 0.8
    return points_in_boxes(points, upper).sum(axis=1)
