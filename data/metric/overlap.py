"""AP R40 and its curve, with a match by overlap: the KITTI benchmark's rules in the LiDAR frame."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from data.kitti.metric.average_precision import average, recall_thresholds
from data.kitti.metric.evaluation import OPERATING_SCORE
from data.kitti.metric.matching import COUNTS, NEUTRAL, OUT, Matcher
from data.kitti.metric.objects import Overlaps
from data.metric.boxes import ALL, Boxes, Group
from data.metric.pairs import Pairs


class OverlapMatches:
    """The detections of one class, matched by their overlap with objects.

    The rules are KITTI's (`data.kitti.metric.matching`) without those of its image. An object
    without any point inside is neutral: to find it is neither right nor wrong.
    """

    def __init__(
        self,
        name: str,
        iou: np.ndarray,
        min_iou: float,
        truth: Boxes,
        detections: Boxes,
        pairs: Pairs,
    ):
        """iou: [P] of the pairs, from above or in 3-D; more than min_iou makes a match."""
        self._truth, self._found, self._pairs = truth, detections, pairs
        self._iou, self._min_iou = iou, min_iou
        self._objects, self._own = truth.names == name, detections.names == name

    def score(self, group: Group) -> dict[str, float | int | list[float] | None]:
        """The figures of a group of objects.

        - count: of its objects that hold points
        - R40: AP in percent, None without objects
        - recall, precision: shares, of the detections that score at least 0.5
        - curve_recall, curve_precision: shares at the scores that R40 samples, best score first

        A detection counts in the group of its object; one without an object counts in its own.
        """
        matched = self._match(group)
        count = int((matched.roles == COUNTS).sum())
        thresholds = recall_thresholds(matched.matcher.hit_scores(), max(count, 1))
        hits, false = self._counts(matched, np.append(thresholds, OPERATING_SCORE))
        recall, precision = hits / max(count, 1), hits / np.maximum(hits + false, 1)
        return {
            "count": count,
            "R40": average(precision[:-1])["R40"] if count else None,
            "recall": float(recall[-1]),
            "precision": float(precision[-1]),
            "curve_recall": recall[:-1].tolist(),
            "curve_precision": precision[:-1].tolist(),
        }

    def errors(self) -> Errors:
        """What is missed and false at a score of 0.5."""
        roles, own, matcher = self._match(ALL)
        taken = matcher.taken(np.array([OPERATING_SCORE]))[:, 0]
        missed = roles == COUNTS
        missed[matcher.truth[taken]] = False
        false = own & (self._found.scores >= OPERATING_SCORE)
        false[matcher.detections[taken]] = False
        return Errors(missed, false)

    def _match(self, group: Group) -> Matched:
        counts = group.holds(self._truth) & (self._truth.points > 0)
        roles = np.select([~self._objects, counts], [OUT, COUNTS], NEUTRAL)
        detected = np.where(self._own, COUNTS, OUT)
        frames, truth, detections = self._pairs[:3]
        overlaps = Overlaps(frames, truth, detections, {}, np.zeros(0))
        matcher = Matcher(overlaps, self._iou, self._min_iou, roles, detected, self._found.scores)
        return Matched(roles, self._own & group.holds(self._found), matcher)

    def _counts(self, matched: Matched, thresholds: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Hits and false ones [T] of the detections that score at least each threshold."""
        matcher, wrong_if_free = matched.matcher, matched.wrong_if_free
        taken = matcher.taken(thresholds)
        scores = np.sort(self._found.scores[wrong_if_free])
        false = len(scores) - np.searchsorted(scores, thresholds)
        false = false - taken[wrong_if_free[matcher.detections]].sum(axis=0)
        return taken[matcher.hits].sum(axis=0), false


class Matched(NamedTuple):
    """Objects and detections of a group, and who may have whom."""

    roles: np.ndarray  # [G] of the objects, see data.kitti.metric.matching
    wrong_if_free: np.ndarray  # [D] bool
    matcher: Matcher


class Errors(NamedTuple):
    """G objects and D detections at one score."""

    missed: np.ndarray  # [G] bool
    false: np.ndarray  # [D] bool
