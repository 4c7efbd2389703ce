"""The processes that train together: started by torchrun, or just this one.

A process ends when another one has died. A request to stop (SIGTERM, a closed terminal, Ctrl-C, or
one of the processes) is followed by all of them at the same step.
"""

from __future__ import annotations

import functools
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch

# The compiler, which the optimizer imports at its first step otherwise: of several processes one
# then aborts at its end now and then.
import torch._dynamo
import torch.distributed as dist
from torch import Tensor
from torch.distributed.rendezvous import rendezvous

from millisecond.detector.device import usable_device

FOREVER = timedelta(days=3650)
NONE = -1  # in place of a process
GRACE = 2  # seconds to end by itself, with an error of its own


@contextmanager
def peers_watched(rank: int, count: int) -> Iterator[None]:
    """Ends this process with exit status 1 some seconds after another one died.

    By itself it would not end: a sum of NCCL waits on the GPU for the dead process, and the host
    waits for the GPU. So a thread of every process waits for a word that the next process says when
    it leaves: which process failed, if one did. A death closes the connection instead. The thread
    passes a failure on, so that the word comes back to the process that failed, and its own thread
    ends: one that still waits while Python exits would abort that.
    """
    ring = dist.new_group(backend="gloo", timeout=FOREVER)
    failed, said = threading.Event(), threading.Lock()

    def say(failing: int) -> None:
        if said.acquire(blocking=False):
            with suppress(RuntimeError):  # that one has died
                dist.send(torch.tensor(failing), dst=(rank - 1) % count, group=ring)

    def listen() -> None:
        peer = (rank + 1) % count
        failing = torch.tensor(peer)
        with suppress(RuntimeError):
            dist.recv(failing, src=peer, group=ring)
        if failing < 0:
            return
        say(int(failing))
        if not failed.wait(GRACE):
            print(f"process {failing} of the training died, so this one ends", file=sys.stderr)
            sys.stderr.flush()
            os._exit(1)

    watch = threading.Thread(target=listen, daemon=True)
    watch.start()
    try:
        yield
    except BaseException as error:
        if type(error) is RuntimeError:  # mostly of a sum that lacks a dead process
            watch.join(2 * GRACE)
        failed.set()
        raise
    finally:
        say(rank if failed.is_set() else NONE)
        watch.join(GRACE if failed.is_set() else None)


TIMEOUT = timedelta(minutes=30)  # longer than rank 0 takes to score the whole validation split


@dataclass(frozen=True)
class Processes:
    """This process's place among all: its rank, how many there are, and its device."""

    rank: int
    count: int
    device: torch.device

    @property
    def first(self) -> bool:
        """Whether this is the process that writes."""
        return self.rank == 0

    def average(self, tensors: Sequence[Tensor]) -> None:
        """Replaces every tensor by its mean over the processes, in place, with one collective.

        The same tensors in the same order give the same bits whatever ran before, which the buckets
        of DistributedDataParallel, rebuilt after its first step, do not: a resumed run could
        differ.
        """
        if self.count == 1 or not tensors:
            return
        alone = len(tensors) == 1 and tensors[0].is_contiguous()
        flat = tensors[0] if alone else torch.cat([tensor.reshape(-1) for tensor in tensors])
        dist.all_reduce(flat)
        flat /= self.count
        if alone:
            return
        parts = flat.split([tensor.numel() for tensor in tensors])
        views = [part.view(tensor.shape) for tensor, part in zip(tensors, parts, strict=True)]
        torch._foreach_copy_(list(tensors), views)  # a launch for many tensors, not one for each

    def copy_first(self, tensors: Sequence[Tensor]) -> None:
        """Copies the tensors of rank 0 to every other process."""
        if self.count > 1:
            for tensor in tensors:
                dist.broadcast(tensor.detach(), src=0)

    def gather(self, value: Any) -> list[Any]:
        """The value of every process, by rank, in every process."""
        if self.count == 1:
            return [value]
        values = [None] * self.count
        dist.all_gather_object(values, value)
        return values

    def of_first(self, make: Callable[[], Any]) -> Any:
        """What rank 0 makes, in every process. A mistake that it finds is raised in every one."""
        if self.count == 1:
            return make()
        made: list[Any] = [None, None]
        if self.first:
            try:
                made[0] = make()
            except (ValueError, OSError) as error:
                made[1] = str(error)
        dist.broadcast_object_list(made, src=0)
        if made[1] is not None:
            raise ValueError(made[1])
        return made[0]

    def wait(self) -> None:
        """Returns when every process has come here."""
        if self.count > 1:
            self.gather(None)


