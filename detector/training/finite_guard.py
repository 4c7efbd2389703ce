"""Detects a loss that is infinite or NaN, and names the frames of that step."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from pathlib import Path

import safetensors.torch
import torch
from torch import Tensor

from millisecond.data.files import replacing
from millisecond.data.frame import Batch
from millisecond.detector.training.distributed import Processes


class NotFinite(RuntimeError):
    """The loss or the gradient of a step is infinite or not a number. The process that found it
    has its batches; in the others there are none."""

    def __init__(self, step: int, frame_ids: Sequence[str], batches: Sequence[Batch] = ()):
        self.step, self.frame_ids, self.batches = step, tuple(frame_ids), batches
        super().__init__(
            f"step {step}: the loss is not finite; its frames are {', '.join(frame_ids)}"
        )

    def save(self, path: Path) -> None:
        """Writes the step's batches: safetensors `0.points` ..., frame ids in its metadata."""
        tensors = {
            f"{i}.{name}": getattr(batch, name).contiguous()
            for i, batch in enumerate(self.batches)
            for name in ("points", "offsets", "boxes", "labels")
        }
        metadata = {"step": str(self.step), "frame_ids": " ".join(self.frame_ids)}
        with replacing(path) as temporary:
            temporary.write_bytes(safetensors.torch.save(tensors, metadata))


class FiniteGuard:
    """Looks at every step's loss, but only when it has arrived on the host anyway.

    The step goes on meanwhile: a broken one is noticed a few steps late, and `check(wait=True)`
    before a checkpoint keeps what it broke from being saved.
    """

    def __init__(self):
        self._watched: deque[tuple[int, Tensor, torch.cuda.Event | None, Sequence[Batch]]] = deque()

    def watch(self, step: int, value: Tensor, batches: Sequence[Batch]) -> None:
        """value: 0-dimensional, on the device; batches: where they came from, on the host."""
        host = value.detach().to("cpu", non_blocking=True)
        arrived = None
        if value.is_cuda:
            arrived = torch.cuda.Event()
            arrived.record()
        self._watched.append((step, host, arrived, batches))

    def check(self, wait: bool = False) -> NotFinite | None:
        """The first bad step of those that have arrived, or of all with `wait`."""
        while self._watched:
            step, value, arrived, batches = self._watched[0]
            if arrived is not None:
                if wait:
                    arrived.synchronize()  # sync: a checkpoint must not hold what a bad step left
                elif not arrived.query():
                    return None
            if not torch.isfinite(value):
                return NotFinite(step, [name for b in batches for name in b.frame_ids], batches)
            self._watched.popleft()
        return None

    def require_finite(self, processes: Processes) -> None:
        """Waits for all steps. Raises NotFinite in every process if one has found a bad step: the
        first to leave would take the others along before they had saved their batches."""
        error = self.check(wait=True)
        steps = processes.gather(error and (error.step, error.frame_ids))
        if any(steps):
            raise error or NotFinite(*next(filter(None, steps)))
