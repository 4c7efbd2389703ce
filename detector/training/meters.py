"""Means of losses, rates and times of training, reported every few steps."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor

from data.frame import Batch
from detector.training.distributed import Processes
from detector.training.monitor import Monitor, SilentMonitor
from detector.training.trainer import Trainer

LOG_EVERY = 10  # steps


class _Clock:
    """Seconds between moments at which the device, if it is a GPU, has done what it was given."""

    def __init__(self, device: torch.device):
        self._event = torch.cuda.Event(enable_timing=True) if device.type == "cuda" else None
        if self._event is not None:
            self._event.record()
        self._time = time.perf_counter()

    def passed(self) -> bool:
        return self._event is None or self._event.query()

    def wait(self) -> None:
        if self._event is not None:
            self._event.synchronize()

    def since(self, other: _Clock) -> float:
        """Both must have passed."""
        if self._event is None or other._event is None:
            return self._time - other._time
        return other._event.elapsed_time(self._event) / 1e3


class _Report(NamedTuple):
    """The means of some steps, on their way to the host."""

    step: int
    means: Tensor  # on the host: of the steps' records; the loss scale
    begin: _Clock
    end: _Clock
    frames: int
    waited: float  # seconds, for data


class Meters:
    """Collects the numbers of steps on the device and hands their means to a monitor.

    Nothing waits for the device: a report is written when it has arrived, a step or two later.
    """

    def __init__(
        self,
        trainer: Trainer,
        names: Sequence[str],
        processes: Processes,
        monitor: Monitor | SilentMonitor,
    ):
        """names: of the losses in a step's record."""
        self.trainer, self.names, self.processes, self.monitor = trainer, names, processes, monitor
        self._report: _Report | None = None
        self.restart()

    def restart(self) -> None:
        """Forgets the time since the last numbers: something else than training took it."""
        self._begin, self._waited = _Clock(self.processes.device), 0.0
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
            self.flush()
            self._collect()
        if self._report and self._report.end.passed():
            self.flush()

    def flush(self) -> None:
        """Writes the report that is on its way, if there is one."""
        if self._report is not None:
            self._report.end.wait()  # sync: mostly it has arrived long ago
            self._write(self._report)
            self._report = None

    def _collect(self) -> None:
        scale = self.trainer.state.scaler.scale(torch.ones((), device=self.processes.device))
        means = torch.cat((torch.stack(self._records).mean(0), scale.view(1)))
        self.processes.average([means])
        step, begin = self.trainer.state.step, self._begin
        frames, waited = self._frames, self._waited
        on_host = means.to("cpu", non_blocking=True)
        self.restart()
        self._report = _Report(step, on_host, begin, self._begin, frames, waited)

    def _write(self, report: _Report) -> None:
        state, device = self.trainer.state, self.processes.device
        elapsed = report.end.since(report.begin)
        rate, momentum = self.trainer.schedule(report.step - 1)
        *losses, left_out, norm, scale = report.means.tolist()
        numbers = {f"train/{k}": v for k, v in zip(self.names, losses, strict=True)}
        numbers |= {
            "data/points a frame over max_voxels_train": left_out,
            "optimiser/gradient norm": norm,
            "optimiser/learning rate": rate,
            "optimiser/momentum": momentum,
            "speed/frames a second": report.frames / elapsed,
            "speed/share of waiting for data": report.waited / elapsed,
        }
        if state.scaler.is_enabled():
            numbers["optimiser/loss scale"] = scale
        if device.type == "cuda":
            numbers["speed/memory, GiB"] = torch.cuda.max_memory_reserved(device) / 2**30
        self.monitor.numbers(report.step, numbers)
