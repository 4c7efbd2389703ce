"""A loader whose next batch goes to the worker that is free, and that still keeps their order.

torch's loader deals its batches out by turns, so the slowest worker sets the pace of all of them:
one that shares its core, or one with a slow frame.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from torch.utils.data import DataLoader, Dataset, Sampler

from data.frame import Batch, Frame

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
