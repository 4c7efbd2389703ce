"""What torch.compile does with functions that it shall not look into."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

F = TypeVar("F", bound=Callable)


def constant_when_traced(function: F) -> F:
    """torch.compile calls the function while it traces, and never again.

    As torch.compiler.assume_constant_result, which imports the compiler: as long as torch itself
    takes, in every program.
    """
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function
