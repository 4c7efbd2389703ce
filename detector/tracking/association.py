"""Which detection belongs to which track."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from detector.tracking.kalman import Estimates

MARGIN = 0.5  # metres around a box
DEVIATIONS = 2.0  # of the predicted position
MISSING = "tracking needs SciPy; install it: pip install -e '.[live]'"


def hungarian() -> Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]:
    """SciPy's solver. Raises ValueError with the line to type where SciPy is missing."""
    try:
        from scipy.optimize import linear_sum_assignment
    except ModuleNotFoundError:
        raise ValueError(MISSING) from None
    return linear_sum_assignment


def assign(cost: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Pairs (rows, columns) of a matrix [n, m] (Hungarian algorithm): as many as possible, of the
    least total cost. Those of infinite cost are never a pair."""
    allowed = np.isfinite(cost)
    if not allowed.any():
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    # One forbidden pair costs more than all allowed ones together.
    forbidden = 1 + min(cost.shape) * cost[allowed].max()
    rows, columns = hungarian()(np.where(allowed, cost, forbidden))
    kept = allowed[rows, columns]
    return rows[kept], columns[kept]


def distances(known: Estimates, boxes: np.ndarray) -> np.ndarray:
    """[n, m] metres from n predicted boxes to the centres of boxes [m, 7] seen from above.

    Infinite outside of an ellipse along the predicted box: its half axes are half of the length
    and of the width, a margin, and two standard deviations of the position in their direction. So
    a new object, whose speed is unknown, may be found again far along its heading, but not aside.
    """
    mean, spread = known.mean, known.covariance[:, :2, :2]
    offsets = boxes[None, :, :2] - mean[:, None, :2]  # [n, m, 2]
    cos, sin = np.cos(mean[:, 3]), np.sin(mean[:, 3])
    inside = np.zeros(offsets.shape[:2])
    for axis, size in ((np.stack([cos, sin], axis=1), 4), (np.stack([-sin, cos], axis=1), 5)):
        deviation = np.sqrt(np.einsum("ni,nij,nj->n", axis, spread, axis))
        reach = mean[:, size] / 2 + MARGIN + DEVIATIONS * deviation
        inside += (np.einsum("nmi,ni->nm", offsets, axis) / reach[:, None]) ** 2
    return np.where(inside <= 1, np.hypot(offsets[..., 0], offsets[..., 1]), np.inf)
