"""Training batches: which frames a step reads, and the workers that read and augment them. A fork
for what is made beside the training.

The next batch goes to the worker that is free, and the batches still keep their order. torch's
loader deals its batches out by turns, so the slowest worker sets the pace of all of them: one that
shares its core, or one with a slow frame. The workers ignore signals to stop, and end with the
training.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import platform
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from multiprocessing.connection import Connection
from typing import Any, Generic, Literal, TypeVar

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, Sampler

from millisecond.data.augment import Augmentation, GroundTruthDatabase, drop_outside, shuffle_points
from millisecond.data.checks.leveling import leveled
from millisecond.data.files import usable_cores
from millisecond.data.frame import Batch, Frame, Frames, collate
from millisecond.data.simulator.recording import SimulatedStreets
from millisecond.detector.config import Config
from millisecond.detector.training.distributed import Processes

Made = TypeVar("Made")
MOST_BESIDE_A_GPU = 24  # that `auto` starts: 21 were enough for simulated streets beside an H200


def workers_for(wanted: int | Literal["auto"], processes: Processes) -> int:
    """How many workers this process has, as `train.workers` says; every process must call.

    `auto`: none where the network trains on the CPU, whose cores it needs itself. Beside a GPU as
    many as three quarters of the cores that this process may use: its own threads, which launch
    the steps and pin the batches, need some too. Processes of the same host with the same cores
    share them.
    """
    if wanted != "auto":
        return wanted
    if processes.device.type == "cpu":
        return 0
    own = platform.node(), os.sched_getaffinity(0)
    together = processes.gather(own).count(own)
    return min(max(3 * usable_cores() // (4 * together), 1), MOST_BESIDE_A_GPU)


def prepare_worker(_) -> None:
    """For a worker to begin with: leaves signals to stop to the process that started it, and what
    it was born with out of garbage collections."""
    # A signal to the whole group is the training's to answer: it still needs the workers for its
    # last step.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    # With torch these are 300,000 objects: to look through them took 5 % of a simulated street,
    # and a look copies the memory that the processes share.
    gc.freeze()


@contextmanager
def batches_of(loader: DataLoader) -> Iterator[Iterator[Any]]:
    """The batches of a loader, whose workers end with the block.

    The loader would end them when the iterator is dropped. But the traceback of an error, also of
    one after the block, holds it until Python exits. Python would then send SIGTERM to the workers,
    which ignore it, and wait for them forever.

    Workers are first asked to end, and killed only if they do not. A worker that is killed while it
    asks whether to end keeps the lock of that question, and torch would wait for the lock forever.
    """
    others = set(multiprocessing.active_children())
    batches: Any = iter(loader)
    workers = [child for child in multiprocessing.active_children() if child not in others]
    try:
        yield batches
    finally:
        if workers:
            batches._shutdown_workers()  # what dropping it does; torch has no public name for it
        for worker in workers:
            worker.kill()
            worker.join()


class Forked(Generic[Made]):
    """What `make` makes, by a fork of this process, which goes on meanwhile.

    A fork begins with all that this process has, so nothing is sent to it. It may use no GPU and no
    memory that is pinned for one. Where no fork can be made, or it fails, or is killed, this
    process makes the same when it is asked for; so errors are raised here. The fork ends with this
    process.
    """

    def __init__(self, make: Callable[[], Made]):
        self._make, context = make, multiprocessing.get_context("fork")
        self._answer, answer = context.Pipe(duplex=False)
        arguments = make, self._answer, answer
        self._fork = context.Process(target=_answer, args=arguments, daemon=True)
        with suppress(OSError):
            self._fork.start()
        answer.close()  # so that the end of the fork can be seen

    def ready(self) -> bool:
        """Whether `result` need not wait for the fork."""
        return self._answer.poll()

    def result(self) -> Made:
        """Waits for it; once. Raises what `make` raises."""
        try:
            return self._answer.recv()
        except (EOFError, OSError):
            return self._make()
        finally:
            self.close()

    def close(self) -> None:
        """Ends the fork, which ignores signals to stop."""
        if self._fork.pid is not None:
            self._fork.kill()
            self._fork.join()


def _answer(make: Callable[[], Any], unread: Connection, answer: Connection) -> None:
    unread.close()  # else this process would wait for itself to read, once the other has died
    prepare_worker(None)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    torch.set_num_threads(1)  # a fork has none of torch's other threads
    with suppress(Exception):
        answer.send(make())


def _end_with_parent() -> None:
    """Ends this fork once its parent has ended: a resumed training may write the same files."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


