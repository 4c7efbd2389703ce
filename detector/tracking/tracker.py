"""Tracking by detection: boxes of successive scans become tracks with an id and a velocity.

Weng et al., "3D Multi-Object Tracking: A Baseline and New Evaluation Metrics", IROS 2020: predict
every track, match it with a detection, correct it; begin and end tracks.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from typing import NamedTuple

import numpy as np

from data.boxes import wrap_angle
from data.detections import NamedDetections
from detector.tracking import kalman
from detector.tracking.association import assign, distances, hungarian
from detector.tracking.kalman import YAW, Estimates
from detector.tracking.poses import check_pose, inverse, move_boxes

LARGEST_DOUBT = 5  # detections: so many of the opposite heading, and one more, turn a track


class Tracks(NamedTuple):
    """The tracks that a scan has, in the order of their ids."""

    boxes: np.ndarray  # [n, 7] (x, y, z, l, w, h, yaw), LiDAR frame of this scan, smoothed
    scores: np.ndarray  # [n] of the latest detection
    names: tuple[str, ...]
    ids: np.ndarray  # [n] int64, from 1, never used again
    # [n, 2] metres per second along x and y of the LiDAR frame: over ground where poses are given,
    # else relative to the sensor
    velocities: np.ndarray
    ages: np.ndarray  # [n] int64, scans since the track began: 0 in its first


@dataclass(frozen=True)
class _Live:
    """All live tracks as columns, oldest first; boxes and velocities are in the world."""

    mean: np.ndarray  # [n, 9], see kalman
    covariance: np.ndarray  # [n, 9, 9]
    names: np.ndarray  # [n] str
    scores: np.ndarray  # [n] of the latest detection
    ids: np.ndarray  # [n] int64; 0 for a track that is not confirmed
    hits: np.ndarray  # [n] int64: detections so far
    ages: np.ndarray  # [n] int64: scans since the first
    seen: np.ndarray  # [n] time of the latest detection, seconds
    sure: np.ndarray  # [n] time of the latest strong detection
    facing: np.ndarray  # [n] int64: detections of the track's heading less those of the opposite

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def known(self) -> Estimates:
        return Estimates(self.mean, self.covariance)

    def select(self, rows: np.ndarray) -> _Live:
        """The rows of a mask or of indices, copied."""
        return _Live(*(getattr(self, field.name)[rows] for field in fields(self)))

    def join(self, other: _Live) -> _Live:
        pairs = ((getattr(self, f.name), getattr(other, f.name)) for f in fields(self))
        return _Live(*(np.concatenate(pair) for pair in pairs))


class Tracker:
    """Follows the objects of one recording.

    >>> tracker = Tracker()
    >>> tracks = tracker.update(detections.named(class_names), time=0.1)

    birth_score: least score of a detection that begins a track; a weaker one only continues a
        confirmed track (Zhang et al., "ByteTrack", ECCV 2022).
    confirm: scans in a row, from its first, in which a track must be detected to be reported.
    max_gap: seconds without a detection of birth_score after which a confirmed track ends.
    coast: seconds for which a track without a detection is reported where it should be. The default
        bridges one scan at 10 Hz.
    """

    def __init__(
        self,
        birth_score: float = 0.5,
        confirm: int = 2,
        max_gap: float = 1.0,
        coast: float = 0.15,
    ):
        hungarian()  # without it nothing can be tracked: say so before the first scan
        self._birth_score, self._confirm = birth_score, confirm
        self._max_gap, self._coast = max_gap, coast
        self._live = _begin(NamedDetections(np.zeros((0, 7)), np.zeros(0), ()), 0.0)
        self._time = -math.inf  # of the scan before
        self._posed: bool | None = None  # whether scans come with poses
        self._ids = 0  # given so far

    def update(self, found: NamedDetections, time: float, pose: np.ndarray | None = None) -> Tracks:
        """The tracks with the detections of one more scan, in any order.

        time: of the scan in seconds, after that of the scan before. pose [4, 4]: takes points from
        the LiDAR frame of this scan to the world; for all scans or for none. A scan without
        detections is one too. Raises ValueError for other times or poses and for what is not
        finite; the tracks are then as before.
        """
        found = _checked(found)
        if not (math.isfinite(time) and time > self._time):
            raise ValueError(
                f"time {time} is not after {self._time}, that of the scan before; begin another "
                "recording with another Tracker"
            )
        if self._posed not in (None, pose is not None):
            raise ValueError("pose: give one for every scan of a recording, or for none")
        world = np.eye(4) if pose is None else check_pose(pose)

        found = _sorted(found)
        found = found._replace(boxes=move_boxes(found.boxes, world))
        live = self._live.select(time - self._live.sure <= self._max_gap)
        live = _predict(live, time - self._time)
        rows, columns = self._associate(live, found)
        strong = found.scores >= self._birth_score
        live = _correct(live, rows, found.select(columns), strong[columns], time)
        live = live.select((live.ids > 0) | (live.seen == time))  # deaths of unconfirmed tracks
        free = np.setdiff1d(np.flatnonzero(strong), columns)
        live = live.join(_begin(found.select(free), time))
        live = self._confirmed(live)
        self._live, self._time, self._posed = live, time, pose is not None
        return _report(live.select(time - live.seen <= self._coast), inverse(world))

    def _associate(self, live: _Live, found: NamedDetections) -> tuple[np.ndarray, np.ndarray]:
        """Rows of tracks and of the detections that continue them, class by class.

        Confirmed tracks choose first, then the others, both among strong detections. Confirmed
        tracks that are left choose among the weak ones.
        """
        cost = distances(live.known, found.boxes)
        cost[live.names[:, None] != np.array(found.names, dtype=str)[None]] = np.inf
        confirmed, strong = live.ids > 0, found.scores >= self._birth_score
        free, unclaimed = np.ones(len(live), bool), np.ones(len(strong), bool)
        pairs = []
        for who, what in ((confirmed, strong), (~confirmed, strong), (confirmed, ~strong)):
            rows, columns = np.flatnonzero(free & who), np.flatnonzero(unclaimed & what)
            a, b = assign(cost[np.ix_(rows, columns)])
            free[rows[a]], unclaimed[columns[b]] = False, False
            pairs.append((rows[a], columns[b]))
        rows, columns = (np.concatenate(side) for side in zip(*pairs, strict=True))
        return rows, columns

    def _confirmed(self, live: _Live) -> _Live:
        """Ids for the tracks that have been detected often enough."""
        new = np.flatnonzero((live.ids == 0) & (live.hits >= self._confirm))
        ids = live.ids.copy()
        ids[new] = self._ids + 1 + np.arange(len(new))
        self._ids += len(new)
        return replace(live, ids=ids)


def _begin(found: NamedDetections, time: float) -> _Live:
    count = len(found.scores)
    return _Live(
        *kalman.begin(found.boxes),
        names=np.array(found.names, dtype=str),
        scores=found.scores,
        ids=np.zeros(count, np.int64),
        hits=np.ones(count, np.int64),
        ages=np.zeros(count, np.int64),
        seen=np.full(count, time),
        sure=np.full(count, time),
        facing=np.ones(count, np.int64),
    )


def _predict(live: _Live, seconds: float) -> _Live:
    if not len(live):
        return live
    mean, covariance = kalman.predict(live.known, seconds)
    return replace(live, mean=mean, covariance=covariance, ages=live.ages + 1)


def _correct(
    live: _Live, rows: np.ndarray, found: NamedDetections, strong: np.ndarray, time: float
) -> _Live:
    """Tracks, of which those in rows [k] have been found again: k detections, strong or not.

    Detectors confuse front and back. The majority of the detections decides where a track heads;
    the others are turned round.
    """
    live = live.select(np.arange(len(live)))
    opposite = np.abs(wrap_angle(found.boxes[:, 6] - live.mean[rows, YAW])) > np.pi / 2
    votes = np.minimum(live.facing[rows] + np.where(opposite, -1, 1), LARGEST_DOUBT)
    turned = votes < 0
    live.mean[rows, YAW] += np.pi * turned
    live.facing[rows] = np.abs(votes)
    boxes = found.boxes.copy()
    boxes[:, 6] += np.pi * (opposite & ~turned)
    live.mean[rows], live.covariance[rows] = kalman.correct(live.select(rows).known, boxes)
    live.scores[rows], live.seen[rows] = found.scores, time
    live.sure[rows[strong]] = time
    live.hits[rows] += 1
    return live


def _report(live: _Live, to_lidar: np.ndarray) -> Tracks:
    """The confirmed tracks in the LiDAR frame."""
    shown = live.select(np.flatnonzero(live.ids > 0))
    shown = shown.select(np.argsort(shown.ids))
    boxes = move_boxes(shown.known.boxes, to_lidar)
    velocities = shown.known.velocities @ to_lidar[:2, :2].T
    names = tuple(shown.names.tolist())
    return Tracks(boxes, shown.scores, names, shown.ids, velocities, shown.ages)


def _checked(found: NamedDetections) -> NamedDetections:
    """The detections in float64. Raises ValueError for what cannot be tracked."""
    boxes, scores = np.asarray(found.boxes, np.float64), np.asarray(found.scores, np.float64)
    if not (boxes.shape == (len(scores), 7) and len(found.names) == len(scores)):
        raise ValueError(
            f"boxes {list(boxes.shape)}, scores {list(scores.shape)} and {len(found.names)} names "
            "do not fit together: [n, 7], [n] and n"
        )
    bad = ~(np.isfinite(boxes).all(axis=1) & np.isfinite(scores) & (boxes[:, 3:6] > 0).all(axis=1))
    if bad.any():
        row = int(np.flatnonzero(bad)[0])
        raise ValueError(
            f"detection {row} has box {boxes[row].tolist()} and score {scores[row]}: all must be "
            "finite, sizes above 0"
        )
    return NamedDetections(boxes, scores, found.names)


def _sorted(found: NamedDetections) -> NamedDetections:
    """Best first, ties by name and box: tracks do not depend on the order of detections."""
    names = np.array(found.names, dtype=str)
    return found.select(np.lexsort([*found.boxes.T[::-1], names, -found.scores]))
