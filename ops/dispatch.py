"""Which implementation runs: the CUDA kernels, those of a CPU, or the reference."""

import torch
from torch import Tensor

from ops.cpu.library import kernels


def on_kernels(tensor: Tensor) -> bool:
    """Whether the kernels compute on this tensor: it is on a GPU and not float64."""
    return tensor.is_cuda and tensor.dtype != torch.float64


def on_cpu_kernels(tensor: Tensor) -> bool:
    """Whether the vectorised kernels of a CPU do: they can be built, and it is not float64.

    torch.compile traces the reference: it cannot see into the kernels.
    """
    if torch.compiler.is_compiling() or not tensor.is_cpu or tensor.dtype == torch.float64:
        return False
    return kernels() is not None