PREFETCH = 4  # batches that a worker has before it
AHEAD = 2 * PREFETCH  # batches per worker that may be made before the one that is waited for
REST = 0.005  # seconds

Keys = Sequence[tuple[int, int]]
Task = tuple[int, Keys] | None  # the batch's number and frames; None: nothing to do for a REST


class OrderedLoader(DataLoader[Batch]):
    """Batches of the sampler's keys, in its order; each is collate(frames.__getitems__(keys)).

    workers: processes; 0: the calling one makes them. options: of torch's loader.
    """

    def __init__(
        self,
        frames: Any,
        sampler: Iterable[Keys],
        collate: Callable[[Sequence[Frame]], Batch],
        workers: int,
        **options: Any,
    ):
        self.tasks = Tasks(sampler, AHEAD * max(workers, 1))
        super().__init__(
            _Made(frames, collate),
            batch_size=None,
            sampler=self.tasks,
            num_workers=workers,
            collate_fn=_unchanged,
            prefetch_factor=PREFETCH if workers else None,
            in_order=False,
            **options,
        )

    def __iter__(self) -> Iterator[Batch]:  # type: ignore[override]
        return _InOrder(super().__iter__(), self.tasks)


class Tasks(Sampler[Task]):
    """Numbers the batches. While one that is waited for is far behind, there is nothing to do: the
    other workers would fill the memory."""

    def __init__(self, sampler: Iterable[Keys], ahead: int):
        self.sampler, self.ahead, self.taken = sampler, ahead, 0

    def __len__(self) -> int:
        return len(self.sampler)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[Task]:
        self.taken = 0
        for number, keys in enumerate(self.sampler):
            while number - self.taken >= self.ahead:
                yield None
            yield number, keys

    def in_order(self, made: Iterable[tuple[int, Batch] | None]) -> Iterator[Batch]:
        """The batches that workers have made of the tasks, by number."""
        waiting: dict[int, Batch] = {}
        for numbered in made:
            if numbered is not None:
                waiting[numbered[0]] = numbered[1]
            while self.taken in waiting:
                self.taken += 1
                yield waiting.pop(self.taken - 1)


class _Made(Dataset):
    """What the workers make of tasks."""

    def __init__(self, frames: Any, collate: Callable[[Sequence[Frame]], Batch]):
        self.frames, self.collate = frames, collate

    def __getitem__(self, task: Task) -> tuple[int, Batch] | None:
        if task is None:
            time.sleep(REST)
            return None
        number, keys = task
        try:
            return number, self.collate(self.frames.__getitems__(keys))
        except StopIteration as error:  # which would end the epoch
            raise RuntimeError(f"frames {keys}: StopIteration while they were made") from error


class _InOrder(Iterator[Batch]):
    """The iterator of an `OrderedLoader`."""

    def __init__(self, made: Any, tasks: Tasks):
        self._made, self._batches = made, tasks.in_order(made)

    def __next__(self) -> Batch:
        return next(self._batches)

    def _shutdown_workers(self) -> None:  # as torch's own iterator has it, see `batches_of`
        self._made._shutdown_workers()


def _unchanged(made: Any) -> Any:
    return made


