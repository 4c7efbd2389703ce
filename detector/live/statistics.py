"""Latencies and rates of a detector that runs live."""

from __future__ import annotations

from collections import deque
from itertools import islice

import numpy as np

RECENT = 1000  # frames whose percentiles are shown while it runs
SMOOTH = 10  # intervals over which the rate of the moment is taken


class Statistics:
    """Counts frames and troubles; keeps every latency for the percentiles of the end."""

    def __init__(self) -> None:
        self.troubles = 0
        self._latencies: list[float] = []  # seconds
        self._intervals: deque[float] = deque(maxlen=SMOOTH)  # seconds between two frames
        self._running = 0.0  # seconds, the sum of all intervals
        self._counted = 0  # intervals
        self._last: float | None = None  # when the last frame was done, seconds

    def add(self, latency: float, now: float) -> None:
        """A frame that took `latency` seconds and is done at time `now`, seconds."""
        self._latencies.append(latency)
        last, self._last = self._last, now  # read once: another thread may call `rest` meanwhile
        if last is not None:
            self._intervals.append(now - last)
            self._running += now - last
            self._counted += 1

    def rest(self) -> None:
        """What comes after a pause says nothing about the rate."""
        self._last = None

    @property
    def frames(self) -> int:
        return len(self._latencies)

    @property
    def latency(self) -> float:
        """That of the last frame, seconds; 0 before the first."""
        return self._latencies[-1] if self._latencies else 0.0

    @property
    def rate(self) -> float:
        """Frames per second at the moment; 0 where it is not known."""
        recent = list(self._intervals)
        return len(recent) / sum(recent) if sum(recent) else 0.0

    @property
    def mean_rate(self) -> float:
        """Frames per second from the first frame to the last, without pauses; 0: not known."""
        return self._counted / self._running if self._running else 0.0

    def percentiles(self, *percents: float, recent: bool = False) -> list[float]:
        """Latencies in seconds that so many percent of the frames do not exceed (nearest rank);
        recent: of the last 1000 frames. Of no frames 0."""
        count = len(self._latencies)
        first = max(0, count - RECENT) if recent else 0
        values = list(islice(self._latencies, first, count))
        if not values:
            return [0.0] * len(percents)
        return np.percentile(values, percents, method="inverted_cdf").tolist()

    def summary(self, dropped: int) -> str:
        """One line per fact."""
        p50, p90, p99 = map(milliseconds, self.percentiles(50, 90, 99))
        return (
            f"frames     {self.frames}, {self.mean_rate:.1f} per second\n"
            f"dropped    {dropped}\n"
            f"troubles   {self.troubles}\n"
            f"latency    p50 {p50}, p90 {p90}, p99 {p99}"
        )


def milliseconds(seconds: float) -> str:
    """With as many digits as mean something, e.g. "0.52 ms", "5.2 ms", "520 ms"."""
    value = 1000 * seconds
    return f"{value:.{2 if value < 1 else 1 if value < 10 else 0}f} ms"
