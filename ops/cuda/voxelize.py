"""Points to voxels on the CUDA kernels, see csrc/index/voxelize.cu."""

from __future__ import annotations

import torch
from torch import Tensor

from ops.cuda.bitmap import new_workspace
from ops.cuda.fakes import fake
from ops.cuda.library import extension
from ops.reference.voxelize import check_offsets


def voxelize(
    points: Tensor,
    offsets: Tensor,
    grid,
    max_points: int,
    max_voxels: int,
    capacity: int | None,
    workspace: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor | None, Tensor]:
    """See ops.voxelize.voxelize: features, coords, count, dropped."""
    extension()
    batch_size = len(offsets) - 1
    if workspace is None:
        workspace = new_workspace(batch_size, [grid.shape], points.device)
    rows = min(len(points), batch_size * max_voxels) if capacity is None else capacity
    features, coords, count, dropped = torch.ops.millisecond.voxelize(
        points.contiguous(),
        offsets.contiguous(),
        workspace,
        grid.point_range[:3],
        grid.voxel_size,
        grid.shape,
        max_points,
        max_voxels,
        rows,
    )
    if capacity is not None:
        return features, coords, count, dropped
    # sync: exact sizes, and the offsets are checked on the way
    size, *starts = torch.cat([count, offsets]).tolist()
    check_offsets(starts, len(points))
    return features[:size], coords[:size], None, dropped


@fake("voxelize")
def _fake_voxelize(
    points, offsets, workspace, lower, size, shape, max_points, max_voxels, rows
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return (
        points.new_empty(rows, points.shape[1]),
        offsets.new_empty(rows, 4),
        offsets.new_empty(1),
        offsets.new_empty(2, dtype=torch.int64),
    )
