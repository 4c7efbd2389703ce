"""Sources by name: a folder of clouds, a drive, a bag, packets, simulated streets."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from data.live.folder import open_folder
from data.live.loop import Loop
from data.live.scan import LiveScan, Trouble

KINDS = "a folder of .bin or .npy files"


class Source(Protocol):
    """Turns of a sensor in the order in which it made them."""

    rate: float  # turns per second
    live: bool  # the sensor sets the pace; otherwise scans are there when they are asked for

    def __iter__(self) -> Iterator[LiveScan | Trouble]: ...

    def close(self) -> None:
        """Ends a running iteration, from another thread too."""


def open_source(name: str, loop: bool = False) -> Source:
    """The source of this name; loop: play it again from its start, for ever.

    Raises ValueError or OSError with one line and the remedy.
    """
    source = _open(name)
    if not loop:
        return source
    if source.live:
        raise ValueError(f"{name}: a live sensor cannot be played again; leave out --loop")
    return Loop(source)


def _open(name: str) -> Source:
    path = Path(name)
    if path.is_dir():
        return open_folder(path)
    raise FileNotFoundError(f"{name}: no such file or folder; a source is {KINDS}")