@contextmanager
def processes(device: str | None = None) -> Iterator[Processes]:
    """Joins the processes that torchrun started, by its environment, or stands alone.

    `device`: a torch device; None for the GPU where there is one. Raises ValueError for one that is
    not there.
    """
    count = int(os.environ.get("WORLD_SIZE", 1))
    rank = int(os.environ.get("RANK", 0))
    if count > 1:
        _store()  # before anything can go wrong: see `first_to_say`
    place = _device(device, int(os.environ.get("LOCAL_RANK", 0)))
    if place.type == "cuda":
        torch.cuda.set_device(place)
    if count == 1:
        yield Processes(rank, count, place)
        return
    # Tensors on the host (flags, gathered results) go through gloo also where the gradients go
    # through NCCL.
    backend = "cpu:gloo,cuda:nccl" if place.type == "cuda" else "gloo"
    dist.init_process_group(backend, store=_store(), rank=rank, world_size=count, timeout=TIMEOUT)
    with peers_watched(rank, count):
        yield Processes(rank, count, place)
    # Not in a `finally`: after an error the peers are in some other collective and tearing down
    # would wait for them. Leaving with the error makes torchrun end them.
    dist.destroy_process_group()


def first_to_say(line: str) -> bool:
    """Whether no other process has said this line: what all of them notice is printed once, and
    what a single one notices is not lost."""
    if int(os.environ.get("WORLD_SIZE", 1)) == 1:
        return True
    try:
        return _store().add(f"said {line}", 1) == 1
    except (RuntimeError, ValueError):  # no store, or the process that kept it has ended
        return True


@functools.cache
def _store() -> dist.Store:
    """What the processes share before and after they are a group, kept by torchrun or rank 0."""
    store, _, _ = next(rendezvous("env://", timeout=TIMEOUT))
    told = os.environ
    if told.get("LOCAL_WORLD_SIZE") != told["WORLD_SIZE"]:
        return store  # machines count their restarts differently
    # torchrun of torch 2.13 keeps the store, with the addresses of processes that have ended
    return dist.PrefixStore(told.get("TORCHELASTIC_RESTART_COUNT", "0"), store)


def _device(name: str | None, local_rank: int) -> torch.device:
    device = usable_device(name)
    if device.type == "cpu":
        return device
    index = local_rank if device.index is None else device.index
    if index >= torch.cuda.device_count():
        raise ValueError(
            f"device cuda:{index} is not there: {torch.cuda.device_count()} are visible; start "
            "at most that many processes on this machine, or say --device cpu"
        )
    return torch.device("cuda", index)


INSIST = 2.0  # seconds
EXIT_CODE = {signal.SIGTERM: 0, signal.SIGHUP: 0, signal.SIGINT: 130}
NOT_FINITE = 255  # larger than any signal: a process found a loss that is infinite or NaN


class StopSignal:
    """Notes the signals while it is entered. One that comes INSIST seconds later acts as it would
    have without this; sooner it is the same once more, by way of torchrun or a scheduler.

    Processes get a signal at different steps, so each step shares the notes of the step before with
    a reduction that runs on the host while the device works: nobody waits, and all see the same
    answer.
    """

    def __init__(self, processes: Processes):
        self._processes = processes
        self._noted, self._when = 0, 0.0
        self._previous: dict[int, Any] = {}  # number -> handler
        self._pending: tuple[torch.Tensor, dist.Work] | None = None

    def __enter__(self) -> StopSignal:
        for number in EXIT_CODE:
            if signal.getsignal(number) is not signal.SIG_IGN:  # nohup: stays so
                self._previous[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *error) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        if self._pending and error == (None, None, None):
            self._pending[1].wait()
        self._pending = None

    def ask(self, number: int) -> None:
        """As if this process had got that signal."""
        self._noted = number

    def _note(self, number: int, _) -> None:
        if not self._noted:
            self._noted, self._when = number, time.monotonic()
        elif time.monotonic() - self._when > INSIST:
            signal.signal(number, self._previous[number])
            signal.raise_signal(number)

    def agreed(self) -> int:
        """The signal to stop for, 0 for none: called by every process, equally often."""
        if self._processes.count == 1:
            return self._noted
        answer = 0
        if self._pending:
            shared, work = self._pending
            work.wait()
            answer = int(shared)
        shared = torch.tensor(self._noted)
        self._pending = shared, dist.all_reduce(shared, dist.ReduceOp.MAX, async_op=True)
        return answer
