"""Verdicts on the objects and the detections of one frame, and how many there are of each."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

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
