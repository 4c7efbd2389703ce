"""A recording that is played again and again."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from data.live.scan import LiveScan, Trouble

if TYPE_CHECKING:
    from data.live.source import Source


class Loop:
    """Another source without end. Times go on increasing; a trouble is reported in one round only.

    A round without any scan is the last one.
    """

    def __init__(self, source: Source):
        self.rate, self.live = source.rate, source.live
        self._source = source
        self._closed = False

    def __iter__(self) -> Iterator[LiveScan | Trouble]:
        told: set[Trouble] = set()
        shift, last = 0.0, None
        while not self._closed:
            first = None
            for item in self._round(again=last is not None):
                if isinstance(item, Trouble):
                    if item not in told:
                        told.add(item)
                        yield item
                    continue
                if first is None:
                    first = item.time
                    shift = 0.0 if last is None else last + 1 / self.rate - first
                last = item.time + shift
                yield item._replace(time=last)
            if first is None:
                return

    def _round(self, again: bool) -> Iterator[LiveScan | Trouble]:
        try:
            yield from self._source
        except OSError as error:
            if not again:
                raise
            yield Trouble(f"{error}; cannot be played again")

    def close(self) -> None:
        self._closed = True
        self._source.close()
