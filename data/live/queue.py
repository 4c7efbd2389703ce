"""Sources that are played: again and again, or read ahead by a thread at the sensor's pace."""

from __future__ import annotations

import queue
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from threading import Condition, Thread

from millisecond.data.live.scan import LiveScan, Source, Trouble


class Loop(Source):
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


CAPACITY = 2  # scans that wait for the consumer
LONGEST_GAP = 2.0  # seconds between two scans of a recording; a longer one is played as one turn


class ScanQueue:
    """The scans of a source, each when the sensor made it.

    A thread of its own reads the source. When the consumer is slow the oldest scan is dropped, and
    counted in `dropped`. Recordings are played by the times of their scans.

        with ScanQueue(source) as scans:
            while (scan := scans.get(timeout=1)) is not None:
                ...

    Args:
        fast: as fast as the consumer takes them; nothing is dropped (unless the source is live).
        clock: seconds, and wait: waits for the condition that it is given, so many seconds at most;
            tests bring their own.
    """

    def __init__(
        self,
        source: Source,
        fast: bool = False,
        clock: Callable[[], float] = time.monotonic,
        wait: Callable[[Condition, float | None], object] = Condition.wait,
    ):
        self.dropped = 0
        self._source = source
        self._pacing = not (fast or source.live)
        self._blocking = fast and not source.live
        self._clock, self._wait = clock, wait
        self._changed = Condition()  # guards all that follows
        self._waiting: deque[LiveScan | Trouble] = deque()
        self._ended = self._closed = False
        self._error: BaseException | None = None
        self._paused, self._steps, self._speed = False, 0, 1.0
        self._thread = Thread(target=self._read, name="scans", daemon=True)

    def __enter__(self) -> ScanQueue:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the thread; what waits is lost."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._source.close()
        with suppress(RuntimeError):  # was never started
            self._thread.join(timeout=5)  # a read that hangs, e.g. of a network disk, is left

    def get(self, timeout: float) -> LiveScan | Trouble | None:
        """The next one; None: the source has ended.

        Raises queue.Empty when there is none within so many seconds, and what the source raised.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._ended, timeout)
            if self._waiting:
                self._changed.notify_all()
                return self._waiting.popleft()
            if not self._ended:
                raise queue.Empty
            if self._error is not None:
                raise self._error
            return None

    def pause(self, paused: bool) -> None:
        """Holds a recording. Of a live sensor the scans pass by, without being counted."""
        with self._changed:
            self._paused, self._steps = paused, 0
            self._changed.notify_all()

    def step(self) -> None:
        """Lets one scan through a pause."""
        with self._changed:
            self._steps += self._paused
            self._changed.notify_all()

    def set_speed(self, speed: float) -> None:
        """Plays a recording so many times as fast as the sensor was."""
        if not speed > 0:
            raise ValueError(f"speed {speed}: must be above 0")
        with self._changed:
            self._speed = speed
            self._changed.notify_all()

    def _read(self) -> None:
        try:
            due, last = self._clock(), None
            for item in self._source:
                if isinstance(item, LiveScan):
                    gap = 0.0 if last is None else item.time - last
                    if not 0 <= gap <= LONGEST_GAP:
                        gap = 1 / self._source.rate
                    due, last = self._hold(due, gap), item.time
                self._put(item)
                if self._closed:
                    return
        except BaseException as error:
            self._error = error
        finally:
            with self._changed:
                self._ended = True
                self._changed.notify_all()

    def _hold(self, last: float, gap: float) -> float:
        """Waits until `gap` seconds of the recording after `last`; returns when that was.

        What comes too late does not make the next one hurry: that is due a whole gap later.
        """
        with self._changed:
            while not self._closed:
                now = self._clock()
                if self._paused and not self._steps and not self._source.live:
                    self._wait(self._changed, None)
                elif self._pacing and not self._steps and now < last + gap / self._speed:
                    self._wait(self._changed, last + gap / self._speed - now)
                else:
                    break
            return max(last + gap / self._speed, self._clock())

    def _put(self, item: LiveScan | Trouble) -> None:
        with self._changed:
            if isinstance(item, LiveScan):
                if self._paused and self._source.live and not self._steps:
                    return
                self._make_room()
                self._steps = max(0, self._steps - 1)
            self._waiting.append(item)
            self._changed.notify_all()

    def _make_room(self) -> None:
        while self._blocking and len(self._places()) >= CAPACITY and not self._closed:
            self._changed.wait()
        if not self._blocking and len(places := self._places()) >= CAPACITY:
            del self._waiting[places[0]]
            self.dropped += 1

    def _places(self) -> list[int]:
        """Of the scans among all that waits."""
        return [i for i, item in enumerate(self._waiting) if isinstance(item, LiveScan)]
