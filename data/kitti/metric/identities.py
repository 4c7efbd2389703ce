"""Identities of labelled objects, for label files that have none."""

from collections.abc import Sequence

import numpy as np

from data.kitti.labels import Labels

FARTHEST = 2.0  # metres that an object moves between two frames, in the camera's frame


def nearest_identities(frames: Sequence[Labels]) -> list[np.ndarray]:
    """Ids [M] int64 per frame of successive frames, from 1.

    The files of the object benchmark have no track ids. An object takes the id of the object of
    equal type in the frame before whose centre is nearest, where that is within 2 m; the nearest
    pair of all first. An object without such a pair is new, also one that comes back. DontCare
    regions have id 0.
    """
    ids: list[np.ndarray] = []
    before, old, known = None, np.zeros(0, np.int64), 0
    for labels in frames:
        new = np.zeros(len(labels), np.int64)
        if before is not None:
            for a, b in _nearest_pairs(before, labels):
                new[b] = old[a]
        fresh = np.flatnonzero((new == 0) & (labels.types != "DontCare"))
        new[fresh] = known + 1 + np.arange(len(fresh))
        known += len(fresh)
        ids.append(new)
        before, old = labels, new
    return ids


def _nearest_pairs(a: Labels, b: Labels) -> list[tuple[int, int]]:
    """Pairs of objects of equal type, nearest first; each object has one partner at most."""
    apart = np.linalg.norm(a.location[:, None] - b.location[None], axis=2)
    fits = (a.types[:, None] == b.types[None]) & (a.types != "DontCare")[:, None]
    apart[~fits] = np.inf
    pairs = []
    for flat in np.argsort(apart, axis=None, kind="stable"):
        row, column = divmod(int(flat), len(b))
        if apart[row, column] <= FARTHEST:
            pairs.append((row, column))
            apart[row], apart[:, column] = np.inf, np.inf
    return pairs
