"""Detection in a thread: statistics, drops, tracks, and how it ends."""

import queue
import threading
import time
from collections.abc import Iterator

import numpy as np
import pytest
import torch

from millisecond.data.boxes import NamedDetections
from millisecond.data.checks.scans import Note
from millisecond.data.live.queue import ScanQueue
from millisecond.data.live.scan import LiveScan, Trouble
from millisecond.detector.following import (
    FORGET,
    LENGTH,
    LiveDetection,
    LiveFrame,
    Statistics,
    Trails,
    milliseconds,
    untracked,
)
from millisecond.detector.inference import Detections
from millisecond.detector.tracking import Tracks

PATIENCE = 60  # seconds


class Source:
    """A live sensor that gives what it is told to."""

    rate, live = 10.0, True

    def __init__(self, items, before_second: threading.Event | None = None):
        self._items, self._before_second = items, before_second

    def __iter__(self) -> Iterator[LiveScan | Trouble]:
        for number, item in enumerate(self._items):
            if number == 1 and self._before_second is not None:
                assert self._before_second.wait(PATIENCE)
            if isinstance(item, Exception):
                raise item
            yield item

    def close(self) -> None:
        pass


class Detector:
    """Finds one car where the first point is."""

    class config:
        class_names = ("Car",)

    def __init__(self):
        self.begun, self.may_go_on = threading.Event(), threading.Event()
        self.may_go_on.set()

    def detect(self, points):
        self.begun.set()
        assert self.may_go_on.wait(PATIENCE)
        if len(points) == 2:
            raise ValueError("two points are not a scan")
        x, y, z, _ = points[0]
        boxes = torch.tensor([[x, y, z, 4, 2, 1.5, 0]])
        return Detections(boxes, torch.tensor([0.9]), torch.tensor([1])), []

    def examine(self, _):
        return [Note("odd", "odd points")]


def scan(number: int, points: int = 1) -> LiveScan:
    cloud = np.full((points, 4), number, np.float32)
    return LiveScan(cloud, number / 10, f"{number:06d}")


def results(frames: LiveDetection) -> list:
    found = []
    while (result := frames.get(PATIENCE)) is not None:
        found.append(result)
    return found


def test_percentiles_and_rates_by_hand():
    statistics = Statistics()
    assert statistics.percentiles(50, 99) == [0, 0] and statistics.rate == 0
    now = 0.0
    for number in np.random.default_rng(0).permutation(100):
        now += 0.1
        statistics.add((number + 1) / 1000, now)
    # nearest rank: of 1, 2, ..., 100 ms the p-th percentile is p ms
    assert statistics.percentiles(50, 90, 99, 100) == [0.05, 0.09, 0.099, 0.1]
    assert statistics.rate == pytest.approx(10) and statistics.frames == 100
    statistics.rest()
    statistics.add(0.2, now + 1000)  # after a pause, which does not count as an interval
    statistics.add(0.2, now + 1000.5)
    assert statistics.rate == pytest.approx(10 / (9 * 0.1 + 0.5))
    assert statistics.mean_rate == pytest.approx(100 / (99 * 0.1 + 0.5))
    statistics.troubles = 3
    lines = statistics.summary(7).splitlines()
    assert lines[0].split() == ["frames", "102,", "9.6", "per", "second"]
    assert lines[1].split() == ["dropped", "7"] and lines[2].split() == ["troubles", "3"]
    # ranks 51, 92 (of 91.8) and 101 (of 100.98) of 102
    assert lines[3].endswith("p50 51 ms, p90 92 ms, p99 200 ms")
    assert [milliseconds(s) for s in (0.00052, 0.0052, 0.052)] == ["0.52 ms", "5.2 ms", "52 ms"]


def test_the_percentiles_of_the_moment_forget():
    statistics = Statistics()
    for number in range(1500):
        statistics.add(1.0 if number < 500 else 0.01, number)
    assert statistics.percentiles(100, recent=True) == [0.01]
    assert statistics.percentiles(100) == [1.0]


def test_a_slow_detection_drops_the_oldest_scans():
    """Of ten scans the first is held by the detection; of the nine that follow at once two can
    wait, so seven are dropped."""
    detector = Detector()
    detector.may_go_on.clear()
    source = Source([scan(k) for k in range(10)], before_second=detector.begun)
    with ScanQueue(source) as scans, LiveDetection(scans, detector) as frames:
        end = time.monotonic() + PATIENCE
        while scans.dropped < 7 and time.monotonic() < end:
            time.sleep(0.01)
        detector.may_go_on.set()
        names = [frame.scan.name for frame in results(frames)]
    assert names == ["000000", "000008", "000009"] and scans.dropped == 7
    assert frames.statistics.frames == 3


def test_troubles_are_handed_on_and_counted():
    items = [scan(0), Trouble("half a packet"), scan(1, points=2), scan(2), scan(1)]
    scans = ScanQueue(Recording(items), fast=True)
    with scans, LiveDetection(scans, Detector()) as frames:
        got = results(frames)
    texts = [item.text for item in got if isinstance(item, Trouble)]
    assert texts[:2] == ["half a packet", "000001: two points are not a scan"]
    assert len(texts) == 3 and "tracking begins anew" in texts[2]  # the time went back
    assert [item.scan.name for item in got if isinstance(item, LiveFrame)] == [
        *("000000", "000002", "000001")
    ]
    assert isinstance(got[-1], LiveFrame) and got[-1].tracks is not None  # none, but it has tracks
    assert frames.statistics.troubles == 2 and frames.statistics.frames == 3


class Recording(Source):
    live = False


