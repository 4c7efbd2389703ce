"""The queue between a source and its consumer: pace, drops, pauses, errors, the end."""

import queue
import signal
import threading
import time
from collections.abc import Iterator
from itertools import count

import numpy as np
import pytest

from millisecond.data.live.queue import CAPACITY, ScanQueue
from millisecond.data.live.scan import LiveScan, Trouble
from tests.helpers.warm_processes import WarmProcess

HANG = 60  # seconds after which something has gone wrong
NONE = np.zeros((0, 4), np.float32)


def scan(number: int, time: float = 0.0) -> LiveScan:
    return LiveScan(NONE, time, str(number))


class Given:
    """A source of given items; an exception among them is raised."""

    def __init__(self, *items, live=False):
        self.live, self.rate, self.closed = live, 10.0, False
        self._items = items

    def __iter__(self) -> Iterator[LiveScan | Trouble]:
        for item in self._items:
            if isinstance(item, Exception):
                raise item
            yield item

    def close(self):
        self.closed = True


class Endless(Given):
    """Scans without end, ten per second of their own time."""

    def __iter__(self):
        for number in count():
            if self.closed:
                return
            yield scan(number, number / 10)


class Clock:
    """A clock on which waiting takes no time; it notes how long was waited."""

    def __init__(self):
        self.now, self.waits = 100.0, []

    def __call__(self):
        return self.now

    def wait(self, condition, seconds):
        if seconds is None:
            condition.wait(HANG)
        else:
            self.waits.append(seconds)
            self.now += seconds


def drain(scans: ScanQueue) -> list[LiveScan | Trouble]:
    items = []
    while (item := scans.get(HANG)) is not None:
        items.append(item)
    return items


def names(items) -> list[str]:
    return [item.name if isinstance(item, LiveScan) else item.text for item in items]


def wait_until(condition) -> None:
    end = time.monotonic() + HANG
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.002)


@pytest.mark.parametrize(
    ("times", "gaps"),
    [
        ([0, 0.1, 0.25, 0.3], [0.1, 0.15, 0.05]),
        ([5.0, 5.0, 5.1], [0.1]),
        ([7, 6.9, 7.0], [0.1, 0.1]),  # the sensor's clock jumps: a turn
        ([0, 3600, 3600.2], [0.1, 0.2]),  # a gap in the recording: a turn
    ],
)
def test_a_recording_is_played_by_its_times(times, gaps):
    clock = Clock()
    source = Given(*map(scan, range(len(times)), times))
    with ScanQueue(source, clock=clock, wait=clock.wait) as scans:
        wait_until(lambda: scans._ended)
    np.testing.assert_allclose(clock.waits, gaps, atol=1e-9)


def test_at_twice_the_speed():
    clock = Clock()
    source = Given(scan(0, 0), scan(1, 0.1), scan(2, 0.2))
    scans = ScanQueue(source, clock=clock, wait=clock.wait)
    scans.set_speed(2)
    with scans:
        wait_until(lambda: scans._ended)
    np.testing.assert_allclose(clock.waits, [0.05, 0.05], atol=1e-9)
    with pytest.raises(ValueError, match="speed 0"):
        scans.set_speed(0)


def test_what_was_late_is_not_made_up_for():
    """The second scan takes 1 s to read: the third one comes 0.1 s after it."""
    clock = Clock()

    class Slow(Given):
        def __iter__(self):
            yield scan(0, 0)
            clock.now += 1
            yield scan(1, 0.1)
            yield scan(2, 0.2)

    with ScanQueue(Slow(), clock=clock, wait=clock.wait) as scans:
        wait_until(lambda: scans._ended)
    np.testing.assert_allclose(clock.waits, [0.1], atol=1e-9)


