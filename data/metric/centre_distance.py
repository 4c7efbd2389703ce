"""The average precision of the nuScenes benchmark: a match is a small distance between centres.

Caesar et al., "nuScenes: a multimodal dataset for autonomous driving", CVPR 2020, section 3.1, and
the benchmark's development kit, nuscenes/eval/detection/algo.py (`accumulate`, `calc_ap`), version
1.2.0.
"""

from __future__ import annotations

import numpy as np

from data.metric.boxes import Boxes, Group
from data.metric.pairs import Pairs, match_greedily

DISTANCES = (0.5, 1.0, 2.0, 4.0)  # metres
MIN_RECALL, MIN_PRECISION = 0.1, 0.1


class CentreMatches:
    """The detections of one class, matched by the distance of their centres.

    The best detection of all frames comes first, and takes the nearest object of its frame that is
    free, if that is nearer than the limit. Of equal scores the last comes first, as in the kit.
    Objects without any point inside are not there.
    """

    def __init__(self, name: str, limit: float, truth: Boxes, detections: Boxes, pairs: Pairs):
        """limit: metres."""
        self._truth, self._found = truth, detections
        self._objects = (truth.names == name) & (truth.points > 0)
        self._own = np.flatnonzero(detections.names == name)
        near = pairs.distance < limit
        near &= self._objects[pairs.truth] & (detections.names[pairs.detections] == name)
        rank = np.empty(len(detections.scores), np.int64)
        rank[_best_first(detections.scores)] = np.arange(len(rank))
        rows = np.flatnonzero(near)
        order = np.lexsort((pairs.distance[rows], rank[pairs.detections[rows]]))
        taken = match_greedily(pairs, rows[order])
        self._partner = np.full(len(rank), -1)
        self._partner[pairs.detections[taken]] = pairs.truth[taken]

    def average_precision(self, group: Group) -> float | None:
        """In percent; None where the group has no object.

        A detection counts in the group of its object, one without an object in its own.
        """
        in_group, found_in_group = group.holds(self._truth), group.holds(self._found)
        count = int((self._objects & in_group).sum())
        if count == 0:
            return None
        partner = self._partner[self._own]
        hit = partner >= 0
        counts = np.where(hit, in_group[partner], found_in_group[self._own])
        own, hit = self._own[counts], hit[counts]
        hit = hit[_best_first(self._found.scores[own])]
        return 100 * average_precision(hit, count)


def average_precision(hits: np.ndarray, count: int) -> float:
    """AP from 0 to 1 of detections [N] bool, best first, in a set of `count` objects.

    Precision is interpolated at 101 places of recall; of those above a recall of 0.1 the mean of
    (precision - 0.1) / 0.9 is taken, where negative ones are 0.
    """
    if not hits.any():
        return 0.0
    found = np.cumsum(hits)
    recall, precision = found / count, found / np.arange(1, len(hits) + 1)
    sampled = np.interp(np.linspace(0, 1, 101), recall, precision, right=0)
    clipped = sampled[round(100 * MIN_RECALL) + 1 :] - MIN_PRECISION
    return float(clipped.clip(min=0).mean() / (1 - MIN_PRECISION))


def _best_first(scores: np.ndarray) -> np.ndarray:
    return np.argsort(scores, kind="stable")[::-1]
