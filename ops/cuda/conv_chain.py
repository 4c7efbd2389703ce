"""Chained convolutions with bias and ReLU on the CUDA kernels, as inference runs them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ops.cuda.fakes import fake
from ops.cuda.library import extension
from ops.cuda.precision import tf32_allowed
from ops.rulebook import KernelMap, Level


class PackedWeights(NamedTuple):
    """Weights in the order in which the tensor cores read them."""

    tensors: list[Tensor]  # flat
    tf32: bool  # the order of float32 weights is that for tf32: they must be read as such


def pack_weights(weights: Sequence[Tensor]) -> PackedWeights:
    """weights: [V, C_in, C_out] each."""
    extension()
    tf32, pack = tf32_allowed(), torch.ops.millisecond.pack_weight
    return PackedWeights([pack(weight.contiguous(), tf32) for weight in weights], tf32)


def conv_chain(
    features: Tensor,
    weights: PackedWeights,
    biases: Sequence[Tensor],
    kernel_maps: Sequence[KernelMap],
) -> Tensor:
    """See ops.conv_chain.ConvChain.forward."""
    return _conv_chain(features, weights, biases, kernel_maps, None, 0, ())


def conv_chain_bev_map(
    features: Tensor,
    weights: PackedWeights,
    biases: Sequence[Tensor],
    kernel_maps: Sequence[KernelMap],
    level: Level,
    batch_size: int,
) -> Tensor:
    """See ops.conv_chain.ConvChain.bev_map: the last convolution writes its rows where they
    belong."""
    grid = level.coords, batch_size, level.spatial_shape
    return _conv_chain(features, weights, biases, kernel_maps, *grid)


def _conv_chain(
    features: Tensor,
    weights: PackedWeights,
    biases: Sequence[Tensor],
    kernel_maps: Sequence[KernelMap],
    coords: Tensor | None,
    batch_size: int,
    spatial_shape: tuple[int, ...],
) -> Tensor:
    tables = [kernel_map.forward for kernel_map in kernel_maps]
    return torch.ops.millisecond.conv_chain(
        features,
        weights.tensors,
        biases,
        [table.neighbours for table in tables],
        [table.count for table in tables if table.count is not None],
        [table.order for table in tables],
        [table.tiles for table in tables if table.tiles is not None],
        coords,
        batch_size,
        spatial_shape,
        weights.tf32,
    )


@fake("pack_weight")
def _fake_pack_weight(weight, tf32) -> Tensor:
    offsets, c_in, c_out = weight.shape
    is_twice = tf32 and weight.dtype == torch.float32 and c_in == c_out == 64 and 1 < offsets <= 32
    return weight.new_empty((2 if is_twice else 1) * weight.numel())


@fake("conv_chain")
def _fake_conv_chain(
    features,
    weights,
    biases,
    neighbours,
    counts,
    orders,
    tiles,
    coords,
    batch_size,
    spatial_shape,
    tf32,
) -> Tensor:
    channels = biases[-1].shape[0]
    if coords is None:
        return weights[0].new_empty(neighbours[-1].shape[1], channels)
    z, y, x = spatial_shape
    shape = batch_size, channels * z, y, x
    return weights[0].new_empty(shape).to(memory_format=torch.channels_last)
