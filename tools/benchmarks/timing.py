"""Scans to measure on, times and their percentiles."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from millisecond.data.formats.clouds import read_points
from millisecond.data.simulator import simulate
from millisecond.data.simulator.sensors import find_sensor
from millisecond.detector.cuda_graph import captured
from millisecond.ops import VoxelGrid, Voxels, voxelize


class Scans(NamedTuple):
    """Point clouds [P, 4] on the CPU and where they come from."""

    points: list[Tensor]
    source: str

    def voxels(self, frames: Sequence[int], grid: VoxelGrid, device: torch.device) -> Voxels:
        """Voxels of a batch of some of the scans, at most 40000 per frame."""
        return voxelize(*self.batch(frames, device), grid)

    def batch(self, frames: Sequence[int], device: torch.device) -> tuple[Tensor, Tensor]:
        """Points of some of the scans one after another, and their offsets."""
        clouds = [self.points[frame % len(self.points)] for frame in frames]
        sizes = torch.tensor([0, *map(len, clouds)])
        return torch.cat(clouds).to(device), sizes.cumsum(0).int().to(device)


def simulated_sweeps(count: int) -> Scans:
    """Streets as an HDL-64E sees them in all directions."""
    sensor = find_sensor("hdl-64e")
    clouds = [simulate(seed, sensor=sensor, crop=False).points for seed in range(count)]
    return Scans([torch.from_numpy(points) for points in clouds], f"{count} simulated sweeps")


def load_scans(folder: Path | None, count: int) -> Scans:
    """The first `count` .bin files of a folder by name; without a folder, simulated streets."""
    if folder is None:
        clouds = [torch.from_numpy(simulate(seed).points) for seed in range(count)]
        return Scans(clouds, f"{count} simulated streets")
    paths = sorted(folder.glob("*.bin"))[:count]
    if not paths:
        raise FileNotFoundError(f"{folder}: holds no .bin files; give a folder of scans")
    return Scans([torch.from_numpy(read_points(path)) for path in paths], f"{len(paths)} scans")


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
