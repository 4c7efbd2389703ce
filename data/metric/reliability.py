"""How often scores are right: the share of right boxes by score, its table; and the scale and shift
of logits that make a score this share.

Platt, "Probabilistic Outputs for Support Vector Machines", 1999; Guo et al., "On Calibration of
Modern Neural Networks", ICML 2017.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

EDGES = np.arange(11) / 10  # of the bins of scores
STEPS = 30  # of Newton's method; it converges in about eight
LEAST = 30  # right boxes and wrong ones that a fit takes


class Judged(NamedTuple):
    """The detections of a class that are either right or wrong."""

    scores: np.ndarray  # [N] float64
    right: np.ndarray  # [N] bool


def reliability(judged: Judged) -> list[dict[str, float | int]]:
    """A row for each tenth of the scores that has boxes: low and high, number of boxes, their mean
    score, the share of right ones."""
    bins = np.digitize(judged.scores, EDGES[1:-1])
    rows: list[dict[str, float | int]] = []
    for number in np.unique(bins).tolist():
        own, (low, high) = bins == number, EDGES[number : number + 2].tolist()
        score, right = judged.scores[own].mean(), judged.right[own].mean()
        row = {"low": low, "high": high, "boxes": int(own.sum())}
        rows.append(row | {"score": float(score), "right": float(right)})
    return rows


def format_reliability(classes: Mapping[str, Sequence[Mapping[str, float | int]]]) -> str:
    """The rows of `reliability` of each class, side by side; shares in percent."""
    bins = [f"{low:g}-{high:g}" for low, high in pairwise(EDGES)]
    lines = ["reliability: mean score and share of right boxes in 3-D, in percent, by score"]
    wide = max(14, *(len(name) + 1 for name in classes), 0)
    narrow = 8 if wide == 14 else 7
    titles = bins if narrow == 8 else [title.replace("0.", ".") for title in bins]
    lines.append(f"{'':{wide + 6}}" + "".join(f"{title:>{narrow}}" for title in titles))
    for name, rows in classes.items():
        known = {f"{row['low']:g}-{row['high']:g}": row for row in rows}
        for key, factor in (("boxes", 1), ("score", 100), ("right", 100)):
            values = (f"{factor * known[b][key]:.0f}" if b in known else "-" for b in bins)
            cells = "".join(f"{value:>{narrow}}" for value in values)
            lines.append(f"{name * (key == 'boxes'):{wide}}{key:6}{cells}")
    return "\n".join(lines)


def fit_scale_and_shift(name: str, judged: Judged) -> tuple[float, float]:
    """The scale and the shift of the logit whose sigmoid is most likely the probability of right.

    Raises ValueError for too few boxes, and where higher scores are not more often right.
    """
    right, count = int(judged.right.sum()), len(judged.right)
    if min(right, count - right) < LEAST:
        raise ValueError(
            f"{name}: {right} of {count} boxes are right; scores are calibrated by {LEAST} right "
            f"and {LEAST} wrong ones: give more streets"
        )
    scores = np.clip(judged.scores, 1e-6, 1 - 1e-6)
    scale, shift = logistic(np.log(scores / (1 - scores))[:, None], judged.right).tolist()
    if scale <= 0:
        raise ValueError(f"{name}: boxes that score higher are not more often right")
    return scale, shift


def logistic(
    x: np.ndarray, truth: np.ndarray, importance: np.ndarray | float = 1.0, penalty: float = 1e-6
) -> np.ndarray:
    """Logistic regression of truth [N] on x [N, F]: weights [F + 1], the last of the constant.

    importance: of the rows; penalty: of the squares of the weights. Newton's method.
    """
    x = np.append(x, np.ones((len(x), 1)), axis=1)
    penalties = np.array([penalty] * (x.shape[1] - 1) + [1e-6])
    weights = np.zeros(x.shape[1])
    for _ in range(STEPS):
        chance = 1 / (1 + np.exp(-(x @ weights).clip(-30, 30)))
        slope = x.T @ (importance * (chance - truth)) + penalties * weights
        curve = (x.T * (importance * chance * (1 - chance))) @ x + np.diag(penalties)
        step = np.linalg.solve(curve, slope)
        weights -= step
        if np.abs(step).max() < 1e-6:
            break
    return weights
