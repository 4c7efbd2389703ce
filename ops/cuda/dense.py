"""Rows of active sites to dense grids on the CUDA kernels, see csrc/bev/dense.cu."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

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
    """By millisecond.dense, whose gradient is millisecond.dense_backward."""
    extension()
    features = features.contiguous()
    return torch.ops.millisecond.dense(
        features, coords, count, batch_size, spatial_shape, from_above
    )


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
