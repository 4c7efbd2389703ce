"""A training step: its parts, the whole, its memory, and whether the data keeps up."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from itertools import count, islice, pairwise
from typing import Any

import torch
from torch import Tensor

from millisecond.data.augment import GroundTruthDatabase
from millisecond.data.frame import Batch, Frame
from millisecond.detector.config import Config
from millisecond.detector.models.second import Predictions, build_second
from millisecond.detector.training.build import build_trainer, fix_randomness
from millisecond.detector.training.distributed import Processes
from millisecond.detector.training.gpu_trainer import GpuTrainer
from millisecond.detector.training.loader import (
    StepSampler,
    TrainingFrames,
    batches_of,
    training_loader,
    workers_for,
)
from millisecond.detector.training.losses import build_criterion
from millisecond.detector.training.monitor import Waits
from millisecond.detector.training.trainer import Indexed, Trainer
from millisecond.ops.lab.timing import Times, by_turns, kernel_time

WARM_UP = 5  # steps


def measure(
    config: Config,
    frames: Sequence[Frame],
    database: GroundTruthDatabase | None,
    precisions: Sequence[str],
    repeats: int,
    device: torch.device,
) -> dict:
    """All tables for frames that repeat as often as it takes; prints them as they come."""
    steps = repeats + WARM_UP
    frames = Repeated(frames, steps * config.train.batch_size)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
    result: dict = {"device": name, "batch": config.train.batch_size, "steps": []}
    print(f"{name}, torch {torch.__version__}, batch {config.train.batch_size}")
    for precision in precisions:
        train = replace(config.train, precision=precision, epochs=1)
        run = _Run(replace(config, train=train), frames, database, device)
        row = {"precision": precision, **run.parts(repeats), **run.whole(repeats)}
        result["steps"].append(row)
        for part, value in row.items():
            if part != "precision":
                print(f"{precision:>5}  {part:<32} {value:9.3f}", flush=True)
    return result


class Repeated(Sequence[Frame]):
    """Frames over and over, kept in memory."""

    def __init__(self, frames: Sequence[Frame], length: int):
        self.frames, self.length = [frames[i] for i in range(len(frames))], length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Frame:
        return self.frames[index % len(self.frames)]


class _Run:
    """A trainer of one precision and its data."""

    def __init__(
        self,
        config: Config,
        frames: Sequence[Frame],
        database: GroundTruthDatabase | None,
        device: torch.device,
    ):
        fix_randomness(config.train.seed, config.train.deterministic)
        self.config, self.device = config, device
        self.processes = Processes(0, 1, device)
        train = config.train
        self.workers = workers_for(train.workers, self.processes)
        self.sampler = StepSampler(len(frames), train.batch_size, 1, train.seed, self.processes)
        self.frames = TrainingFrames(config, frames, database)
        model, criterion = build_second(config), build_criterion(config)
        total = self.sampler.total_steps
        self.trainer: Trainer = build_trainer(model, criterion, train, total, self.processes)

    def batches(self) -> AbstractContextManager[Iterator[Batch]]:
        """Augmented batches as training gets them."""
        names, workers = self.config.class_names, self.workers
        return batches_of(training_loader(self.frames, self.sampler, names, workers, self.device))

    def first_batch(self) -> Batch:
        with self.batches() as batches:
            return next(batches)

    def parts(self, repeats: int) -> dict[str, float]:
        """Median milliseconds of each part: on a GPU of forward and backward what the device spends
        on its kernels, of the others, as on a CPU, a call with an idle device before and after."""
        batch = self.first_batch()
        trainer, model = self.trainer, self.trainer.state.model
        update = {"clip and update, ms": lambda: trainer.update(*trainer.schedule(0))}
        if not isinstance(trainer, GpuTrainer):
            return _medians(self._in_turn(batch) | update, repeats)
        first = {
            "batch to the device, ms": lambda: batch.to(self.device, non_blocking=True),
            "voxels and index, ms": lambda: trainer.index(model, batch),
        }
        figures = _medians(first, repeats)
        figures |= self._kernels(trainer, trainer.index(model, batch), repeats)
        return figures | _medians(update, repeats)

    def _in_turn(self, batch: Batch) -> dict[str, Callable[[], object]]:
        """The parts of a step in their order; each works on what the last left."""
        trainer, model = self.trainer, self.trainer.state.model
        held: dict[str, Any] = {}

        def index() -> None:
            held["batch"] = trainer.index(model, batch)

        def encode() -> None:
            with trainer.autocast():
                held["bev"] = model.encode(held["batch"].voxels, held["batch"].pyramid)

        def predict() -> None:
            with trainer.autocast():
                held["predictions"] = model.predict(held["bev"])

        def losses() -> None:
            held["total"] = trainer.criterion(held["predictions"], *batch[2:4]).total

        return {
            "voxels and index, ms": index,
            "encoder forward, ms": encode,
            "backbone and heads forward, ms": predict,
            "targets and losses, ms": losses,
            "backward, ms": lambda: trainer.state.scaler.scale(held["total"]).backward(),
        }

    def _kernels(self, trainer: GpuTrainer, batch: Indexed, repeats: int) -> dict[str, float]:
        """Milliseconds of the kernels, each part from the graphs with and without it."""
        model = trainer.state.model

        def encode() -> Tensor:
            with trainer.autocast():
                return model.encode(batch.voxels, batch.pyramid)

        def predict() -> Predictions:
            with trainer.autocast():
                return model.predict(encode())

        calls: dict[str, Callable[[], object]] = {
            "encoder forward, ms": encode,
            "backbone and heads forward, ms": predict,
            "losses and backward, ms": lambda: trainer.differentiate(batch),
        }
        until = [kernel_time(call, launches=2, repeats=repeats) for call in calls.values()]
        return {
            name: end - begin
            for name, (begin, end) in zip(calls, pairwise([0, *until]), strict=True)
        }

    def whole(self, repeats: int) -> dict[str, float]:
        """The mean step with a batch in memory, and with the loader at work."""
        cuda = self.device.type == "cuda"
        batch = self.first_batch()
        if cuda:
            torch.cuda.empty_cache()  # what the parts have left
            torch.cuda.reset_peak_memory_stats(self.device)
        alone, own, _ = self._mean_step(batch for _ in range(WARM_UP + repeats))
        peak = torch.cuda.max_memory_reserved(self.device) / 2**30 if cuda else 0.0
        with self.batches() as batches:
            loaded, _, waited = self._mean_step(islice(batches, WARM_UP + repeats))
        return {
            "whole step, ms": alone,
            **({"of it the host's own work, ms": own} if cuda else {}),
            "whole step with the loader, ms": loaded,
            "idle for want of data, %": 100 * waited / loaded,
            "peak memory, GiB": peak,
        }

    def _mean_step(self, batches: Iterator[Batch]) -> tuple[float, float, float]:
        """Milliseconds per step, many on the way at once as in training; how many of them the
        calling thread was at work in a step, not waiting; how many the device waited for data."""
        own, waits = 0.0, Waits(self.device)
        record: Tensor | None = None
        for number in count():
            if number == WARM_UP:
                _wait(record)
                begin, waits = time.perf_counter(), Waits(self.device)
            with waits.waiting():
                batch = next(batches, None)
            if batch is None:
                break
            worked = time.thread_time()
            record = self.trainer.step([batch])
            own += time.thread_time() - worked if number >= WARM_UP else 0.0
        _wait(record)
        each = 1e3 / (number - WARM_UP)
        return each * (time.perf_counter() - begin), each * own, each * waits.seconds()


def _medians(parts: dict[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """Median milliseconds of each part, all of them called in turn."""
    samples = by_turns(parts, repeats, WARM_UP)
    return {name: Times.of(values).median for name, values in samples.items()}


def _wait(record: Tensor) -> None:
    record.tolist()  # sync: the end of the measured time
