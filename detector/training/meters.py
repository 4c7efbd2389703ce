"""Means of losses, rates and times of training, reported every few steps."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from data.frame import Batch
from detector.training.distributed import Processes
from detector.training.monitor import Monitor, SilentMonitor
from detector.training.trainer import Trainer

LOG_EVERY = 10  # steps; each look at the numbers waits for the device


class Meters:
    """Collects the numbers of steps on the device and hands their means to a monitor."""

    def __init__(
        self,
        trainer: Trainer,
        names: Sequence[str],
        processes: Processes,
        monitor: Monitor | SilentMonitor,
    ):
        """names: of the losses in a step's record."""
        self.trainer, self.names, self.processes, self.monitor = trainer, names, processes, monitor
        self.restart()

    def restart(self) -> None:
        """Forgets the time since the last numbers: something else than training took it."""
        self._begin, self._waited = time.perf_counter(), 0.0
        self._records: list[Tensor] = []
        self._frames = 0

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """The block waits for data."""
        begin = time.perf_counter()
        yield
        self._waited += time.perf_counter() - begin

    def note(self, record: Tensor, batches: Sequence[Batch]) -> None:
        """A step is done. record: see `Trainer.step`."""
        self.monitor.advance()
        self._records.append(record)
        self._frames += self.processes.count * sum(len(batch.frame_ids) for batch in batches)
        step = self.trainer.state.step
        if step == 1 or step % LOG_EVERY == 0:
            self._tell()
            self.restart()

    def _tell(self) -> None:
        mean = torch.stack(self._records).mean(0)
        self.processes.average([mean])
        values = mean.tolist()  # sync: all numbers of LOG_EVERY steps in one copy
        elapsed = time.perf_counter() - self._begin
        state, device = self.trainer.state, self.processes.device
        rate, momentum = self.trainer.schedule(state.step - 1)
        *losses, left_out, norm = values
        numbers = {f"train/{k}": v for k, v in zip(self.names, losses, strict=True)}
        numbers |= {
            "data/points a frame over max_voxels_train": left_out,
            "optimiser/gradient norm": norm,
            "optimiser/learning rate": rate,
            "optimiser/momentum": momentum,
            "speed/frames a second": self._frames / elapsed,
            "speed/share of waiting for data": self._waited / elapsed,
        }
        if state.scaler.is_enabled():
            numbers["optimiser/loss scale"] = state.scaler.get_scale()
        if device.type == "cuda":
            numbers["speed/memory, GiB"] = torch.cuda.max_memory_reserved(device) / 2**30
        self.monitor.numbers(state.step, numbers)
