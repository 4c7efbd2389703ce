"""CUDA graphs of a test's calls."""

from collections.abc import Callable
from typing import TypeVar

import torch

T = TypeVar("T")


def captured_without_sync(build: Callable[[], T]) -> tuple[torch.cuda.CUDAGraph, T]:
    """A graph of the call and its result; raises where the call waits for the device."""
    build()
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            result = build()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    return graph, result
