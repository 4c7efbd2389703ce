"""CUDA streams that nothing else in the process works on."""

from __future__ import annotations

import functools

import torch

from ops.cuda.library import extension


@functools.cache
def own_stream(device: int, number: int, priority: int = 0) -> torch.cuda.Stream:
    """The stream of this number on a device, the same in every call.

    torch hands out the same 32 streams per device again and again, so a stream on which one thread
    captures a graph may be another thread's. priority: less goes first.
    """
    extension()
    handle = torch.ops.millisecond.own_stream(device, priority)
    return torch.cuda.ExternalStream(handle, torch.device("cuda", device))
