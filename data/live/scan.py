"""What a source is and gives: scans, and a line for each trouble on the way."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np

from millisecond.data.calibration import Calibration


class LiveScan(NamedTuple):
    """One turn of the sensor."""

    points: np.ndarray  # [P, 4] float32: x, y, z in metres, LiDAR frame; intensity in [0, 1]
    time: float  # seconds by the sensor's clock; number / rate where there is none
    name: str  # e.g. "000012"
    image: Path | None = None  # PNG or JPEG of the camera beside the sensor
    calibration: Calibration | None = None
    frame: str = "lidar"  # of the points, as the messages of a bag name it
    recorded: int | None = None  # nanoseconds, when a bag recorded it, or when it came
    stamp: int | None = None  # nanoseconds: the time, exact, where a message tells it
    pose: np.ndarray | None = None  # [4, 4] from the LiDAR frame to a fixed one, where it is known


class Trouble(NamedTuple):
    """A line for the user; the source goes on."""

    text: str
    lost: bool = True  # whether something could not be read; otherwise it is a note


class Troubles:
    """Counts troubles by kind, so that a fault that returns does not flood the terminal.

    The first of a kind is reported, then the 10th, the 100th and so on.
    """

    def __init__(self):
        self._count: Counter[str] = Counter()
        # the count that was last reported, and how
        self._told: dict[str, tuple[int, Trouble]] = {}

    def add(self, kind: str, text: str, lost: bool = True) -> list[Trouble]:
        """kind: a word, the same for the same fault. Returns what is to be reported now."""
        self._count[kind] += 1
        count = self._count[kind]
        if count != 10 ** (len(str(count)) - 1):
            return []
        self._told[kind] = (count, Trouble(text, lost))
        return [Trouble(text if count == 1 else f"{text} (the {count}th such case)", lost)]

    def rest(self) -> list[Trouble]:
        """The totals that were not reported yet, for the end of a source."""
        return [
            trouble._replace(text=f"{trouble.text} (so {self._count[kind]} times in all)")
            for kind, (told, trouble) in self._told.items()
            if told < self._count[kind]
        ]


class Source(Protocol):
    """Turns of a sensor in the order in which it made them."""

    rate: float  # turns per second
    live: bool  # the sensor sets the pace; otherwise scans are there when they are asked for

    def __iter__(self) -> Iterator[LiveScan | Trouble]: ...

    def close(self) -> None:
        """Ends a running iteration, from another thread too."""
        return  # a file is read at once: there is nothing to end


class ScanFeed(Protocol):
    """What hands scans over, one at a time, such as a `ScanQueue`."""

    def get(self, timeout: float) -> LiveScan | Trouble | None:
        """The next one; None: there is no other. Raises queue.Empty when none comes in time."""
