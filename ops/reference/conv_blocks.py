"""Training blocks of convolution, batch normalisation and ReLU, one after another."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ops.rulebook import KernelMap
from ops.sparse_conv import sparse_conv


def conv_blocks(
    features: Tensor,
    weights: Sequence[Tensor],
    kernel_maps: Sequence[KernelMap],
    norms: Sequence[torch.nn.BatchNorm1d],
) -> Tensor:
    """See ops.conv_blocks.conv_blocks."""
    for weight, kernel_map, norm in zip(weights, kernel_maps, norms, strict=True):
        features = torch.relu(norm(sparse_conv(features, weight, kernel_map)))
    return features
