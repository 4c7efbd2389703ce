"""Max pooling over the inputs that exist."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ops.rulebook import KernelMap


def sparse_max_pool(features: Tensor, kernel_map: KernelMap) -> Tensor:
    """See ops.max_pool.sparse_max_pool."""
    return SparseMaxPool.apply(features, kernel_map)


class SparseMaxPool(torch.autograd.Function):
    @staticmethod
    def forward(ctx, features, kernel_map):
        table = kernel_map.forward
        shape = (table.neighbours.shape[1], features.shape[1])
        out = features.new_zeros(shape)
        source = torch.full(shape, -1, dtype=torch.int32, device=features.device)
        for column in table.neighbours:
            exists = column >= 0
            if table.count is not None:
                exists &= torch.arange(len(column), device=column.device) < table.count
            rows = exists.nonzero().squeeze(1)
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
        neighbours = ctx.table.neighbours
        out = grad.new_zeros(neighbours.shape[1], grad.shape[1])
        for column in neighbours:
            exists = column >= 0
            if ctx.table.count is not None:
                exists &= torch.arange(len(column), device=column.device) < ctx.table.count
            rows = exists.nonzero().squeeze(1)
            mine = source[column[rows]] == rows[:, None]
            out[rows] += torch.where(mine, grad[column[rows]], 0)
        return out, None
