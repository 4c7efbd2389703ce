"""The processes that train together: started by torchrun, or just this one."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
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

from detector.device import parse_device
from detector.training.peer_watch import peers_watched

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
        """Copies the tensors of rank 0 into those of every other process."""
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
    return store


def _device(name: str | None, local_rank: int) -> torch.device:
    device = parse_device(name)
    if device.type == "cpu":
        return device
    index = local_rank if device.index is None else device.index
    if index >= torch.cuda.device_count():
        raise ValueError(
            f"device cuda:{index} is not there: {torch.cuda.device_count()} are visible; start "
            "at most that many processes on this machine, or say --device cpu"
        )
    return torch.device("cuda", index)
