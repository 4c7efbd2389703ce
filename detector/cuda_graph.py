"""A call recorded as a CUDA graph."""

from __future__ import annotations

from collections.abc import Callable
from threading import RLock
from typing import TypeVar

import torch

from ops.cuda.streams import own_stream

WARM_UP = 3  # calls before the capture, in which cuDNN and cuBLAS choose their kernels
CAPTURING = RLock()  # one graph at a time is captured, on streams that nothing else uses
MAIN, SIDE = 0, 1  # numbers of these streams
FIRST = -1  # priority of the main stream's kernels before those beside them
Result = TypeVar("Result")


def captured(call: Callable[[], Result]) -> tuple[torch.cuda.CUDAGraph, Result]:
    """A graph of one call, which must not read back to the host, and what the call returned.

    Each replay leaves its result in the same memory as the one before. Other threads may use the
    device meanwhile.
    """
    with CAPTURING:
        stream = own_stream(torch.cuda.current_device(), MAIN, FIRST)
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(WARM_UP):
                call()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
            result = call()
    return graph, result


def side_stream() -> torch.cuda.Stream:
    """For work beside that of a call which is captured, on the current device."""
    return own_stream(torch.cuda.current_device(), SIDE)
