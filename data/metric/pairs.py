"""Which detections are near which objects, and how near."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from data.kitti.metric.objects import box_iou
from data.metric.boxes import Boxes

FARTHEST = 4.0  # metres between centres: the largest that the nuScenes metric asks for


class Pairs(NamedTuple):
    """Every detection that touches an object of its frame, or whose centre is within 4 m of it."""

    frames: np.ndarray  # [P] int64, ascending
    truth: np.ndarray  # [P] int64: row of the objects
    detections: np.ndarray  # [P] int64: row of the detections
    bev: np.ndarray  # [P] float64: IoU from above
    volume: np.ndarray  # [P] float64: IoU in 3-D
    distance: np.ndarray  # [P] float64: metres between the centres, seen from above

    def select(self, kept: np.ndarray) -> Pairs:
        """The pairs of a mask or of indices."""
        return Pairs(*(column[kept] for column in self))


def find_pairs(truth: Boxes, detections: Boxes) -> Pairs:
    """The pairs of all frames, by frame, then by object, then by detection."""
    rows, columns = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    for objects, candidates in zip(truth.rows(), detections.rows(), strict=True):
        boxes, others = truth.boxes[objects, None], detections.boxes[None, candidates]
        apart = np.hypot(boxes[..., 0] - others[..., 0], boxes[..., 1] - others[..., 1])
        reach = np.hypot(boxes[..., 3], boxes[..., 4]) + np.hypot(others[..., 3], others[..., 4])
        a, b = np.nonzero(apart <= np.maximum(FARTHEST, reach / 2))
        rows.append(objects[a])
        columns.append(candidates[b])
    a, b = np.concatenate(rows), np.concatenate(columns)
    one, other = truth.boxes[a], detections.boxes[b]
    bev, volume = box_iou(one, other)
    distance = np.hypot(one[:, 0] - other[:, 0], one[:, 1] - other[:, 1])
    return Pairs(truth.frames[a], a, b, bev, volume, distance)


def match_greedily(pairs: Pairs, order: np.ndarray) -> np.ndarray:
    """[P] bool: the pairs that are taken when each, in the given order of rows, takes its object
    and its detection where both are still free. Rows that are not in the order are not taken."""
    taken = np.zeros(len(pairs.frames), bool)
    objects: set[int] = set()
    found: set[int] = set()
    truth, detections = pairs.truth.tolist(), pairs.detections.tolist()
    for row in order.tolist():
        if truth[row] not in objects and detections[row] not in found:
            taken[row] = True
            objects.add(truth[row])
            found.add(detections[row])
    return taken
