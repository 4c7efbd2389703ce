"""How long calls take: the usual ones and the slow ones."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

SHARES = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p99.9": 0.999}


class Percentiles(NamedTuple):
    """Milliseconds of repeated calls."""

    p50: float
    p90: float
    p99: float
    p99_9: float
    jitter: float  # mean difference between a call and the next one

    @classmethod
    def of(cls, milliseconds: Sequence[float]) -> Percentiles:
        """A share's percentile is the nearest of the samples."""
        ordered = sorted(milliseconds)
        last = len(ordered) - 1
        ranked = [ordered[round(share * last)] for share in SHARES.values()]
        steps = [abs(b - a) for a, b in pairwise(milliseconds)]
        return cls(*ranked, sum(steps) / len(steps) if steps else 0.0)

    def named(self) -> dict[str, float]:
        """For a JSON file."""
        return {f"{name}_ms": value for name, value in self._asdict().items()}

    def __str__(self) -> str:
        return (
            f"p50 {self.p50:.3f}  p90 {self.p90:.3f}  p99 {self.p99:.3f}  p99.9 {self.p99_9:.3f}  "
            f"jitter {self.jitter:.3f} ms"
        )
