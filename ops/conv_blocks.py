"""Training blocks one after another: convolution, batch normalisation, ReLU."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ops.cuda import conv_blocks as cuda
from ops.dispatch import on_kernels
from ops.reference import conv_blocks as reference
from ops.rulebook import KernelMap


def conv_blocks(
    features: Tensor,  # [N_in, C_in]
    weights: Sequence[Tensor],  # [V, C_in, C_out] each
    kernel_maps: Sequence[KernelMap],  # all with counts or all without
    norms: Sequence[torch.nn.BatchNorm1d],  # in training mode
) -> Tensor:  # [N_out, C_out] of the last
    """features = relu(norm(conv(features))) for every weight in turn. Differentiable.

    Rows are normalised by their own mean and variance, so every map needs two output rows or more.
    The running statistics of `norms`, which share momentum and eps, move on as they do in their own
    forward. Rows that a map does not count hold anything. Under autocast features and weights are
    cast to its dtype.
    """
    if not len(weights) == len(kernel_maps) == len(norms):
        raise ValueError(
            f"weights: {len(weights)}, kernel_maps: {len(kernel_maps)}, norms: {len(norms)}; "
            "every block needs one of each"
        )
    if not weights:
        raise ValueError("weights: none; conv_blocks takes one block or more")
    backend = cuda if on_kernels(features) else reference
    return backend.conv_blocks(features, weights, kernel_maps, norms)
