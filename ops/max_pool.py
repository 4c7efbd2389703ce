"""Sparse max pooling along a kernel map. The kernels are in csrc/conv/max_pool.cu."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from millisecond.ops.dispatch import on_kernels
from millisecond.ops.library import fake
from millisecond.ops.rulebook import KernelMap
from millisecond.ops.sparse_conv import check_features


def sparse_max_pool(
    features: Tensor,  # [N_in, C]
    kernel_map: KernelMap,
) -> Tensor:  # [N_out, C]
    """Largest of the existing inputs of each window, by channel.

    A row without any input is zero. The gradient goes to the first of equal inputs.
    """
    check_features(features, kernel_map)
    if not on_kernels(features):
        return sparse_max_pool_definition(features, kernel_map)
    if torch.is_grad_enabled():
        return KernelMaxPool.apply(features, kernel_map)
    return _max_pool(features, kernel_map)[0]


class KernelMaxPool(torch.autograd.Function):
    @staticmethod
    def forward(ctx, features, kernel_map):
        out, source = _max_pool(features, kernel_map)
        ctx.save_for_backward(source)
        ctx.table = kernel_map.backward
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        (source,) = ctx.saved_tensors
        features = torch.ops.millisecond.max_pool_backward(
            grad.contiguous(), source, ctx.table.neighbours, ctx.table.count
        )
        return features, None


def _max_pool(features: Tensor, kernel_map: KernelMap) -> tuple[Tensor, Tensor]:
    """[N_out, C], and the input row that each of its values comes from, -1 = none."""
    table = kernel_map.forward
    return torch.ops.millisecond.max_pool(features.contiguous(), table.neighbours, table.count)


@fake("max_pool")
def _fake_max_pool(features, neighbours, count) -> tuple[Tensor, Tensor]:
    shape = neighbours.shape[1], features.shape[1]
    return features.new_empty(shape), neighbours.new_empty(shape)


@fake("max_pool_backward")
def _fake_max_pool_backward(gradient, source, neighbours, count) -> Tensor:
    return gradient.new_empty(neighbours.shape[1], gradient.shape[1])


def sparse_max_pool_definition(features: Tensor, kernel_map: KernelMap) -> Tensor:
    """`sparse_max_pool` in plain torch."""
    return PlainMaxPool.apply(features, kernel_map)


class PlainMaxPool(torch.autograd.Function):
    @staticmethod
    def forward(ctx, features, kernel_map):
        table = kernel_map.forward
        shape = (table.neighbours.shape[1], features.shape[1])
        out = features.new_zeros(shape)
        source = torch.full(shape, -1, dtype=torch.int32, device=features.device)
        for column in table.neighbours:
            rows = _rows_that_read(column, table.count)
            values, best = features[column[rows]], out[rows]
            better = (source[rows] < 0) | (values > best) | values.isnan()
            out[rows] = torch.where(better, values, best)
            source[rows] = torch.where(better, column[rows, None], source[rows])
        ctx.save_for_backward(source)
        ctx.table = kernel_map.backward
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        (source,) = ctx.saved_tensors
        table = ctx.table
        out = grad.new_zeros(table.neighbours.shape[1], grad.shape[1])
        for column in table.neighbours:
            rows = _rows_that_read(column, table.count)
            mine = source[column[rows]] == rows[:, None]
            out[rows] += torch.where(mine, grad[column[rows]], 0)
        return out, None


def _rows_that_read(column: Tensor, count: Tensor | None) -> Tensor:
    """The rows that have a neighbour at an offset of a table."""
    exists = column >= 0
    if count is not None:
        exists &= torch.arange(len(column), device=column.device) < count
    return exists.nonzero().squeeze(1)