class StepSampler(Sampler[list[tuple[int, int]]]):
    """The (epoch, index) pairs of this process's batches, from the first step that is still to do.

    An epoch is a permutation drawn from (seed, epoch), cut into steps of accumulate x processes x
    batch_size frames; what is left over is dropped. A step's frames depend on the step alone, so a
    run goes on in the middle of an epoch from its number of steps.
    """

    def __init__(
        self,
        frames: int,
        batch_size: int,
        epochs: int,
        seed: int,
        processes: Processes,
        accumulate: int = 1,
        first_step: int = 0,
    ):
        self.frames, self.seed, self.first_step = frames, seed, first_step
        self.layout = (accumulate, processes.count, batch_size)
        self.rank = processes.rank
        self.steps_per_epoch = frames // int(np.prod(self.layout))
        self.total_steps = epochs * self.steps_per_epoch
        if self.steps_per_epoch == 0:
            raise ValueError(
                f"{frames} training frames are fewer than a step takes: accumulate {accumulate} x "
                f"{processes.count} processes x batch_size {batch_size}; lower train.batch_size"
            )

    def __len__(self) -> int:
        return (self.total_steps - self.first_step) * self.layout[0]

    def __iter__(self) -> Iterator[list[tuple[int, int]]]:
        order, drawn = np.arange(0), -1
        for step in range(self.first_step, self.total_steps):
            epoch, position = divmod(step, self.steps_per_epoch)
            if epoch != drawn:
                order = np.random.default_rng((self.seed, epoch)).permutation(self.frames)
                drawn = epoch
            size = int(np.prod(self.layout))
            frames = order[position * size : (position + 1) * size].reshape(self.layout)
            for part in frames:
                yield [(epoch, int(index)) for index in part[self.rank]]


class TrainingFrames(Dataset):
    """Augmented frames, each with a generator seeded by (seed, epoch, index): the result depends
    neither on the number of workers nor on what was read before."""

    def __init__(self, config: Config, frames: Frames, database: GroundTruthDatabase | None):
        """database: of objects to paste into the frames."""
        augment, train = config.augment, config.train
        self.frames, self.point_range, self.seed = frames, config.grid.range, train.seed
        self.augmentation = Augmentation(
            augment.sample,
            augment.min_points,
            augment.flip,
            augment.rotation,
            augment.scale,
            database,
            augment.thin,
        )
        self.without_pasting = replace(self.augmentation, database=None)
        self.last_sampling_epoch = train.epochs - 1 - train.sampling_off_epochs
        self.taught = config.taught
        self.views, self.level = train.views, config.grid.level
        self.velocity = config.model.velocity

    def __len__(self) -> int:
        return len(self.frames)

    def __getitem__(self, key: tuple[int, int]) -> Frame:
        return self._augmented(self._read(key), key, np.random.default_rng((self.seed, *key)))

    def __getitems__(self, keys: Sequence[tuple[int, int]]) -> list[Frame]:
        """All views of the frames; each frame is read, or simulated, once."""
        views = []
        for key in keys:
            frame = self._read(key)
            for view in range(self.views):
                seed = (self.seed, *key, view) if view else (self.seed, *key)
                views.append(self._augmented(frame, key, np.random.default_rng(seed)))
        return views

    def _read(self, key: tuple[int, int]) -> Frame:
        epoch, index = key
        frames = self.frames
        if isinstance(frames, SimulatedStreets):
            frames = frames.of_epoch(epoch)
        return leveled(frames[index], self.level)[0]

    def _augmented(self, frame: Frame, key: tuple[int, int], rng: np.random.Generator) -> Frame:
        pasting = key[0] <= self.last_sampling_epoch
        augmentation = self.augmentation if pasting else self.without_pasting
        frame = drop_outside(augmentation(frame, rng), self.point_range)
        names = tuple(self.taught.get(name, name) for name in frame.names)
        return shuffle_points(replace(frame, names=names), rng)


def training_loader(
    frames: TrainingFrames,
    sampler: StepSampler,
    classes: Sequence[str],
    workers: int,
    device: torch.device,
) -> OrderedLoader:
    """One pass over all epochs that are left: workers never restart or run dry between them.

    Take its batches by `batches_of`.
    """
    return OrderedLoader(
        frames,
        sampler,
        # workers may have to pickle it
        partial(collate, classes=classes, velocity=frames.velocity),
        workers,
        pin_memory=device.type == "cuda",
        persistent_workers=workers > 0,
        worker_init_fn=prepare_worker,
        generator=torch.Generator(),  # else the loader draws from, and so changes, the global one
    )
