"""Tracking by detection: boxes of successive scans become tracks with an id and a velocity.

Weng et al., "3D Multi-Object Tracking: A Baseline and New Evaluation Metrics", IROS 2020: predict
every track, match it with a detection, correct it, begin and end tracks.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import NamedTuple

import numpy as np

from data.boxes import wrap_angle
from data.detections import NamedDetections
from detector.tracking import kalman
from detector.tracking.association import assign
from detector.tracking.kalman import Estimates


class Tracks(NamedTuple):
    """The tracks that a scan shows, in the order of their ids."""

    boxes: np.ndarray  # [n, 7] (x, y, z, l, w, h, yaw), LiDAR frame of this scan, smoothed
    scores: np.ndarray  # [n] of the detection in this scan
    names: tuple[str, ...]
    ids: np.ndarray  # [n] int64, from 1, never used again
    # [n, 2] metres per second along x and y of the LiDAR frame: over ground where poses are given,
    # else relative to the sensor
    velocities: np.ndarray
    ages: np.ndarray  # [n] int64, scans since the track began, 0 in its first


@dataclass(frozen=True)
class _Live:
    """The columns of all live tracks; boxes and velocities are in the world."""

    mean: np.ndarray  # [n, 9], see kalman
    covariance: np.ndarray  # [n, 9, 9]
    names: np.ndarray  # [n] str
    scores: np.ndarray  # [n] of the latest detection
    ids: np.ndarray  # [n] int64; 0 before the track is confirmed
    hits: np.ndarray  # [n] int64: scans with a detection
    ages: np.ndarray  # [n] int64: scans since the first
    seen: np.ndarray  # [n] time of the latest detection, seconds

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, rows: np.ndarray) -> _Live:
        return _Live(*(getattr(self, field.name)[rows] for field in fields(self)))

    def __add__(self, other: _Live) -> _Live:
        pairs = ((getattr(self, f.name), getattr(other, f.name)) for f in fields(self))
        return _Live(*(np.concatenate(pair) for pair in pairs))


class Tracker:
    """Follows the objects of one recording.

    >>> tracker = Tracker()
    >>> tracks = tracker.update(found, time=0.1)

    birth_score: a detection of at least this score may begin a track; weaker ones only continue
        one (Zhang et al., "ByteTrack", ECCV 2022).
    confirm: detections that a track needs before it is reported.
    max_gap: seconds without a detection after which a track ends.
    """

    def __init__(self, birth_score: float = 0.3, confirm: int = 2, max_gap: float = 0.5):
        self._birth_score, self._confirm, self._max_gap = birth_score, confirm, max_gap
        self._time = -math.inf
        self._posed: bool | None = None
        self._ids = 0
        self._live = _begin(NamedDetections(np.zeros((0, 7)), np.zeros(0), ()), 0.0)

    def update(self, found: NamedDetections, time: float, pose: np.ndarray | None = None) -> Tracks:
        """The tracks after the detections of one more scan.

        time: of the scan, seconds, later than that of the scan before. pose [4, 4]: from the LiDAR
        frame of this scan to the world, for all scans or for none. The order of the detections has
        no effect. Raises ValueError for other times and poses and for what is not finite; the
        tracks are then as they were.
        """
        self._check(found, time, pose)
        pose = np.eye(4) if pose is None else np.asarray(pose, np.float64)
        found = _in_order(found)
        found = found._replace(boxes=_moved(found.boxes, pose))
        live = self._predict(time)
        live, free = self._associate(live, found, time)
        live = self._deaths(live, time)
        live = self._births(live, found, free, time)
        self._live, self._time = live, time
        return _report(live, time, pose)

    def _check(self, found: NamedDetections, time: float, pose: np.ndarray | None) -> None:
        if not (math.isfinite(time) and time > self._time):
            raise ValueError(f"time {time} s is not after that of the scan before, {self._time} s")
        if not (np.isfinite(found.boxes).all() and np.isfinite(found.scores).all()):
            raise ValueError("a box or score is not finite")
        if self._posed not in (None, pose is not None):
            raise ValueError("pose: give it for all scans or for none")
        self._posed = pose is not None

    def _predict(self, time: float) -> _Live:
        live = self._live
        if not len(live):
            return live
        known = kalman.predict(Estimates(live.mean, live.covariance), time - self._time)
        return _Live(*known, live.names, live.scores, live.ids, live.hits, live.ages + 1, live.seen)

    def _associate(
        self, live: _Live, found: NamedDetections, time: float
    ) -> tuple[_Live, np.ndarray]:
        """The tracks after their detections, and which detections [n] are still free."""
        free_tracks = np.ones(len(live), bool)
        free = np.ones(len(found.scores), bool)
        strong = found.scores >= self._birth_score
        for candidates in (strong, ~strong):
            rows, columns = np.flatnonzero(free_tracks), np.flatnonzero(free & candidates)
            cost = _cost(live[rows], found.select(columns))
            a, b = assign(cost, 1.0)
            rows, columns = rows[a], columns[b]
            live = _correct(live, rows, found.select(columns), time)
            free_tracks[rows], free[columns] = False, False
        return live, free & strong

    def _deaths(self, live: _Live, time: float) -> _Live:
        return live[time - live.seen <= self._max_gap]

    def _births(self, live: _Live, found: NamedDetections, free: np.ndarray, time: float) -> _Live:
        live = live + _begin(found.select(np.flatnonzero(free)), time)
        new = np.flatnonzero((live.ids == 0) & (live.hits >= self._confirm))
        live.ids[new] = self._ids + 1 + np.arange(len(new))
        self._ids += len(new)
        return live


def _cost(live: _Live, found: NamedDetections) -> np.ndarray:
    apart = live.mean[:, None, :2] - found.boxes[None, :, :2]
    other = live.names[:, None] != np.array(found.names, dtype=str)[None, :]
    return np.where(other, np.inf, np.hypot(apart[..., 0], apart[..., 1]) / 3.0)


def _correct(live: _Live, rows: np.ndarray, found: NamedDetections, time: float) -> _Live:
    boxes = found.boxes.copy()
    turned = np.abs(wrap_angle(boxes[:, 6] - live.mean[rows, kalman.YAW])) > np.pi / 2
    boxes[:, 6] += np.pi * turned
    known = kalman.correct(Estimates(live.mean[rows], live.covariance[rows]), boxes)
    live.mean[rows], live.covariance[rows] = known
    live.scores[rows], live.seen[rows] = found.scores, time
    live.hits[rows] += 1
    return live


def _in_order(found: NamedDetections) -> NamedDetections:
    """Best first; ties by name and box: the order in which detections come means nothing."""
    keys = [*np.asarray(found.boxes, np.float64).T, np.array(found.names, dtype=str)]
    return found.select(np.lexsort([*keys, -np.asarray(found.scores, np.float64)]))


def _moved(boxes: np.ndarray, pose: np.ndarray) -> np.ndarray:
    """Boxes [n, 7] in another frame: pose [4, 4] takes points there."""
    moved = np.array(boxes, np.float64)
    moved[:, :3] = moved[:, :3] @ pose[:3, :3].T + pose[:3, 3]
    forward = np.stack([np.cos(boxes[:, 6]), np.sin(boxes[:, 6])], axis=1) @ pose[:2, :2].T
    moved[:, 6] = np.arctan2(forward[:, 1], forward[:, 0])
    return moved


def _begin(found: NamedDetections, time: float) -> _Live:
    known = kalman.begin(found.boxes)
    n = len(found.scores)
    return _Live(
        *known,
        names=np.array(found.names, dtype=str),
        scores=np.array(found.scores, np.float64),
        ids=np.zeros(n, np.int64),
        hits=np.ones(n, np.int64),
        ages=np.zeros(n, np.int64),
        seen=np.full(n, time),
    )


def _report(live: _Live, time: float, pose: np.ndarray) -> Tracks:
    """The confirmed tracks that were seen now, in the LiDAR frame."""
    shown = live[np.flatnonzero((live.ids > 0) & (live.seen == time))]
    shown = shown[np.argsort(shown.ids)]
    known = Estimates(shown.mean, shown.covariance)
    boxes = _moved(known.boxes, np.linalg.inv(pose))
    velocities = known.velocities @ pose[:2, :2]
    return Tracks(
        boxes, shown.scores, tuple(shown.names.tolist()), shown.ids, velocities, shown.ages
    )
