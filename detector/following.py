"""Detection and tracking in scans as they come (live): a thread that detects and follows objects,
the result of each scan, the paths of the tracks, statistics of latencies and rates."""

from __future__ import annotations

import queue
import time
from collections import deque
from contextlib import suppress
from itertools import islice
from threading import Event, Thread
from typing import NamedTuple

import numpy as np

from millisecond.data.boxes import FollowedObjects, NamedDetections
from millisecond.data.checks.scans import Tally
from millisecond.data.live.scan import LiveScan, ScanFeed, Trouble
from millisecond.detector.detector import Detector
from millisecond.detector.inference import ScoreMap
from millisecond.detector.tracking import EgoMotion, Tracker, Tracks

KEPT = 1_000_000  # frames whose latencies are kept: a day and more
RECENT = 1000  # of them those whose percentiles are shown while it runs
SMOOTH = 10  # intervals over which the rate of the moment is taken


class Statistics:
    """Counts frames and troubles; keeps the latencies for the percentiles of the end."""

    def __init__(self) -> None:
        self.frames = self.troubles = 0
        self._latencies: deque[float] = deque(maxlen=KEPT)  # seconds
        self._intervals: deque[float] = deque(maxlen=SMOOTH)  # seconds between two frames
        self._running = 0.0  # seconds, the sum of all intervals
        self._counted = 0  # intervals
        self._last: float | None = None  # when the last frame was done, seconds

    def add(self, latency: float, now: float) -> None:
        """A frame that took `latency` seconds and is done at time `now`, seconds."""
        self.frames += 1
        self._latencies.append(latency)
        last, self._last = self._last, now  # read once: another thread may call `rest` meanwhile
        if last is not None:
            self._intervals.append(now - last)
            self._running += now - last
            self._counted += 1

    def rest(self) -> None:
        """What comes after a pause says nothing about the rate."""
        self._last = None

    @property
    def latency(self) -> float:
        """The latency of the last frame, seconds; 0 before the first."""
        return self._latencies[-1] if self._latencies else 0.0

    @property
    def rate(self) -> float:
        """Frames per second at the moment; 0 where it is not known."""
        recent = list(self._intervals)
        return len(recent) / sum(recent) if sum(recent) else 0.0

    @property
    def mean_rate(self) -> float:
        """Frames per second from the first frame to the last, without pauses; 0: not known."""
        return self._counted / self._running if self._running else 0.0

    def percentiles(self, *percents: float, recent: bool = False) -> list[float]:
        """Latencies in seconds that so many percent of the frames do not exceed (nearest rank);
        recent: of the last 1000 frames. Of no frames 0."""
        # in one step of Python's: another thread may add one meanwhile
        values = list(islice(reversed(self._latencies), RECENT if recent else None))
        if not values:
            return [0.0] * len(percents)
        return np.percentile(values, percents, method="inverted_cdf").tolist()

    def summary(self, dropped: int) -> str:
        """One line per fact."""
        p50, p90, p99 = map(milliseconds, self.percentiles(50, 90, 99))
        return (
            f"frames     {self.frames}, {self.mean_rate:.1f} per second\n"
            f"dropped    {dropped}\n"
            f"troubles   {self.troubles}\n"
            f"latency    p50 {p50}, p90 {p90}, p99 {p99}"
        )


def milliseconds(seconds: float) -> str:
    """A time in ms, with two or three significant digits."""
    value = 1000 * seconds
    return f"{value:.{2 if value < 1 else 1 if value < 10 else 0}f} ms"


LENGTH = 20  # scans
FORGET = 10  # scans without the track


class Trails:
    """Keeps the centres of tracks in the world, where poses are given, else in the LiDAR frame."""

    def __init__(self) -> None:
        self._paths: dict[int, deque[np.ndarray]] = {}
        self._seen: dict[int, int] = {}  # number of the scan in which the track was last seen
        self._scans = 0

    def update(self, tracks: Tracks, pose: np.ndarray | None = None) -> tuple[np.ndarray, ...]:
        """The path [T, 3] of each track in the LiDAR frame of this scan, oldest first; it ends at
        the track's box. pose: [4, 4] from that frame to the world."""
        self._scans += 1
        pose = np.eye(4) if pose is None else pose
        back = np.linalg.inv(pose)
        for number, box in zip(tracks.ids.tolist(), tracks.boxes, strict=True):
            path = self._paths.setdefault(number, deque(maxlen=LENGTH))
            path.append(pose[:3, :3] @ box[:3] + pose[:3, 3])
            self._seen[number] = self._scans
        for number, scan in list(self._seen.items()):
            if self._scans - scan > FORGET:
                del self._seen[number], self._paths[number]
        worlds = (np.array(self._paths[number]) for number in tracks.ids.tolist())
        return tuple(world @ back[:3, :3].T + back[:3, 3] for world in worlds)


NONE = np.zeros(0, np.int64)
NO_TRACKS = Tracks(np.zeros((0, 7)), np.zeros(0), (), NONE, np.zeros((0, 2)), NONE)


