"""What a step must know of its batch before it can start, worked out beside the step before."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch

Result = TypeVar("Result")


class SideStream:
    """A CUDA stream for copying, voxelizing and indexing a batch.

    The index reads its sizes back to the host. Behind a whole step in the queue of the device that
    would leave the device without work until the host has launched the next step; on a stream of
    its own it is done while the step before still runs.
    """

    def __init__(self, device: torch.device):
        # of high priority: its kernels are small, and the host waits for them
        self._stream = torch.cuda.Stream(device, priority=-1)
        self._begun: torch.cuda.Event | None = None
        self._held: object = None

    def run(self, work: Callable[[], Result]) -> Result:
        """Calls `work` on the stream; the current stream then waits for it.

        The memory of a result may be used again two calls later: it is held until the next call has
        allocated its own, and the call after that waits until the current stream is past it. So the
        host is never more than two steps ahead of the device.
        """
        current = torch.cuda.current_stream()
        begun = self._begun or current.record_event()
        with torch.cuda.stream(self._stream):
            self._stream.wait_event(begun)
            result = work()
        current.wait_stream(self._stream)
        self._begun, self._held = current.record_event(), result
        return result
