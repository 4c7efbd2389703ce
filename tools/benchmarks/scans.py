"""The scans that are measured: real ones from a folder, or simulated streets."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from data.kitti.points import read_points
from data.simulator import simulate
from data.simulator.sensors import find_sensor
from ops import VoxelGrid, Voxels, voxelize


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
