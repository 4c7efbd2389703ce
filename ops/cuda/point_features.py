"""Features of points at their neighbours on the CUDA kernels, see csrc/points/gather.cu.

A gradient is a sum over all places that a point was taken to. They are sorted by the point, and
the order of the sums is fixed by that: no atomic decides it.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ops.cuda.fakes import fake
from ops.cuda.library import extension


def group_points(features: Tensor, rows: Tensor) -> Tensor:
    """See ops.group_points."""
    extension()
    return GroupPoints.apply(features, rows.contiguous())


def interpolate(features: Tensor, rows: Tensor, weights: Tensor) -> Tensor:
    """See ops.interpolate."""
    extension()
    return Interpolate.apply(features, rows.contiguous(), weights.contiguous())


class GroupPoints(torch.autograd.Function):
    @staticmethod
    def forward(ctx, features, rows):
        ctx.save_for_backward(rows)
        ctx.shape = features.shape
        return torch.ops.millisecond.group_points(features.contiguous(), rows)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        (rows,) = ctx.saved_tensors
        return _summed_by_point(grad, rows, None, ctx.shape), None


class Interpolate(torch.autograd.Function):
    @staticmethod
    def forward(ctx, features, rows, weights):
        ctx.save_for_backward(rows, weights)
        ctx.shape = features.shape
        return torch.ops.millisecond.interpolate(features.contiguous(), rows, weights)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        rows, weights = ctx.saved_tensors
        return _summed_by_point(grad, rows, weights, ctx.shape), None, None


def _summed_by_point(
    grad: Tensor,  # [B, M, S, C], or with weights [B, M, C]
    rows: Tensor,  # [B, M, S]
    weights: Tensor | None,  # [B, M, S]
    shape: torch.Size,  # B, P, C
) -> Tensor:
    """[B, P, C]: the sum, weighted if there are weights, of what went to each point."""
    batch, count, channels = shape
    first = torch.arange(batch, device=rows.device)[:, None, None] * count
    exists = (rows >= 0) & (rows < count)
    none = batch * count
    # a radix sort takes half as long for half the bits
    keys = torch.where(exists, rows + first, none).to(
        torch.int16 if none < 1 << 15 else torch.int32
    )
    keys, order = keys.flatten().sort(stable=True)
    owners = keys.int()
    limits = torch.arange(none + 1, dtype=torch.int32, device=rows.device)
    starts = torch.searchsorted(owners, limits, out_int32=True)
    values = grad.reshape(-1, channels).contiguous()
    share = rows.shape[2] if weights is not None else 1  # entries per row of the gradient
    flat = None if weights is None else weights.flatten()
    total = torch.ops.millisecond.segment_sum(values, order, owners, starts, flat, share, False)
    return total.view(shape)


@fake("group_points")
def _fake_group_points(features, rows) -> Tensor:
    return features.new_empty(*rows.shape, features.shape[2])


@fake("interpolate")
def _fake_interpolate(features, rows, weights) -> Tensor:
    return features.new_empty(*rows.shape[:2], features.shape[2])


@fake("segment_sum")
def _fake_segment_sum(values, order, owners, starts, weights, share, mean) -> Tensor:
    return values.new_empty(starts.shape[0] - 1, values.shape[1])
