"""What a source gives: scans, and a line for each trouble on the way."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import NamedTuple

import numpy as np

from data.kitti.calibration import Calibration


class LiveScan(NamedTuple):
    """One turn of the sensor."""

    points: np.ndarray  # [P, 4] float32: x, y, z in metres, LiDAR frame; intensity in [0, 1]
    time: float  # seconds by the sensor's clock; number / rate where there is none
    name: str  # e.g. "000012"
    image: Path | None = None  # PNG or JPEG of the camera beside the sensor
    calibration: Calibration | None = None


class Trouble(NamedTuple):
    """Something that could not be read; the source goes on."""

    text: str  # one line


class Troubles:
    """Counts troubles by kind, so that a fault that returns is no flood of lines.

    The first of a kind is reported, then the 10th, the 100th and so on.
    """

    def __init__(self):
        self._count: Counter[str] = Counter()
        self._told: dict[str, tuple[int, str]] = {}  # the count that was last reported, and how

    def add(self, kind: str, text: str) -> list[Trouble]:
        """kind: a word, the same for the same fault. Returns what is to be reported now."""
        self._count[kind] += 1
        count = self._count[kind]
        if count != 10 ** (len(str(count)) - 1):
            return []
        self._told[kind] = (count, text)
        return [Trouble(text if count == 1 else f"{text} (the {count}th such case)")]

    def rest(self) -> list[Trouble]:
        """The totals that were not reported yet, for the end of a source."""
        return [
            Trouble(f"{text} (so {self._count[kind]} times in all)")
            for kind, (told, text) in self._told.items()
            if told < self._count[kind]
        ]
