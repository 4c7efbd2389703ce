"""How an operator runs: on which kernels and in which precision.

An operator runs on the CUDA kernels, on the kernels of a CPU, or as its definition in plain torch.
"""

from __future__ import annotations

import torch
from torch import Tensor

from millisecond.ops.cpu import kernels
from millisecond.ops.library import constant_when_traced, extension


def on_kernels(tensor: Tensor) -> bool:
    """Whether the kernels compute on this tensor: it is on a GPU and not float64. Then they are
    loaded; BuildError where they cannot be."""
    if not tensor.is_cuda or tensor.dtype == torch.float64:
        return False
    extension()
    return True


def on_cpu_kernels(tensor: Tensor) -> bool:
    """Whether the vectorised kernels of a CPU do: they can be built, and it is not float64.

    torch.compile traces the definition: it cannot see into the kernels.
    """
    if torch.compiler.is_compiling() or not tensor.is_cpu or tensor.dtype == torch.float64:
        return False
    return kernels() is not None


@constant_when_traced
def tf32_allowed() -> bool:
    """Whether float32 may be rounded to tf32, as torch is set for products on a GPU: by
    torch.set_float32_matmul_precision or torch.backends.cuda.matmul.fp32_precision."""
    try:
        return torch.get_float32_matmul_precision() != "highest"
    except RuntimeError:  # what torch answers once the newer of the two was used
        return torch.backends.cuda.matmul.fp32_precision == "tf32"
