"""Batch normalisation with ReLU of maps, joined along their channels, for training."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ops.cuda import norm_relu as cuda
from ops.dispatch import on_kernels
from ops.reference import norm_relu as reference


def norm_relu(
    maps: Sequence[Tensor],  # [B, C_i, H, W] each
    norms: Sequence[torch.nn.BatchNorm2d],  # in training mode
) -> Tensor:  # [B, sum of C_i, H, W]
    """relu(norm(map)) of every map by its own statistics, side by side. Differentiable.

    The running statistics of `norms` move on as in their own forward, but batches are not counted.
    On CUDA the result is channels last, and each map is written to its place in it.
    """
    if len(maps) != len(norms):
        raise ValueError(f"maps: {len(maps)}, norms: {len(norms)}; every map needs one")
    backend = cuda if on_kernels(maps[0]) else reference
    return backend.norm_relu(maps, norms)