def test_so_many_frames_and_no_more():
    scans = ScanQueue(Recording([scan(k) for k in range(100)]), fast=True)
    with scans, LiveDetection(scans, Detector(), tracked=False, limit=5) as frames:
        assert [frame.scan.name for frame in results(frames)] == [f"{k:06d}" for k in range(5)]


def test_what_the_source_raises_reaches_the_program():
    scans = ScanQueue(Recording([scan(0), OSError("unplugged")]), fast=True)
    with scans, LiveDetection(scans, Detector()) as frames:
        assert isinstance(frames.get(PATIENCE), LiveFrame)
        with pytest.raises(OSError, match="unplugged"):
            frames.get(PATIENCE)


def test_no_thread_outlives_the_block():
    before = set(threading.enumerate())
    source = Recording([scan(k) for k in range(100)])
    with ScanQueue(source, fast=True) as scans, LiveDetection(scans, Detector()) as frames:
        frames.get(PATIENCE)  # the next result waits to be taken, and the one after it
    assert set(threading.enumerate()) <= before


def test_nothing_within_the_time_is_empty():
    gate = threading.Event()
    scans = ScanQueue(Source([scan(0), scan(1)], before_second=gate))
    with scans, LiveDetection(scans, Detector()) as frames:
        frames.get(PATIENCE)
        for timeout in (0, 0.02):
            with pytest.raises(queue.Empty):
                frames.get(timeout)
        gate.set()
        assert len(results(frames)) == 1


def tracks_at(*places: tuple[int, float]) -> Tracks:
    """Tracks by their numbers at x metres."""
    ids = np.array([number for number, _ in places], np.int64)
    boxes = np.array([(x, 0, 0, 4, 2, 1.5, 0) for _, x in places], float).reshape(-1, 7)
    count = len(places)
    return Tracks(
        boxes, np.full(count, 0.9), ("Car",) * count, ids, np.zeros((count, 2)), np.ones(count, int)
    )


def test_trails_stand_still_in_the_world():
    """A car that stands at x = 20 while the sensor drives 1 m per scan towards it."""
    trails = Trails()
    for step in range(30):
        pose = np.eye(4)
        pose[0, 3] = step
        (path,) = trails.update(tracks_at((5, 20.0 - step)), pose)
        np.testing.assert_allclose(path, np.tile([20.0 - step, 0, 0], (len(path), 1)), atol=1e-9)
        assert len(path) == min(step + 1, LENGTH)
    moved = Trails()
    for step in range(3):
        (path,) = moved.update(tracks_at((5, 20.0 - step)))
    np.testing.assert_allclose(path[:, 0], [20, 19, 18])  # without poses: as the sensor sees it
    for _ in range(FORGET):
        moved.update(tracks_at())
    assert len(moved.update(tracks_at((5, 17.0)))[0]) == 4
    for _ in range(FORGET + 1):
        assert moved.update(tracks_at()) == ()
    assert len(moved.update(tracks_at((5, 1.0)))[0]) == 1


def test_objects_are_the_tracks_and_what_belongs_to_none():
    boxes = np.array([(10.5, 0.9, 0, 4, 2, 1.5, 0), (10, 1.2, 0, 4, 2, 1.5, 0)], np.float32)
    boxes = np.concatenate([boxes, boxes + np.float32(30)])
    found = NamedDetections(boxes, np.array([0.8, 0.7, 0.6, 0.2]), ("Car", "Car", "Cyclist", "Car"))
    trail = np.array([[9.0, 0, 0], [10.0, 0, 0]])
    frame = LiveFrame(scan(0), found, tracks_at((5, 10.0)), (trail,))
    objects = frame.objects(0.3)
    assert objects.ids.tolist() == [5, 0, 0]  # the first detection is the track's own
    assert objects.scores.tolist() == [0.9, 0.7, 0.6]
    assert objects.names == ("Car", "Car", "Cyclist")
    assert [len(path) for path in objects.trails] == [2, 0, 0]
    np.testing.assert_array_equal(objects.velocities[0], frame.tracks.velocities[0])
    assert np.isnan(objects.velocities[1:]).all()
    assert frame.objects(0.65, {"Car"}).names == ()
    assert frame.objects(0.1, {"Car"}).names == ("Cyclist",)
    assert len(frame._replace(tracks=None, trails=()).objects(0).scores) == 4
    turned = tracks_at((5, 0.0))  # as 3 m ahead are 4 m to the left
    turned.boxes[0, 6] = np.arctan2(4, 3)
    places = np.array([(3, 4), (4, -3), (4, -3), (3, 4)]) * [[0.38], [0.18], [0.22], [0.42]]
    found = found._replace(boxes=np.pad(places, ((0, 0), (0, 5))))
    assert untracked(found, turned).tolist() == [2, 3]  # 1.1 m beside it, 2.1 m ahead of it


def test_with_poses_of_scans_velocities_are_over_ground():
    """The car stands: it is k metres ahead in scan k, where the sensor is k metres behind."""
    items = []
    for number in range(6):
        pose = np.eye(4)
        pose[:3, 3] = -number
        items.append(scan(number)._replace(pose=pose))
    scans = ScanQueue(Recording(items), fast=True)
    with scans, LiveDetection(scans, Detector()) as frames:
        *_, last = results(frames)
    np.testing.assert_allclose(last.tracks.velocities, [[0, 0]], atol=1e-9)
    np.testing.assert_allclose(last.trails[0], np.full((len(last.trails[0]), 3), 5), atol=1e-9)
    assert len(last.trails[0]) > 1
    assert frames.notes.lines() == ["000000: odd points"]  # the first alone is examined
