"""What a training shows while it runs: means of losses, rates and times every few steps; a progress
bar, TensorBoard, and the same numbers as lines of JSON; pictures of a validation.
"""

from __future__ import annotations

import json
import math
import re
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.tensorboard import SummaryWriter
from tqdm import tqdm

from millisecond.data.files import write_lines
from millisecond.data.frame import Batch
from millisecond.data.metric.kitti import WIDTH
from millisecond.detector.training.outcome import RECALL, read_records
from millisecond.detector.training.trainer import Trainer
from millisecond.detector.training.validation import Scores, Unscored

LEVELS = ("easy", "moderate", "hard")


# TensorBoard opens on the group of curves whose name comes first.
FIRST = "1 overview/"
OVERVIEW = re.compile(r"(train|validation)/total|AP .+/3d/moderate")


class Monitor:
    """Numbers and pictures by step in a folder: `log.jsonl` and `tensorboard/`.

    Numbers from after `first_step`, of a run that was killed there, are dropped. So are numbers of
    a validation after step `validated`, which will be repeated. When the folder cannot be written
    any more, a full disk for one, that is said once and training goes on without.
    """

    def __init__(
        self, folder: Path, first_step: int, validated: int, total_steps: int, epochs: int
    ):
        log = Path(folder) / "log.jsonl"
        self._epochs, self._epoch = epochs, total_steps / epochs  # an epoch in steps
        self._begin = time.monotonic() - _keep_until(log, first_step, validated)
        self._writing = True
        self._log = open(log, "a", encoding="utf-8")  # noqa: SIM115 - open as long as the run
        self._hook, threading.excepthook = threading.excepthook, self._thread_failed
        repeated = first_step + (validated == first_step)  # a validation of that step, too
        self._board = SummaryWriter(str(folder / "tensorboard"), purge_step=repeated)
        self._bar = tqdm(
            desc="training",
            initial=first_step,
            total=total_steps,
            unit="step",
            dynamic_ncols=True,
            mininterval=0.5,
            disable=None,
        )

    def advance(self) -> None:
        """One step is done."""
        with suppress(OSError):  # the terminal was closed
            self._bar.update()

    def numbers(self, step: int, values: Mapping[str, float]) -> None:
        """Numbers after a step; of `train/loss`, train is the group it is shown in."""
        line: dict[str, float | None] = {"step": step, "epoch": round(step / self._epoch, 4)}
        line["seconds"] = round(self._seconds(), 3)
        line |= {name: value if math.isfinite(value) else None for name, value in values.items()}
        self._write(self._append, step, json.dumps(line), values)
        if "train/total" in values:
            epoch = min(int(step / self._epoch) + 1, self._epochs)
            told = f"epoch {epoch}/{self._epochs}, loss {values['train/total']:.3f}"
            self._bar.set_postfix_str(told, refresh=False)

    def scores(self, step: int, unscored: Unscored, scores: Scores, best: float) -> None:
        """Losses, every AP and the pictures of a validation after a step; a line of them with the
        best mean AP so far."""
        values = {f"validation/{name}": value for name, value in unscored.losses.items()}
        values["data/points a frame over max_voxels_test"] = unscored.capped
        values |= {f"{RECALL}{name}": share for name, share in unscored.recall.items()}
        for name, metrics in scores.result.items():
            for metric, figures in metrics.items():
                for level, value in zip(LEVELS, figures["R40"], strict=True):
                    values[f"AP {name}/{metric}/{level}"] = value
        self.numbers(step, values)
        found = ", ".join(
            f"{name} {metrics['3d']['R40'][1]:.1f}" for name, metrics in scores.result.items()
        )
        found = f"AP {found}; best mean {best:.1f}" if found else "no class with an AP"
        when = f"epoch {round(step / self._epoch)} of {self._epochs}"
        when += f", {timedelta(seconds=round(self._seconds()))}"
        line = f"{when}: validation loss {unscored.losses['total']:.3f}, {found}"
        say(textwrap.fill(line, WIDTH, subsequent_indent="    "))
        for picture in scores.pictures:
            self._write(self._board._get_file_writer().add_summary, picture, step)

    def _seconds(self) -> float:
        """Of the training, without the time between a stop and its --resume."""
        return time.monotonic() - self._begin

    def close(self) -> None:
        """Ends the bar and the files."""
        with suppress(OSError):
            self._bar.close()
        self._write(self._board.close)
        self._write(self._log.close)
        threading.excepthook = self._hook

    def _append(self, step: int, line: str, values: Mapping[str, float]) -> None:
        self._log.write(line + "\n")
        self._log.flush()
        for name, value in values.items():
            group = FIRST if OVERVIEW.fullmatch(name) else ""
            self._board.add_scalar(group + name, value, step)

    def _thread_failed(self, error: threading.ExceptHookArgs) -> None:
        """TensorBoard's thread tells of a full disk where it is next written to."""
        of_tensorboard = "AsyncWriter" in type(error.thread).__name__
        if not (of_tensorboard and isinstance(error.exc_value, OSError)):
            self._hook(error)

    def _write(self, action: Callable, *args: Any, **options: Any) -> None:
        if not self._writing:
            return
        try:
            action(*args, **options)
        except OSError as error:
            self._writing = False
            say(f"warning: numbers and pictures are not written any more: {error}")


