"""Simulated streets without end as a source."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

from data.live.scan import LiveScan, Trouble
from data.simulator import simulate, simulated_calibration

TURNS = 50  # of a street: it is built for about 5 s


class StreetSource:
    """One street after the other, made up from seed, seed + 1 and so on."""

    live = False
    rate = 10.0

    def __init__(self, name: str):
        """name: street:SEED. Raises ValueError for another one."""
        seed = name.removeprefix("street:")
        if not (seed.isascii() and seed.isdecimal() and len(seed) < 10):
            raise ValueError(f"{name}: say street:SEED with a number of at most 9 digits")
        self._seed = int(seed)

    def __iter__(self) -> Iterator[LiveScan | Trouble]:
        for number in count():
            street, turn = divmod(number, TURNS)
            frame = simulate(self._seed + street, turn / self.rate)
            name = f"{frame.frame_id}_{turn:02d}"
            calibration = simulated_calibration()
            yield LiveScan(frame.points, number / self.rate, name, None, calibration)

    def close(self) -> None:
        """Nothing to end."""
