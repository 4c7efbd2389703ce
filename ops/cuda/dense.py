"""Rows of active sites to dense grids on the CUDA kernels, see csrc/bev/dense.cu."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ops.cuda.fakes import fake
from ops.cuda.library import extension


def dense(
    features: Tensor,
    coords: Tensor,
    spatial_shape: Sequence[int],
    batch_size: int,
    count: Tensor | None,
) -> Tensor:
    """See ops.dense.dense."""
    return _scatter(features, coords, spatial_shape, batch_size, count, from_above=False)


def bev_map(
    features: Tensor,
    coords: Tensor,
    spatial_shape: Sequence[int],
    batch_size: int,
    count: Tensor | None,
) -> Tensor:
    """See ops.dense.bev_map."""
    return _scatter(features, coords, spatial_shape, batch_size, count, from_above=True)


def _scatter(features, coords, spatial_shape, batch_size, count, from_above) -> Tensor:
    extension()
    arguments = features.contiguous(), coords, count, batch_size, spatial_shape, from_above
    if torch.is_grad_enabled():
        return Dense.apply(*arguments)
    return torch.ops.millisecond.dense(*arguments)


class Dense(torch.autograd.Function):
    """Its gradient gathers what the sites have received."""

    @staticmethod
    def forward(ctx, features, coords, count, batch_size, spatial_shape, from_above):
        ctx.save_for_backward(coords, count)
        ctx.grid = spatial_shape, from_above
        return torch.ops.millisecond.dense(
            features, coords, count, batch_size, spatial_shape, from_above
        )

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        coords, count = ctx.saved_tensors
        features = torch.ops.millisecond.dense_backward(grad, coords, count, *ctx.grid)
        return features, None, None, None, None, None


@fake("dense")
def _fake_dense(features, coords, count, batch_size, spatial_shape, from_above) -> Tensor:
    channels = features.shape[1]
    if not from_above:
        return features.new_empty(batch_size, channels, *spatial_shape)
    depth, height, width = spatial_shape
    shape = batch_size, channels * depth, height, width
    options = {"dtype": features.dtype, "device": features.device}
    return torch.empty(shape, **options, memory_format=torch.channels_last)


@fake("dense_backward")
def _fake_dense_backward(gradient, coords, count, spatial_shape, from_above) -> Tensor:
    channels = gradient.shape[1] // (spatial_shape[0] if from_above else 1)
    return gradient.new_empty(coords.shape[0], channels)
