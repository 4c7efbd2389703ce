"""Scans to measure on, the grids that cut them, and percentiles of times."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from millisecond.data.formats.clouds import read_scan
from millisecond.data.formats.points import KITTI_POINTS, PointColumns
from millisecond.data.simulator import simulate
from millisecond.detector.models.sparse_encoder import DOWNS
from millisecond.ops import Level, VoxelGrid, Voxels, index_pyramid, voxelize

KITTI = VoxelGrid((0, -40, -3, 70.4, 40, 1), (0.05, 0.05, 0.1))  # of second_kitti.yaml
AROUND = VoxelGrid((-80, -80, -4, 80, 80, 8), (0.05, 0.05, 0.05))  # as SemanticKITTI is cut


class Scans(NamedTuple):
    """Point clouds [P, 4 or more] on the CPU and where they come from."""

    points: list[Tensor]
    source: str

    def batch(self, frames: Sequence[int], device: str = "cuda") -> tuple[Tensor, Tensor]:
        """Points of some of the scans one after another, and their offsets, on a device."""
        clouds = [self.points[frame % len(self.points)] for frame in frames]
        sizes = torch.tensor([0, *map(len, clouds)])
        return torch.cat(clouds).to(device), sizes.cumsum(0).int().to(device)

    def voxels(
        self,
        frames: Sequence[int],
        grid: VoxelGrid = KITTI,
        most: int = 40_000,
        device: str = "cuda",
    ) -> Voxels:
        """Voxels of a batch of some of the scans, at most so many per frame."""
        return voxelize(*self.batch(frames, device), grid, max_voxels=most)

    def levels(self, frames: Sequence[int]) -> tuple[Level, ...]:
        """The sites of SECOND's encoder on a batch of some of the scans."""
        coords = self.voxels(frames).coords
        return index_pyramid(coords, KITTI.sparse_shape, len(frames), DOWNS).levels


def simulated_sweeps(count: int, points: PointColumns = KITTI_POINTS) -> Scans:
    """Streets as an HDL-64E sees them in all directions."""
    return Scans(_streets(count, points, crop=False), f"{count} simulated sweeps")


def _streets(count: int, points: PointColumns, crop: bool) -> list[Tensor]:
    """Further features than a street has are 0."""
    clouds = [torch.from_numpy(simulate(seed, crop=crop).points) for seed in range(count)]
    return [pad(cloud, (0, points.width - 4)) for cloud in clouds]


def load_scans(folder: Path | None, count: int, points: PointColumns = KITTI_POINTS) -> Scans:
    """The first `count` .bin files of a folder by name; without a folder, simulated streets."""
    if folder is None:
        return Scans(_streets(count, points, crop=True), f"{count} simulated streets")
    paths = sorted(folder.glob("*.bin"))[:count]
    if not paths:
        raise FileNotFoundError(f"{folder}: holds no .bin files; give a folder of scans")
    return Scans([torch.from_numpy(read_scan(p, points)) for p in paths], f"{len(paths)} scans")


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
        ranked = [ordered[round(share * last)] for share in (0.5, 0.9, 0.99, 0.999)]
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
