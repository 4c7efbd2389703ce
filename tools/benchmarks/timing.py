"""Clocks: how long a call takes, by the wall clock and on the device alone."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import NamedTuple, TypeVar

import torch

from detector.cuda_graph import captured

Result = TypeVar("Result")


class Times(NamedTuple):
    """Milliseconds of repeated calls."""

    median: float
    p99: float
    least: float

    @classmethod
    def of(cls, milliseconds: list[float]) -> Times:
        ordered = sorted(milliseconds)
        last = ordered[min(len(ordered) - 1, round(0.99 * (len(ordered) - 1)))]
        return cls(statistics.median(ordered), last, ordered[0])


def wall(call: Callable[[], object], repeats: int, warmup: int = 3) -> list[float]:
    """Milliseconds of each call by the wall clock, the device idle before and after."""
    for _ in range(warmup):
        call()
    return [timed(call)[1] for _ in range(repeats)]


def timed(call: Callable[[], Result]) -> tuple[Result, float]:
    """What a call returns, and its milliseconds by the wall clock."""
    _synchronize()
    started = time.perf_counter()
    result = call()
    _synchronize()
    return result, 1e3 * (time.perf_counter() - started)


def kernel_time(call: Callable[[], object], launches: int = 20, repeats: int = 9) -> float:
    """Median milliseconds of one call among `launches` in a graph: what the device spends."""

    def many() -> None:
        for _ in range(launches):
            call()

    graph, _ = captured(many)
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    samples = []
    for _ in range(repeats):
        start.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        samples.append(start.elapsed_time(end) / launches)
    return statistics.median(samples)


def _synchronize() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
