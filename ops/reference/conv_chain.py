"""Chained convolutions with bias and ReLU, one after another."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from ops.reference.dense import bev_map
from ops.rulebook import KernelMap, Level
from ops.sparse_conv import sparse_conv


def pack_weights(weights: Sequence[Tensor]) -> Sequence[Tensor]:
    """weights: [V, C_in, C_out] each; they are read as they are."""
    return weights


def conv_chain(
    features: Tensor,
    weights: Sequence[Tensor],
    biases: Sequence[Tensor],
    kernel_maps: Sequence[KernelMap],
) -> Tensor:
    """See ops.conv_chain.ConvChain.forward."""
    features = features.to(weights[0].dtype)
    for weight, bias, kernel_map in zip(weights, biases, kernel_maps, strict=True):
        features = sparse_conv(features, weight, kernel_map, bias.to(weight.dtype), relu=True)
    return features


def conv_chain_bev_map(
    features: Tensor,
    weights: Sequence[Tensor],
    biases: Sequence[Tensor],
    kernel_maps: Sequence[KernelMap],
    level: Level,
    batch_size: int,
) -> Tensor:
    """See ops.conv_chain.ConvChain.bev_map."""
    rows = conv_chain(features, weights, biases, kernel_maps)
    return bev_map(rows, level.coords, level.spatial_shape, batch_size, level.count)