def say(line: str) -> None:
    """A line for the user, above the progress bar where there is one."""
    with suppress(OSError):  # the terminal was closed
        tqdm.write(line, file=sys.stderr)


def _keep_until(log: Path, step: int, validated: int) -> float:
    """Drops the lines of later steps and validations, and one that a kill left half written.
    Returns the seconds that the training took until there."""
    log.parent.mkdir(parents=True, exist_ok=True)
    kept = [
        record
        for record in read_records(log)
        if record["step"] <= (validated if "validation/total" in record else step)
    ]
    if log.exists():
        write_lines(log, map(json.dumps, kept))
    return float(kept[-1].get("seconds", 0)) if kept else 0.0


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


class Waits:
    """Seconds in which a device had nothing to do, because data came late.

    On a GPU a wait begins when the last step ends there, however long before the host has begun to
    ask for data. Data that come while a step is still at work have cost nothing.
    """

    def __init__(self, device: torch.device):
        self._device = device
        self._ends: list[tuple[_Clock, _Clock]] = []

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """The block waits for data."""
        begin = _Clock(self._device)
        yield
        self._ends.append((begin, _Clock(self._device)))

    def seconds(self) -> float:
        """Of all blocks; the device must have done what it was given before the last one's end."""
        return sum(end.since(begin) for begin, end in self._ends)


class _Report(NamedTuple):
    """The means of some steps, on their way to the host."""

    step: int
    means: Tensor  # on the host: of the steps' records; the loss scale
    begin: _Clock
    end: _Clock
    frames: int
    waits: Waits


class Meters:
    """Collects the numbers of steps on the device and hands their means to a monitor.

    Nothing waits for the device: a report is written when it has arrived, a step or two later.
    """

    def __init__(self, trainer: Trainer, names: Sequence[str], monitor: Monitor | None):
        """names: of the losses in a step's record. monitor: None in a process that does not
        write."""
        self.trainer, self.names, self.monitor = trainer, names, monitor
        self.processes = trainer.processes
        self._report: _Report | None = None
        self.restart()

    def restart(self) -> None:
        """Forgets the time since the last numbers: something else than training took it."""
        self._begin, self._waits = _Clock(self.processes.device), Waits(self.processes.device)
        self._records: list[Tensor] = []
        self._frames = 0

    def waiting(self) -> AbstractContextManager[None]:
        """The block waits for data."""
        return self._waits.waiting()

    def note(self, record: Tensor, batches: Sequence[Batch]) -> None:
        """A step is done. record: see `Trainer.step`."""
        if self.monitor:
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
        frames, waits = self._frames, self._waits
        on_host = means.to("cpu", non_blocking=True)
        self.restart()
        self._report = _Report(step, on_host, begin, self._begin, frames, waits)

    def _write(self, report: _Report) -> None:
        if self.monitor is None:
            return
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
            "speed/share of waiting for data": report.waits.seconds() / elapsed,
        }
        if state.scaler.is_enabled():
            numbers["optimiser/loss scale"] = scale
        if device.type == "cuda":
            numbers["speed/memory, GiB"] = torch.cuda.max_memory_reserved(device) / 2**30
        self.monitor.numbers(report.step, numbers)
