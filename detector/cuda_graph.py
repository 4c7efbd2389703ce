"""A call recorded as a CUDA graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch

WARM_UP = 3  # calls before the capture, in which cuDNN and cuBLAS choose their kernels
Result = TypeVar("Result")


def captured(call: Callable[[], Result]) -> tuple[torch.cuda.CUDAGraph, Result]:
    """A graph of one call, which must not read back to the host, and what the call returned.

    Each replay leaves its result in the same memory as the one before.
    """
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(WARM_UP):
            call()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    # a stream of this device: torch's default is one of the device that captured first
    own = torch.cuda.Stream()
    # other threads may be using the device meanwhile
    with torch.cuda.graph(graph, stream=own, capture_error_mode="thread_local"):
        result = call()
    return graph, result
