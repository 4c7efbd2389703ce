"""Which device a user means."""

import functools
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from threading import Thread

import torch

from millisecond.ops.toolchain import no_gpu


def usable_device(name: str | torch.device | None) -> torch.device:
    """As `parse_device`, but raises ValueError for a GPU that is not there too."""
    device = parse_device(name)
    if device.type == "cuda":
        if wrong := no_gpu():
            raise ValueError(f"device {str(name)!r} is not there: {wrong[0]}; or say cpu")
        if device.index is not None and device.index >= (count := torch.cuda.device_count()):
            raise ValueError(
                f"device {str(name)!r} is not there: say cpu, or a GPU that torch sees, up to "
                f"cuda:{count - 1} (CUDA_VISIBLE_DEVICES={os.environ.get('CUDA_VISIBLE_DEVICES')})"
            )
    return device


def parse_device(name: str | torch.device | None) -> torch.device:
    """The CPU or a GPU of this name; None for the GPU where there is one. It may not be there.

    Raises ValueError for a name of neither.
    """
    if name is None:
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except (RuntimeError, TypeError):
        raise ValueError(f"device {name!r} is unknown; say cpu, cuda or cuda:N") from None
    if device.type not in ("cpu", "cuda"):
        raise ValueError(f"device {name!r} is not one that this runs on; say cpu, cuda or cuda:N")
    return device


@contextmanager
def woken(device: torch.device) -> Iterator[None]:
    """A GPU's driver starts up, which takes a third of a second, beside what the host does."""

    def wake() -> None:
        with suppress(Exception):  # whoever uses the device next is told
            torch.empty(1, device=device)

    thread = Thread(target=wake)
    if device.type == "cuda":
        thread.start()
    try:
        yield
    finally:
        if device.type == "cuda":
            thread.join()


@contextmanager
def torch_defaults() -> Iterator[None]:
    """Torch as it starts: float32 on the CPU without autocast. Other settings of the program that
    calls would change the results. Each is looked at first: to set it takes the host longer."""
    with ExitStack() as stack:
        for kind in ("cpu", "cuda"):
            if torch.is_autocast_enabled(kind):
                stack.enter_context(torch.autocast(kind, enabled=False))
        if torch.get_default_device().type != "cpu":
            stack.enter_context(torch.device("cpu"))
        if (dtype := torch.get_default_dtype()) != torch.float32:
            torch.set_default_dtype(torch.float32)
            stack.callback(torch.set_default_dtype, dtype)
        yield


@functools.cache
def survive_forks() -> None:
    """Makes each child of this process compute with one thread. OpenMP's other threads are not in
    the child, which would wait for them without end."""
    os.register_at_fork(after_in_child=functools.partial(torch.set_num_threads, 1))
