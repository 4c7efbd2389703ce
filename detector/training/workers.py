"""The processes that read batches: they ignore signals to stop, and end with the training."""

from __future__ import annotations

import gc
import multiprocessing
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.process import BaseProcess
from typing import Any

from torch.utils.data import DataLoader


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
    """
    others = set(multiprocessing.active_children())
    batches: Any = iter(loader)
    workers = [child for child in multiprocessing.active_children() if child not in others]
    try:
        yield batches
    except BaseException:
        _kill(workers)
        raise
    if workers:
        batches._shutdown_workers()  # what dropping it does; torch has no public name for it


def _kill(workers: Sequence[BaseProcess]) -> None:
    # else the loader's handler would take the end of its workers for a crash
    handler = signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for worker in workers:
        worker.kill()
    for worker in workers:
        worker.join()
    signal.signal(signal.SIGCHLD, handler or signal.SIG_DFL)
