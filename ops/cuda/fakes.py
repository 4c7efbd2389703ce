"""Fakes of the CUDA operators: the shapes and types that they answer with, for torch.compile."""

from __future__ import annotations

from collections.abc import Callable

import torch

FAKES: dict[str, Callable] = {}  # by the operator's name


def fake(operator: str) -> Callable[[Callable], Callable]:
    """Declares the function below it the fake of an operator: the same arguments, empty results."""

    def declare(function: Callable) -> Callable:
        FAKES[operator] = function
        return function

    return declare


def register_fakes() -> None:
    """To be called once the library is loaded: torch wants the operators to exist."""
    for operator, function in FAKES.items():
        torch.library.register_fake(f"millisecond::{operator}", function)
