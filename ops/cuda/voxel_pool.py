"""Pooling of points into voxels on the CUDA kernels, see csrc/points/segments.cu."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ops.cuda.fakes import fake
from ops.cuda.library import extension


def voxel_pool(features: Tensor, voxels, reduction: str) -> Tensor:
    """See ops.voxel_pool."""
    extension()
    pool = MeanPool if reduction == "mean" else MaxPool
    return pool.apply(features, voxels)


class MeanPool(torch.autograd.Function):
    @staticmethod
    def forward(ctx, features, voxels):
        ctx.voxels = voxels
        table = voxels.order, voxels.owners, voxels.starts
        return torch.ops.millisecond.segment_sum(features.contiguous(), *table, None, 1, True)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        voxels = ctx.voxels
        each = (grad.float() / voxels.starts.diff()[:, None]).to(grad.dtype).contiguous()
        rows = voxels.voxels[None, :, None]
        return torch.ops.millisecond.group_points(each[None], rows)[0, :, 0], None


class MaxPool(torch.autograd.Function):
    @staticmethod
    def forward(ctx, features, voxels):
        table = voxels.order, voxels.owners, voxels.starts
        out, source = torch.ops.millisecond.segment_max(features.contiguous(), *table)
        ctx.save_for_backward(source)
        ctx.shape = features.shape
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        (source,) = ctx.saved_tensors
        return grad.new_zeros(ctx.shape).scatter_(0, source, grad), None  # no place twice


@fake("segment_max")
def _fake_segment_max(values, order, owners, starts) -> tuple[Tensor, Tensor]:
    shape = starts.shape[0] - 1, values.shape[1]
    return values.new_empty(shape), order.new_empty(shape)
