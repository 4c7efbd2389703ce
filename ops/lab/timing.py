"""Milliseconds of calls: by the wall clock, and of a GPU's kernels alone."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple, TypeVar

import torch

from millisecond.ops.capture import captured

DTYPES = {  # by the precision's name
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
    "tf32": torch.float32,
    "fp32": torch.float32,
}
Result = TypeVar("Result")


class Times(NamedTuple):
    """Milliseconds of repeated calls."""

    median: float
    p99: float
    least: float

    @classmethod
    def of(cls, milliseconds: list[float]) -> Times:
        ordered = sorted(milliseconds)
        last = ordered[round(0.99 * (len(ordered) - 1))]
        return cls(statistics.median(ordered), last, ordered[0])


def set_precision(precision: str) -> torch.dtype:
    """Products of float32 are rounded to tf32, or exact; returns the precision's type."""
    torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
    return DTYPES[precision]


def wall(call: Callable[[], object], repeats: int, warmup: int = 3) -> list[float]:
    """Milliseconds of each call by the wall clock, the device idle before and after."""
    for _ in range(warmup):
        call()
    return [timed(call)[1] for _ in range(repeats)]


def by_turns(
    calls: Mapping[str, Callable[[], object]],
    repeats: int,
    warmup: int = 0,
    clock: Callable[[Callable[[], object]], float] = lambda call: timed(call)[1],
) -> dict[str, list[float]]:
    """Milliseconds of each call. The calls take turns, so that all of them see the same clocks."""
    samples: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(warmup + repeats):
        for name, call in calls.items():
            milliseconds = clock(call)
            if turn >= warmup:
                samples[name].append(milliseconds)
    return samples


def timed(call: Callable[[], Result]) -> tuple[Result, float]:
    """The result of a call, and its milliseconds by the wall clock."""
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
    return _between_events(graph.replay, repeats) / launches


def launched_time(call: Callable[[], object], launches: int, repeats: int = 5) -> float:
    """Median milliseconds of a call among several that are launched one after another: what the
    device spends, or the host where that takes longer."""

    def many() -> None:
        for _ in range(launches):
            call()

    call()
    return _between_events(many, repeats) / launches


def _between_events(launch: Callable[[], object], repeats: int) -> float:
    """Median milliseconds on the device, from before the launch to its end."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    samples = []
    for _ in range(repeats):
        start.record()
        launch()
        end.record()
        torch.cuda.synchronize()
        samples.append(start.elapsed_time(end))
    return statistics.median(samples)


def _synchronize() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
