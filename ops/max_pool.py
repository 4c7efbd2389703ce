"""Sparse max pooling along a kernel map."""

from __future__ import annotations

from torch import Tensor

from ops.cuda import max_pool as cuda
from ops.dispatch import on_kernels
from ops.reference import max_pool as reference
from ops.rulebook import KernelMap
from ops.sparse_conv import check_features


def sparse_max_pool(
    features: Tensor,  # [N_in, C]
    kernel_map: KernelMap,
) -> Tensor:  # [N_out, C]
    """Largest of the existing inputs of each window, by channel.

    A row without any input is zero. The gradient goes to the first of equal inputs.
    """
    check_features(features, kernel_map)
    backend = cuda if on_kernels(features) else reference
    return backend.sparse_max_pool(features, kernel_map)
