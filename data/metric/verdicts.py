"""The verdict of the KITTI metric on each object and each detection of one frame."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np

from millisecond.data.kitti.labels import Labels
from millisecond.data.metric.kitti import MIN_OVERLAP
from millisecond.data.metric.matching import (
    COUNTS,
    Matcher,
    Objects,
    detection_roles,
    find_overlaps,
    truth_roles,
)

MATCHED, MISSED, FALSE, IGNORED = "matched", "missed", "false", "ignored"


class Verdicts(NamedTuple):
    """M objects and N detections of a frame, in their order."""

    truth: np.ndarray  # [M] str: matched, missed or ignored
    detections: np.ndarray  # [N] str: matched, false or ignored
    partner: np.ndarray  # [N] int64: the object that a detection is matched with, or -1
    overlap: np.ndarray  # [N] float64: with that object, or NaN


class Count(NamedTuple):
    """Numbers of verdicts in a frame, or of one class there."""

    matched: int = 0
    missed: int = 0
    false: int = 0

    def __str__(self) -> str:
        return f"{self.matched} matched, {self.missed} missed, {self.false} false"


def count(truth: Iterable[str], detections: Iterable[str]) -> Count:
    """Numbers of the verdicts on objects and on detections."""
    objects, found = list(truth), list(detections)
    return Count(found.count(MATCHED), objects.count(MISSED), found.count(FALSE))


def badness(verdicts: Verdicts, scores: np.ndarray) -> float:
    """How bad a frame is: 1 for each missed object, its score for each false detection."""
    missed = (verdicts.truth == MISSED).sum()
    return float(missed + np.asarray(scores)[verdicts.detections == FALSE].sum())


METRICS = ("3d", "bev")
HARD = 2  # the difficulty that counts most objects: all that KITTI does not leave out
OWN_OVERLAP = 0.5  # of classes that KITTI does not evaluate


def default_overlap(name: str) -> float:
    """KITTI's least overlap of a match in a class: 0.7 for cars, else 0.5."""
    return MIN_OVERLAP.get(name, (OWN_OVERLAP,))[0]


def judge(
    detections: Labels, truth: Labels, min_overlap: Mapping[str, float], metric: str = "3d"
) -> Verdicts:
    """Matches all given detections of a frame with its labelled objects.

    The rules of `data.metric.kitti` at the difficulty "hard" apply. Give only the detections that
    score enough: then the matched and the false detections, summed over many frames, are the hits
    and the false detections in its recall and precision.

    Args:
        detections: with a score.
        min_overlap: by the names of the classes that are judged. All others are ignored.
        metric: "3d" or "bev".
    """
    objects, found = Objects.of([truth]), Objects.of([detections])
    overlaps = find_overlaps(objects, found)
    result = Verdicts(
        np.full(len(truth), IGNORED),
        np.full(len(detections), IGNORED),
        np.full(len(detections), -1),
        np.full(len(detections), np.nan),
    )
    for name, least in min_overlap.items():
        roles, detected = truth_roles(objects, name, HARD), detection_roles(found, name, HARD)
        matcher = Matcher(overlaps[:3], overlaps.iou[metric], least, roles, detected, found.scores)
        taken = matcher.taken(np.array([-np.inf]))[:, 0]
        hit = taken & matcher.hits
        a, b = matcher.truth[hit], matcher.detections[hit]
        own, own_found = objects.types == name.lower(), found.types == name.lower()
        # A counting object whose only detection is too low in the image is neither right nor wrong.
        result.truth[own & (roles == COUNTS)] = MISSED
        touched = matcher.truth[taken]
        result.truth[touched[own[touched]]] = IGNORED
        result.truth[a] = MATCHED
        result.detections[own_found & (detected == COUNTS)] = FALSE
        used = matcher.detections[taken]
        result.detections[used[own_found[used]]] = IGNORED
        result.detections[b] = MATCHED
        result.partner[b], result.overlap[b] = a, matcher.iou[hit]
    return result
