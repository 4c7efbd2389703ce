"""Which detection belongs to which track."""

from __future__ import annotations

import numpy as np

MISSING = "tracking needs scipy: pip install -e '.[live]'"


def assign(cost: np.ndarray, limit: float) -> tuple[np.ndarray, np.ndarray]:
    """Pairs (rows, columns) of least total cost of a matrix [n, m] (Hungarian algorithm).

    As many pairs as possible cost less than the limit; no other pair is made. Raises ValueError
    with the line to type where SciPy is missing.
    """
    try:
        from scipy.optimize import linear_sum_assignment
    except ModuleNotFoundError:
        raise ValueError(MISSING) from None
    allowed = cost < limit
    # Any forbidden pair costs more than all that are allowed together.
    forbidden = (min(cost.shape) + 1) * (1 + np.abs(cost[allowed]).max(initial=0))
    rows, columns = linear_sum_assignment(np.where(allowed, cost, forbidden))
    kept = allowed[rows, columns]
    return rows[kept], columns[kept]
