"""Sizes of objects that fall into two groups, e.g. lorries with and without a trailer."""

from __future__ import annotations

import numpy as np

APART = 1.6  # times, the medians of two groups of sizes that make two classes
SMALL_GROUP = 0.15  # share of a class that is no outlier


def largest_group(sizes: np.ndarray) -> np.ndarray:
    """[M, 3] sizes -> [M] bool: the larger of two groups (2-means of their logarithms), or all
    where the groups are near one another or one is small."""
    logs = np.log(sizes)
    volume = logs.sum(axis=1)
    centres = logs[[int(volume.argmin()), int(volume.argmax())]]
    second = np.zeros(len(sizes), bool)
    for _ in range(20):
        distance = ((logs[:, None] - centres) ** 2).sum(axis=2)
        second = distance[:, 1] < distance[:, 0]
        if second.all() or not second.any():
            return np.ones(len(sizes), bool)
        centres = np.stack([logs[~second].mean(axis=0), logs[second].mean(axis=0)])
    medians = [np.median(sizes[rows], axis=0) for rows in (~second, second)]
    apart = np.max(medians[1] / medians[0]) > APART
    share = min(second.mean(), 1 - second.mean())
    if not apart or share < SMALL_GROUP:
        return np.ones(len(sizes), bool)
    return second if second.mean() > 0.5 else ~second
