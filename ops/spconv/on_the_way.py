"""A number that the device tells the host while it goes on with other work."""

from __future__ import annotations

import torch
from torch import Tensor


class OnTheWay:
    """One element of a CUDA tensor, asked for when this is made."""

    def __init__(self, value: Tensor):
        self._value = value.new_empty(value.shape, device="cpu", pin_memory=True)
        self._value.copy_(value, non_blocking=True)
        self._arrived = torch.cuda.Event()
        self._arrived.record(torch.cuda.current_stream(value.device))

    def number(self) -> int:
        """Waits for it, not for what was started after it."""
        self._arrived.synchronize()
        return int(self._value)