@pytest.mark.parametrize("live", [False, True])
def test_a_slow_consumer_gets_the_newest_scans_and_every_trouble(live):
    clock = Clock()
    items = [scan(number, number / 10) for number in range(20)]
    source = Given(*items[:5], Trouble("a"), *items[5:19], Trouble("b"), items[19], live=live)
    with ScanQueue(source, clock=clock, wait=clock.wait) as scans:
        wait_until(lambda: scans._ended)
        assert names(drain(scans)) == ["a", "18", "b", "19"]
        assert scans.dropped == 20 - CAPACITY
        assert scans.get(0) is None  # again
    assert bool(clock.waits) != live


def test_as_fast_as_the_consumer_nothing_is_dropped():
    with ScanQueue(Given(*map(scan, range(50))), fast=True) as scans:
        time.sleep(0.05)  # a slow start
        assert names(drain(scans)) == [str(number) for number in range(50)]
        assert scans.dropped == 0


def test_reads_no_further_ahead_than_its_capacity():
    taken = []

    class Counted(Endless):
        def __iter__(self):
            for item in super().__iter__():
                taken.append(item)
                yield item

    with ScanQueue(Counted(), fast=True) as scans:
        wait_until(lambda: len(taken) > CAPACITY)
        time.sleep(0.05)
        assert len(taken) == CAPACITY + 1
        scans.get(HANG)
        wait_until(lambda: len(taken) == CAPACITY + 2)


def test_an_error_comes_after_what_was_read_before():
    with ScanQueue(Given(scan(0), ValueError("no sensor")), fast=True) as scans:
        assert scans.get(HANG).name == "0"
        for _ in range(2):
            with pytest.raises(ValueError, match="no sensor"):
                scans.get(HANG)


def test_nothing_within_the_time():
    source = Given(scan(0), scan(1, 1.9))
    with ScanQueue(source, clock=lambda: 0.0) as scans:  # on this clock the second is never due
        assert scans.get(HANG).name == "0"
        with pytest.raises(queue.Empty):
            scans.get(0.01)


@pytest.mark.parametrize("state", ["waiting for the time", "full", "paused", "dropping", "ended"])
def test_the_thread_ends_when_it_is_closed(state):
    source = Given(scan(0)) if state == "ended" else Endless(live=state == "dropping")
    scans = ScanQueue(source, fast=state == "full")
    if state == "paused":
        scans.pause(True)
    before = set(threading.enumerate())
    with scans:
        time.sleep(0.03)
    assert set(threading.enumerate()) <= before and source.closed
    scans.close()  # again


def test_a_queue_that_was_never_started_can_be_closed():
    source = Endless()
    ScanQueue(source).close()
    assert source.closed


def test_a_pause_and_single_steps():
    clock = Clock()
    scans = ScanQueue(Endless(), clock=clock, wait=clock.wait)
    scans.pause(True)
    with scans:
        with pytest.raises(queue.Empty):
            scans.get(0.02)
        for number in range(3):
            scans.step()
            assert scans.get(HANG).name == str(number)
            with pytest.raises(queue.Empty):
                scans.get(0.02)
        assert scans.dropped == 0
        scans.pause(False)
        assert int(scans.get(HANG).name) >= 3


def test_a_paused_sensor_drops_without_counting():
    source = Endless(live=True)
    scans = ScanQueue(source)
    scans.pause(True)
    with scans:
        with pytest.raises(queue.Empty):
            scans.get(0.02)
        assert scans.dropped == 0
        scans.step()
        scans.get(HANG)


PROGRAM = """
import sys
from pathlib import Path
from millisecond.data.live.queue import ScanQueue
from millisecond.data.live.source import open_source
with ScanQueue(open_source("street:1")) as scans:
    Path(sys.argv[1], scans.get(60).name).touch()
    while True:
        scans.get(60)
"""


def test_ctrl_c(tmp_path):
    program = WarmProcess(["-c", PROGRAM, str(tmp_path)], {})
    try:
        wait_until((tmp_path / "000001_00").exists)
        program.send_signal(signal.SIGINT)
        errors, _ = program.communicate(timeout=HANG)
    finally:
        program.kill()
    assert errors.strip().endswith("KeyboardInterrupt") and errors.count("Traceback") == 1
