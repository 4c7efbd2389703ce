"""Pooling of the features of points into voxels: dynamic voxelization and grid pooling."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ops.cuda import voxel_pool as cuda
from ops.dispatch import on_kernels
from ops.reference import voxel_pool as reference
from ops.reference.coords import coords_of_keys
from ops.reference.voxelize import cells_of_points, check_offsets
from ops.voxelize import VoxelGrid, check_points

REDUCTIONS = "max", "mean"


class PointVoxels(NamedTuple):
    """The voxel of each point, and the points of each voxel. Of P points E are inside the grid."""

    coords: Tensor  # [N, 4] int32: the cells that hold points, sorted by (b, z, y, x)
    voxels: Tensor  # [P] int64: row of coords for each point; -1: outside of the grid
    order: Tensor  # [E] int64: points by voxel, those of a voxel by their row
    owners: Tensor  # [E] int32: the voxel of each of them, i.e. voxels[order]
    starts: Tensor  # [N + 1] int32: voxel n has order[starts[n]:starts[n + 1]]
    batch_size: int


@torch.no_grad()
def dynamic_voxelize(
    points: Tensor,  # [P, 3 or more] float32: x, y, z, then anything
    offsets: Tensor,  # [B + 1] int32
    grid: VoxelGrid,
) -> PointVoxels:
    """The voxels of all points, without a limit on their number: Zhou et al., MVF, 2019.

    Cells are those of `voxelize`. Points outside of the grid, and those with a value that is not
    finite, belong to no voxel. `group_points(pooled[None], found.voxels[None, :, None])` takes the
    result of a pooling back to the points. Runs in plain torch on either device: one stable sort.
    """
    check_points(points, offsets)
    check_offsets(offsets.tolist(), len(points))  # sync: so is the number of voxels
    finite = points.isfinite().all(dim=1)
    keys, inside = cells_of_points(points, finite, offsets, grid)
    keys, place = keys.sort(stable=True)
    order = inside[place]
    sites, owners, counts = keys.unique_consecutive(return_inverse=True, return_counts=True)
    voxels = torch.full((len(points),), -1, dtype=torch.int64, device=points.device)
    voxels[order] = owners
    starts = torch.nn.functional.pad(counts.cumsum(0), (1, 0))
    coords = coords_of_keys(sites, grid.shape)
    return PointVoxels(coords, voxels, order, owners.int(), starts.int(), len(offsets) - 1)


def voxel_pool(
    features: Tensor,  # [P, C] float32, float16, bfloat16 or float64
    voxels: PointVoxels,  # of P points
    reduction: str,  # "max" or "mean"
) -> Tensor:  # [N, C], rows as voxels.coords
    """Largest or mean feature of the points of each voxel, by channel; grid pooling of PTv2.

    Sums are float32, in an order that is fixed. Of equal features the gradient of the largest goes
    to the point of the lowest row. NaN counts as larger than everything.
    """
    if features.ndim != 2 or not features.is_floating_point():
        raise ValueError(
            f"features: expected [P, C] of floats, got {list(features.shape)} {features.dtype}"
        )
    if len(features) != len(voxels.voxels):
        raise ValueError(f"features: {len(features)} rows for {len(voxels.voxels)} points")
    if features.device != voxels.voxels.device:
        raise ValueError(f"features: on {features.device}, voxels on {voxels.voxels.device}")
    if reduction not in REDUCTIONS:
        raise ValueError(f"reduction: expected {' or '.join(REDUCTIONS)}, got {reduction!r}")
    backend = cuda if on_kernels(features) else reference
    return backend.voxel_pool(features, voxels, reduction)
