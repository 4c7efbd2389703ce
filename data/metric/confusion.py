"""Which classes are taken for which others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from data.kitti.metric.evaluation import OPERATING_SCORE
from data.metric.boxes import Boxes
from data.metric.pairs import Pairs, match_greedily

LIMIT = 2.0  # metres between the centres of a pair, as for the errors of the nuScenes metric
MISSED, NOTHING = "missed", "nothing"


class Confusion(NamedTuple):
    """Numbers of objects by their class and the class that was found there."""

    rows: tuple[str, ...]  # classes of the objects, then NOTHING: where no object is
    columns: tuple[str, ...]  # classes of the detections, then MISSED
    counts: np.ndarray  # [rows, columns] int64


def confusion(truth: Boxes, detections: Boxes, pairs: Pairs, classes: Sequence[str]) -> Confusion:
    """Of the detections that score at least 0.5 and the objects that hold points.

    A detection goes with an object within 2 m, nearest pairs first: in a first round only with one
    of its own class, in a second round those that are left over with any. Objects of classes that
    are not among `classes` have a row if there are any.
    """
    others = sorted(set(truth.names[truth.points > 0].tolist()) - set(classes))
    rows, columns = (*classes, *others, NOTHING), (*classes, MISSED)
    sure = (detections.scores >= OPERATING_SCORE) & np.isin(detections.names, classes)
    there = truth.points > 0
    near = pairs.select(there[pairs.truth] & sure[pairs.detections] & (pairs.distance <= LIMIT))
    unlike = truth.names[near.truth] != detections.names[near.detections]
    taken = match_greedily(near, np.lexsort((near.distance, unlike)))

    counts = np.zeros((len(rows), len(columns)), np.int64)
    row_of, column_of = ({name: i for i, name in enumerate(names)} for names in (rows, columns))
    found = np.full(len(truth.names), MISSED, dtype=object)
    found[near.truth[taken]] = detections.names[near.detections[taken]]
    for name, column in zip(truth.names[there].tolist(), found[there].tolist(), strict=True):
        counts[row_of[name], column_of[column]] += 1
    free = sure.copy()
    free[near.detections[taken]] = False
    for name in detections.names[free].tolist():
        counts[row_of[NOTHING], column_of[name]] += 1
    return Confusion(rows, columns, counts)
