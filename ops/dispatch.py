"""How an operator runs: on which kernels, in which precision, and as torch.compile sees it.

An operator runs on the CUDA kernels, on the kernels of a CPU, or as its definition in plain torch.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor

from millisecond.ops.cpu import kernels

F = TypeVar("F", bound=Callable)
FAKES: defaultdict[str, dict[str, Callable]] = defaultdict(dict)  # by library and operator


def on_kernels(tensor: Tensor) -> bool:
    """Whether the kernels compute on this tensor: it is on a GPU and not float64."""
    return tensor.is_cuda and tensor.dtype != torch.float64


def on_cpu_kernels(tensor: Tensor) -> bool:
    """Whether the vectorised kernels of a CPU do: they can be built, and it is not float64.

    torch.compile traces the definition: it cannot see into the kernels.
    """
    if torch.compiler.is_compiling() or not tensor.is_cpu or tensor.dtype == torch.float64:
        return False
    return kernels() is not None


def constant_when_traced(function: F) -> F:
    """torch.compile calls the function while it traces, and never again.

    As torch.compiler.assume_constant_result, which imports the compiler: as long as torch itself
    takes, in every program.
    """
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function


@constant_when_traced
def tf32_allowed() -> bool:
    """Whether float32 may be rounded to tf32, as torch is set for products on a GPU: by
    torch.set_float32_matmul_precision or torch.backends.cuda.matmul.fp32_precision."""
    try:
        return torch.get_float32_matmul_precision() != "highest"
    except RuntimeError:  # what torch answers once the newer of the two was used
        return torch.backends.cuda.matmul.fp32_precision == "tf32"


def fake(operator: str, library: str = "millisecond") -> Callable[[Callable], Callable]:
    """Declares the function below it the fake of an operator: of its arguments, empty results. The
    arguments behind the last one that it reads need no names."""

    def declare(function: Callable) -> Callable:
        FAKES[library][operator] = function
        return function

    return declare


def register_fakes(library: str) -> None:
    """To be called once the library is loaded: torch wants the operators to exist."""
    for operator, function in FAKES[library].items():
        torch.library.register_fake(f"{library}::{operator}", function)
