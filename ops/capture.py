"""CUDA graph capture: a call recorded as a graph."""

from __future__ import annotations

from collections.abc import Callable
from threading import RLock
from typing import Any, TypeVar

import torch

from millisecond.ops.transfer import own_stream

WARM_UP = 3  # calls before the capture, in which cuDNN and cuBLAS choose their kernels
CAPTURING = RLock()  # one graph at a time is captured, on streams that nothing else uses
MAIN, SIDE = 0, 1  # numbers of these streams
FIRST = -1  # priority of the main stream's kernels before those beside them
Result = TypeVar("Result")


def captured(
    call: Callable[[], Result],
    stream: torch.cuda.Stream | None = None,
    warm_up: int = WARM_UP,
    pool: Any = None,
) -> tuple[torch.cuda.CUDAGraph, Result]:
    """A graph of one call, which must not read back to the host, and what the call returned.

    Each replay leaves its result in the same memory as the one before. Other threads may use the
    device meanwhile. stream: of the capture, one that nothing else uses; warm_up: calls before it;
    pool: memory that graphs share which never run at the same time.
    """
    with CAPTURING:
        if stream is None:
            stream = own_stream(torch.cuda.current_device(), MAIN, FIRST)
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(warm_up):
                call()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool, stream, capture_error_mode="thread_local"):
            result = call()
    return graph, result


def side_stream() -> torch.cuda.Stream:
    """The current device's stream for work that runs beside a captured call."""
    return own_stream(torch.cuda.current_device(), SIDE)
