"""Matching of detections with labelled objects by the rules of the KITTI benchmark.

Geiger, Lenz, Urtasun, "Are we ready for autonomous driving?", CVPR 2012, and the benchmark's
development kit. An object, or a detection, plays one of three roles for a class and difficulty: it
COUNTS; it is NEUTRAL (the kit says ignored): a match with it is neither right nor wrong; or it is
OUT, not seen.
"""

import numpy as np

from data.kitti.labels import MIN_HEIGHT
from data.kitti.metric.objects import Objects, Overlaps

COUNTS, NEUTRAL, OUT = 0, 1, 2

NEIGHBOURS = {"Car": "Van", "Pedestrian": "Person_sitting"}


def truth_roles(truth: Objects, name: str, difficulty: int) -> np.ndarray:
    """[G] role of every labelled object: too hard ones and the neighbouring class are neutral."""
    fits = (truth.difficulty >= 0) & (truth.difficulty <= difficulty)
    neighbour = truth.types == NEIGHBOURS.get(name, "").lower()
    own = np.where(fits, COUNTS, NEUTRAL)
    return np.select([truth.types == name.lower(), neighbour], [own, NEUTRAL], OUT)


def detection_roles(detections: Objects, name: str, difficulty: int) -> np.ndarray:
    """[D] role of every detection: too low ones in the image, of any class, are neutral."""
    low = np.abs(detections.height) < MIN_HEIGHT[difficulty]
    return np.select([low, detections.types == name.lower()], [NEUTRAL, COUNTS], OUT)


class Matcher:
    """The candidate pairs of one class, difficulty and overlap, and who gets whom among them."""

    def __init__(
        self,
        overlaps: Overlaps,
        iou: np.ndarray,  # [P]
        min_iou: float,
        truth: np.ndarray,  # [G] roles
        detections: np.ndarray,  # [D] roles
        scores: np.ndarray,  # [D]
    ):
        a, b = overlaps.truth, overlaps.detections
        kept = (iou > min_iou) & (truth[a] != OUT) & (detections[b] != OUT)
        self.frames, self.truth, self.detections = overlaps.frames[kept], a[kept], b[kept]
        self.iou, self.scores = iou[kept], scores[self.detections]
        self.neutral = detections[self.detections] == NEUTRAL
        self.hits = (truth[self.truth] == COUNTS) & ~self.neutral  # a match of this pair is a hit

    def hit_scores(self) -> np.ndarray:
        """Scores of the hits when every object, in file order, takes its best-scored detection."""
        order = np.lexsort((-self.scores, self.truth))
        taken = self._assign(order, np.ones((len(order), 1), dtype=bool))[:, 0]
        return self.scores[taken & self.hits]

    def taken(self, thresholds: np.ndarray) -> np.ndarray:  # [T] -> [P, T]
        """Pairs matched among the detections that score at least each threshold.

        Every object, in file order, takes the detection of largest overlap; one that is neutral
        only where there is no other.
        """
        preference = np.where(self.neutral, 0, -self.iou)
        order = np.lexsort((preference, self.truth))
        return self._assign(order, self.scores[:, None] >= thresholds)

    def _assign(self, order: np.ndarray, allowed: np.ndarray) -> np.ndarray:  # [P], [P, T]
        """Greedy assignment, [P, T]: pairs in order take their object and detection where free.

        The n-th pairs of all frames are handled at once: they share neither.
        """
        taken = np.zeros_like(allowed)
        truth, detections = (
            np.unique(column, return_inverse=True)[1] for column in (self.truth, self.detections)
        )
        free_truth = np.ones((len(allowed), allowed.shape[1]), dtype=bool)
        free_detections = np.ones_like(free_truth)
        frames = self.frames[order]
        turns = np.arange(len(order)) - np.searchsorted(frames, frames)
        by_turn = order[np.argsort(turns, kind="stable")]
        for pairs in np.split(by_turn, np.cumsum(np.bincount(turns))[:-1]):
            a, b = truth[pairs], detections[pairs]
            match = allowed[pairs] & free_truth[a] & free_detections[b]
            free_truth[a] &= ~match
            free_detections[b] &= ~match
            taken[pairs] = match
        return taken
