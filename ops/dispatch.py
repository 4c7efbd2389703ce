"""Which implementation runs: the CUDA kernels or the reference."""

import torch
from torch import Tensor


def on_kernels(tensor: Tensor) -> bool:
    """Whether the kernels compute on this tensor: it is on a GPU and not float64."""
    return tensor.is_cuda and tensor.dtype != torch.float64
