"""Sparse max pooling on the CUDA kernels, see csrc/conv/max_pool.cu."""

from __future__ import annotations

import torch
from torch import Tensor

from ops.cuda.library import extension
from ops.kernel_map import KernelMap


def sparse_max_pool(features: Tensor, kernel_map: KernelMap) -> Tensor:
    """See ops.sparse_conv.sparse_max_pool."""
    extension()
    forward, backward = kernel_map
    transposed = (None, None) if backward is None else (backward.neighbours, backward.count)
    out, _ = torch.ops.millisecond.max_pool(
        features.contiguous(), forward.neighbours, forward.count, *transposed
    )
    return out
