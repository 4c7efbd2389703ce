"""Pooling of points into voxels in plain torch: the definition, and the CPU path."""

from __future__ import annotations

import torch
from torch import Tensor


def voxel_pool(features: Tensor, voxels, reduction: str) -> Tensor:
    """See ops.voxel_pool."""
    inside, owners = features[voxels.order], voxels.owners.long()
    shape = len(voxels.coords), features.shape[1]
    if reduction == "mean":
        wide = inside if inside.dtype == torch.float64 else inside.float()
        total = wide.new_zeros(shape).index_add(0, owners, wide)
        return (total / voxels.starts.diff()[:, None]).to(features.dtype)
    return inside.gather(0, _largest(inside.detach(), owners, shape))


def _largest(inside: Tensor, owners: Tensor, shape: tuple[int, int]) -> Tensor:
    """[N, C] int64: which row of inside [E, C] is the largest of each voxel, of equal ones the
    first."""
    targets = owners[:, None].expand_as(inside)
    best = inside.new_full(shape, -torch.inf).scatter_reduce(0, targets, inside, "amax")[owners]
    found = (inside == best) | inside.isnan()
    rows = torch.arange(len(inside), device=inside.device)[:, None].expand_as(inside)
    rows = torch.where(found, rows, len(inside))
    return rows.new_full(shape, len(inside)).scatter_reduce(0, targets, rows, "amin")
