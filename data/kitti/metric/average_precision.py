"""Precision sampled at 41 places of recall, and its average: R11 and R40 of the KITTI benchmark."""

import numpy as np

SAMPLES = 41


def recall_thresholds(scores: np.ndarray, count: int) -> np.ndarray:
    """Scores, at most 41 of them, at which recall comes nearest to 0, 1/40, ... 1.

    scores: of the hits, any order. count: number of ground truths, hit or not.
    There are never more thresholds than hits, which caps the average below 41 ground truths.
    """
    scores = np.sort(scores)[::-1]
    thresholds, wanted = [], 0.0
    for i, score in enumerate(scores):
        last = i == len(scores) - 1
        recall, following = (i + 1) / count, (i + 2) / count
        if not last and following - wanted < wanted - recall:
            continue
        thresholds.append(score)
        # Summed up as the benchmark does it: multiples of 1/40 would round otherwise.
        wanted += 1.0 / (SAMPLES - 1.0)
    return np.array(thresholds, dtype=np.float64)


def average(values: np.ndarray) -> dict[str, float]:
    """R11 and R40 in percent of a curve [T] sampled at the T recall thresholds.

    The curve is first made to fall: each sample becomes the largest from there on. Samples that
    were not reached are 0. R11 averages samples 0, 4, ... 40, R40 samples 1 to 40.
    """
    curve = np.zeros(SAMPLES)
    curve[: len(values)] = np.maximum.accumulate(values[::-1])[::-1]
    return {"R11": 100 * float(curve[::4].mean()), "R40": 100 * float(curve[1:].mean())}
