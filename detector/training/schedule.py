"""The one-cycle schedule of learning rate and momentum, as a pure function of the step."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class OneCycle:
    """Learning rate and momentum at a step of a run of `total_steps` optimiser steps.

    Rate: lr / div -> lr over the first `warmup` share of the steps, then lr -> lr / (div * 1e4),
    both along half a cosine. Momentum runs the other way: high -> low -> high.
    L. N. Smith, "Super-convergence", 2017, in fastai's form with cosine annealing.
    """

    total_steps: int
    lr: float
    div: float = 10.0
    warmup: float = 0.4
    momentum: tuple[float, float] = (0.95, 0.85)

    def __call__(self, step: int) -> tuple[float, float]:
        """(learning rate, momentum) of the step with this 0-based number; no state is kept."""
        peak = int(self.total_steps * self.warmup)
        start = self.lr / self.div
        high, low = self.momentum
        if step < peak:
            share = step / peak
            return _cosine(start, self.lr, share), _cosine(high, low, share)
        share = min((step - peak) / max(self.total_steps - peak, 1), 1.0)
        return _cosine(self.lr, start / 1e4, share), _cosine(low, high, share)


def _cosine(begin: float, end: float, share: float) -> float:
    return end + (begin - end) / 2 * (1 + math.cos(math.pi * share))