class LiveFrame(NamedTuple):
    """A scan and what was found in it."""

    scan: LiveScan
    found: NamedDetections
    tracks: Tracks | None = None
    trails: tuple[np.ndarray, ...] = ()  # of the tracks, see Trails
    scores: ScoreMap | None = None  # where pictures need it

    def objects(
        self, score: float, without: set[str] | frozenset[str] = frozenset()
    ) -> FollowedObjects:
        """Those that score as much, but for some classes."""
        found, tracks = self.found, self.tracks or NO_TRACKS
        free = untracked(found, tracks)
        rest = found.select(free)
        boxes = np.concatenate([tracks.boxes, rest.boxes])
        scores = np.concatenate([tracks.scores, rest.scores])
        names = (*tracks.names, *rest.names)
        ids = np.concatenate([tracks.ids, np.zeros(len(free), np.int64)])
        trails = (*self.trails, *[np.zeros((0, 3))] * len(free))
        velocities = np.concatenate([tracks.velocities, np.full((len(free), 2), np.nan)])
        rows = [i for i in np.flatnonzero(scores >= score) if names[i] not in without]
        return FollowedObjects(
            boxes[rows],
            scores[rows],
            tuple(names[i] for i in rows),
            ids[rows],
            tuple(trails[i] for i in rows),
            velocities[rows],
        )


def untracked(found: NamedDetections, tracks: Tracks) -> np.ndarray:
    """The indices of the detections whose centre lies in no track's box, seen from above."""
    offset = found.boxes[:, None, :2] - tracks.boxes[None, :, :2]  # [N, n, 2]
    cos, sin = np.cos(tracks.boxes[:, 6]), np.sin(tracks.boxes[:, 6])
    along = np.abs(offset[..., 0] * cos + offset[..., 1] * sin)
    across = np.abs(offset[..., 1] * cos - offset[..., 0] * sin)
    inside = (along <= tracks.boxes[:, 3] / 2) & (across <= tracks.boxes[:, 4] / 2)
    return np.flatnonzero(~inside.any(axis=1))


TURN = 0.05  # seconds after which a thread that waits looks whether it is to end


class LiveDetection:
    """Takes scans from a queue, detects and tracks, and keeps the result until it is taken.

    Use it as a context manager: its thread ends with the block.

    >>> with ScanQueue(source) as scans, LiveDetection(scans, detector) as frames:
    ...     while (frame := frames.get(timeout=1)) is not None:
    ...         show(frame)
    """

    def __init__(
        self,
        scans: ScanFeed,
        detector: Detector,
        tracked: bool = True,
        ego: bool = False,
        limit: int | None = None,
        scored: bool = False,
    ):
        """tracked: follow the objects. ego: and compensate the sensor's own motion, by kiss-icp.
        limit: end after so many scans. scored: frames have the map of the scores too.

        Raises ValueError where a package is missing.
        """
        self.statistics, self.notes = Statistics(), Tally()
        self._scans, self._detector, self._limit = scans, detector, limit
        self._ego, self._scored = ego, scored
        self._tracker: Tracker | None = None
        if tracked:
            self._begin_tracking()
        self._examined = False
        # One result waits at most: who does not take it holds the detection, and the queue drops.
        self._results: queue.Queue[LiveFrame | Trouble | BaseException | None] = queue.Queue(1)
        self._stopped = Event()
        self._thread = Thread(target=self._work, name="detection")

    def __enter__(self) -> LiveDetection:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join()

    def get(self, timeout: float) -> LiveFrame | Trouble | None:
        """The next result; None: the scans have ended.

        Raises queue.Empty when there is none within so many seconds, and what the thread raised.
        """
        result = self._results.get(timeout=timeout) if timeout else self._results.get_nowait()
        if isinstance(result, BaseException):
            raise result
        return result

    def _work(self) -> None:
        try:
            while not self._stopped.is_set() and self.statistics.frames != self._limit:
                with suppress(queue.Empty):
                    scan = self._scans.get(TURN)
                    if scan is None:
                        break
                    if isinstance(scan, Trouble):
                        self._hand_over(scan)
                    else:
                        self._detect(scan)
            self._hand_over(None)
        except BaseException as error:  # it is raised again where the results are taken
            self._hand_over(error)

    def _detect(self, scan: LiveScan) -> None:
        start = time.perf_counter()
        try:
            boxes, left_out = self._detector.detect(scan.points)
            found = boxes.named(self._detector.config.class_names)
        except ValueError as error:
            self._hand_over(Trouble(f"{scan.name}: {error}"))
            return
        end = time.perf_counter()
        self.statistics.add(end - start, end)
        if not self._examined and len(scan.points):
            self._examined = True
            left_out += self._detector.examine(scan.points)
        self.notes.add(scan.name, left_out)
        frame = self._follow(scan, found)
        if self._scored:
            frame = frame._replace(scores=self._detector.score_map(scan.points))
        self._hand_over(frame)

    def _follow(self, scan: LiveScan, found: NamedDetections) -> LiveFrame:
        if self._tracker is None:
            return LiveFrame(scan, found)
        try:
            pose = scan.pose
            if self._motion is not None:
                pose = self._motion(scan.points, scan.time)
            tracks = self._tracker.update(found, scan.time, pose)
            return LiveFrame(scan, found, tracks, self._trails.update(tracks, pose))
        except ValueError as error:  # e.g. the time went back: another recording begins
            self._hand_over(Trouble(f"{scan.name}: {error}; tracking begins anew", lost=False))
            self._begin_tracking()
            return LiveFrame(scan, found, NO_TRACKS)

    def _begin_tracking(self) -> None:
        self._tracker, self._trails = Tracker(), Trails()
        self._motion = EgoMotion() if self._ego else None

    def _hand_over(self, result: LiveFrame | Trouble | BaseException | None) -> None:
        self.statistics.troubles += isinstance(result, Trouble) and result.lost
        while not self._stopped.is_set():
            with suppress(queue.Full):
                self._results.put(result, timeout=TURN)
                return
