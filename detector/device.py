"""Which device a user means."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from threading import Thread

import torch


def parse_device(name: str | torch.device | None) -> torch.device:
    """The CPU or a GPU of this name; None for the GPU where there is one. It may not be there.

    Raises ValueError for a name of neither.
    """
    if name is None:
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError:
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
