"""A second CUDA stream: voxels and index of a batch are computed while the previous step runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch

Result = TypeVar("Result")


class SideStream:
    """A CUDA stream for copying, voxelizing and indexing a batch.

    The index reads its sizes back to the host. On the main stream it would wait for the previous
    step, and the device would then be idle until the host has launched the next one. On its own
    stream it runs during the previous step.
    """

    def __init__(self, device: torch.device):
        # of high priority: its kernels are small, and the host waits for them
        self.stream = torch.cuda.Stream(device, priority=-1)
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
        with torch.cuda.stream(self.stream):
            self.stream.wait_event(begun)
            result = work()
        current.wait_stream(self.stream)
        self._begun, self._held = current.record_event(), result
        return result
