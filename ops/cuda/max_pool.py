"""Sparse max pooling on the CUDA kernels, see csrc/conv/max_pool.cu."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ops.cuda.fakes import fake
from ops.cuda.library import extension
from ops.rulebook import KernelMap


def sparse_max_pool(features: Tensor, kernel_map: KernelMap) -> Tensor:
    """See ops.max_pool.sparse_max_pool."""
    extension()
    if torch.is_grad_enabled():
        return SparseMaxPool.apply(features, kernel_map)
    return _max_pool(features, kernel_map)[0]


class SparseMaxPool(torch.autograd.Function):
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
