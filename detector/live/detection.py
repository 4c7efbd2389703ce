"""Detection and tracking in the scans of a queue, in a thread of its own."""

from __future__ import annotations

import queue
import time
from contextlib import suppress
from threading import Event, Thread

import numpy as np

from data.detections import NamedDetections
from data.live.queue import ScanQueue
from data.live.scan import LiveScan, Trouble
from data.scan_checks import Tally
from detector.detector import Detector
from detector.live.frame import LiveFrame
from detector.live.statistics import Statistics
from detector.live.trails import Trails
from detector.tracking import EgoMotion, Tracker

TURN = 0.05  # seconds after which a thread that waits looks whether it is to end
WARM_UP = 4000  # points


class LiveDetection:
    """Takes scans from a queue, detects and tracks, and keeps the result until it is taken.

    Use it as a context manager: its thread ends with the block.

    >>> with ScanQueue(source) as scans, LiveDetection(scans, detector) as frames:
    ...     while (frame := frames.get(timeout=1)) is not None:
    ...         show(frame)
    """

    def __init__(
        self,
        scans: ScanQueue,
        detector: Detector,
        tracked: bool = True,
        ego: bool = False,
        limit: int | None = None,
    ):
        """tracked: follow the objects. ego: and compensate the sensor's own motion, by kiss-icp.
        limit: end after so many scans.

        Raises ValueError where a package is missing.
        """
        self.statistics, self.notes = Statistics(), Tally()
        self._scans, self._detector, self._limit = scans, detector, limit
        self._ego = ego
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
        self.notes.add(scan.name, left_out)
        if not self._examined and len(scan.points):
            self._examined = True
            self.notes.add(scan.name, self._detector.examine(scan.points))
        self._hand_over(self._follow(scan, found))

    def _follow(self, scan: LiveScan, found: NamedDetections) -> LiveFrame:
        if self._tracker is None:
            return LiveFrame(scan, found)
        try:
            pose = self._motion(scan.points, scan.time) if self._motion is not None else None
            tracks = self._tracker.update(found, scan.time, pose)
            return LiveFrame(scan, found, tracks, self._trails.update(tracks, pose))
        except ValueError as error:  # e.g. the time went back: another recording begins
            self._hand_over(Trouble(f"{scan.name}: {error}; tracking begins anew"))
            self._begin_tracking()
            return LiveFrame(scan, found)

    def _begin_tracking(self) -> None:
        self._tracker, self._trails = Tracker(), Trails()
        self._motion = EgoMotion() if self._ego else None

    def _hand_over(self, result: LiveFrame | Trouble | BaseException | None) -> None:
        self.statistics.troubles += isinstance(result, Trouble)
        while not self._stopped.is_set():
            with suppress(queue.Full):
                self._results.put(result, timeout=TURN)
                return


def warm_up(detector: Detector) -> None:
    """Detect once in points of no meaning: the first call is slow, e.g. it compiles kernels."""
    low, high = np.array(detector.config.grid.range, np.float32).reshape(2, 3)
    further = np.ones(detector.config.points.width - 3, np.float32)
    lowest, highest = np.append(low, 0 * further), np.append(high, further)
    points = np.random.default_rng(0).uniform(lowest, highest, (WARM_UP, len(highest)))
    detector.detect(points.astype(np.float32))
