"""Chained convolutions with bias and ReLU on the vectorised kernel."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ops.cpu.convolution import PackedWeight, convolve, pack_weight
from ops.reference.dense import bev_map
from ops.rulebook import KernelMap, Level


class PackedWeights(list[PackedWeight]):
    """Weights in the order in which the kernel reads them, and the type that features have."""

    dtype: torch.dtype


def pack_weights(weights: Sequence[Tensor]) -> PackedWeights:
    """weights: [V, C_in, C_out] each."""
    packed = PackedWeights(map(pack_weight, weights))
    packed.dtype = weights[0].dtype
    return packed


def conv_chain(
    features: Tensor,
    weights: PackedWeights,
    biases: Sequence[Tensor],
    kernel_maps: Sequence[KernelMap],
) -> Tensor:
    """See ops.conv_chain.ConvChain.forward."""
    features = features.to(weights.dtype)
    for weight, bias, kernel_map in zip(weights, biases, kernel_maps, strict=True):
        features = convolve(features, weight, kernel_map.forward, bias, True, weights.dtype)
    return features


def conv_chain_bev_map(
    features: Tensor,
    weights: PackedWeights,
    biases: Sequence[Tensor],
    kernel_maps: Sequence[KernelMap],
    level: Level,
    batch_size: int,
) -> Tensor:
    """See ops.conv_chain.ConvChain.bev_map."""
    rows = conv_chain(features, weights, biases, kernel_maps)
    return bev_map(rows, level.coords, level.spatial_shape, batch_size, level.count)
