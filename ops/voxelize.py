"""Voxelizing: the cells of a grid that hold points (voxels), each with the mean of its points."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ops.cuda import voxelize as cuda
from ops.cuda.bitmap import fits
from ops.reference import voxelize as reference


class VoxelGrid(NamedTuple):
    """A box of the LiDAR frame cut into cells, metres."""

    point_range: tuple[float, ...]  # x, y, z of the lower corner, then of the upper one
    voxel_size: tuple[float, ...]  # x, y, z

    @property
    def shape(self) -> tuple[int, int, int]:
        """(z, y, x) cells."""
        low, high = self.point_range[:3], self.point_range[3:]
        cells = [
            round((b - a) / size) for a, b, size in zip(low, high, self.voxel_size, strict=True)
        ]
        return cells[2], cells[1], cells[0]

    @property
    def sparse_shape(self) -> tuple[int, int, int]:
        """(z + 1, y, x): the grid of SECOND's encoder, one empty layer on top."""
        z, y, x = self.shape
        return z + 1, y, x


class Voxels(NamedTuple):
    """The cells that hold points, rows sorted by (b, z, y, x)."""

    features: Tensor  # [N, C] mean of the kept points
    coords: Tensor  # [N, 4] int32
    # [1] int32: rows from here on hold nothing; None: all rows count. (Hides tuple.count.)
    count: Tensor | None  # type: ignore[assignment]
    dropped: Tensor  # [2] int64: points not finite, points lost to the cap on voxels
    batch_size: int


def voxelize(
    points: Tensor,  # [P, C] float32: x, y, z, then anything
    offsets: Tensor,  # [B + 1] int32
    grid: VoxelGrid,
    max_points: int = 5,
    max_voxels: int = 40000,
    capacity: int | None = None,
    workspace: Tensor | None = None,
) -> Voxels:
    """Mean of the first `max_points` points of each cell; frame b is
    points[offsets[b]:offsets[b + 1]].

    A cell is floor((p - lower) / size) in float32: points on a lower face are inside, on an upper
    one outside. A frame keeps at most `max_voxels` cells: those whose first points come first.
    Kept points are added up in their order in float32, then divided by their number. Points with
    a value that is not finite are dropped.

    With `capacity` there are that many rows and a count, and on CUDA nothing is read back to the
    host. Points of voxels beyond the capacity are dropped and counted as lost to the cap; points
    from offsets[B] on are left out. A
    `workspace` of `index_workspace(grid.shape, B, (), device)` saves zeroing one in every call; it
    is zero again when the call's kernels are done, so calls on one stream may share it.
    """
    check_points(points, offsets)
    limits = {"max_points": max_points, "max_voxels": max_voxels, "capacity": capacity}
    for name, value in limits.items():
        if value is not None and value < 1:
            raise ValueError(f"{name}: expected at least 1, got {value}")
    batch_size = len(offsets) - 1
    backend = cuda if points.is_cuda and fits(batch_size, [grid.shape]) else reference
    found = backend.voxelize(points, offsets, grid, *limits.values(), workspace)
    features, coords, count, dropped = found
    return Voxels(features, coords, count, dropped, batch_size)


def check_points(points: Tensor, offsets: Tensor) -> None:
    if points.dtype != torch.float32 or points.ndim != 2 or points.shape[1] < 3:
        raise ValueError(
            f"points: expected [P, 3 or more] float32, got {list(points.shape)} {points.dtype}"
        )
    if offsets.dtype != torch.int32 or offsets.ndim != 1 or len(offsets) < 2:
        raise ValueError(
            f"offsets: expected [B + 1] int32, got {list(offsets.shape)} {offsets.dtype}"
        )
    if offsets.device != points.device:
        raise ValueError(f"offsets: on {offsets.device}, points on {points.device}")
