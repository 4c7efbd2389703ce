"""Tracking by detection: boxes of successive scans become tracks with an id and a velocity.

Weng et al., "3D Multi-Object Tracking: A Baseline and New Evaluation Metrics", IROS 2020: predict
every track (Kalman filter), match it with a detection (Hungarian algorithm), correct it; begin and
end tracks.

The filter is one of constant velocity, for many boxes at once. Its state is (x, y, z, yaw, l, w, h,
vx, vy), the measurement a box and, of a network that has them, a velocity. x and y move with the
velocity; velocity, height, yaw and size are random walks, so that the noise grows with time and not
with the number of scans. Weng et al. have the same filter with noise per scan.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import NamedTuple

import numpy as np

from millisecond.data.boxes import NamedDetections, wrap_angle
from millisecond.data.files import require
from millisecond.detector.tracking.ego_motion import check_pose, inverse, move_boxes
from millisecond.ops.transfer import require_unmasked

STATE, MEASURED = 9, 7  # numbers of a state; the first of them are measured
YAW = 3
COLUMNS = [0, 1, 2, 4, 5, 6, 3]  # of a state that make a box: x, y, z, l, w, h, yaw
ORDER = [0, 1, 2, 6, 3, 4, 5]  # of a box that make a measurement: x, y, z, yaw, l, w, h

# Standard deviations of a measured x, y, z, yaw, l, w, h in metres and radians.
NOISE = np.array([0.15, 0.15, 0.2, 0.2, 0.3, 0.2, 0.2])
# Of a measured vx and vy in metres per second: more than a network errs in one scan, as its error
# stays for some scans.
VELOCITY_NOISE = 1.0
# Of z, yaw, l, w, h, vx, vy: standard deviations of the change within one second.
WALK = np.array([0.3, 0.5, 0.1, 0.1, 0.1, 1.5, 1.5])
# Of the unknown velocity of a new object. Along its heading it may be fast, the faster the longer
# the object is (per metre of length, and at most); across it is slow. Metres per second.
SPEED_PER_LENGTH, LARGEST_SPEED, SIDEWAYS = 5.0, 20.0, 3.0
WEAKEST = 0.2  # share of birth_score below which a detection is left out


class Estimates(NamedTuple):
    """What is known of n boxes."""

    mean: np.ndarray  # [n, 9]
    covariance: np.ndarray  # [n, 9, 9]

    @property
    def boxes(self) -> np.ndarray:
        """[n, 7] (x, y, z, l, w, h, yaw)."""
        return self.mean[:, COLUMNS]

    @property
    def velocities(self) -> np.ndarray:
        """[n, 2] metres per second."""
        return self.mean[:, MEASURED:]

    @classmethod
    def begin(cls, boxes: np.ndarray, velocities: np.ndarray | None = None) -> Estimates:
        """Estimates from one measurement each: boxes [n, 7], velocities [n, 2]."""
        mean = np.zeros((len(boxes), STATE))
        mean[:, COLUMNS] = boxes
        covariance = np.zeros((len(boxes), STATE, STATE))
        covariance[:, range(MEASURED), range(MEASURED)] = NOISE**2
        along = np.minimum(SPEED_PER_LENGTH * boxes[:, 3], LARGEST_SPEED) ** 2
        heading = np.stack([np.cos(boxes[:, 6]), np.sin(boxes[:, 6])], axis=1)  # [n, 2]
        stretch = (along - SIDEWAYS**2)[:, None, None] * heading[:, :, None] * heading[:, None, :]
        covariance[:, MEASURED:, MEASURED:] = stretch + SIDEWAYS**2 * np.eye(2)
        return cls(mean, covariance)._measured(velocities)

    def predict(self, seconds: float) -> Estimates:
        """The estimates after a time without measurements. Two steps give the same as one."""
        move = np.eye(STATE)
        move[[0, 1], [7, 8]] = seconds
        mean = self.mean @ move.T
        return Estimates(mean, move @ self.covariance @ move.T + _process_noise(seconds))

    def correct(self, boxes: np.ndarray, velocities: np.ndarray | None = None) -> Estimates:
        """The estimates after one measurement each: boxes [n, 7], velocities [n, 2]."""
        error = boxes[:, ORDER] - self.mean[:, :MEASURED]
        error[:, YAW] = wrap_angle(error[:, YAW])
        shared = self.covariance[:, :MEASURED]  # [n, 7, 9] of measurement and state
        expected = self.covariance[:, :MEASURED, :MEASURED] + np.diag(NOISE**2)
        gain = np.linalg.solve(expected, shared).transpose(0, 2, 1)  # [n, 9, 7]
        mean = self.mean + (gain @ error[:, :, None])[:, :, 0]
        covariance = self.covariance - gain @ shared
        known = Estimates(mean, (covariance + covariance.transpose(0, 2, 1)) / 2)
        return known._measured(velocities)

    def _measured(self, velocities: np.ndarray | None) -> Estimates:
        """The estimates after velocities [n, 2] were measured, NaN where one was not."""
        if velocities is None:
            return self
        known = np.isfinite(velocities).all(axis=1)[:, None]
        error = np.where(known, velocities - self.velocities, 0)
        shared = self.covariance[:, MEASURED:]  # [n, 2, 9] of measurement and state
        expected = shared[:, :, MEASURED:] + VELOCITY_NOISE**2 * np.eye(2)
        gain = np.linalg.solve(expected, shared).transpose(0, 2, 1) * known[:, :, None]  # [n, 9, 2]
        mean = self.mean + (gain @ error[:, :, None])[:, :, 0]
        covariance = self.covariance - gain @ shared
        return Estimates(mean, (covariance + covariance.transpose(0, 2, 1)) / 2)


def _process_noise(seconds: float) -> np.ndarray:
    """[9, 9] covariance that random walks add; the velocity's walk moves x and y too (Bar-Shalom
    et al., "Estimation with Applications to Tracking and Navigation", 2001, 6.2.2)."""
    noise = np.diag(np.concatenate([np.zeros(2), WALK**2 * seconds]))
    for place, velocity in ((0, 7), (1, 8)):
        rate = WALK[velocity - 2] ** 2
        noise[place, place] = rate * seconds**3 / 3
        noise[place, velocity] = noise[velocity, place] = rate * seconds**2 / 2
    return noise


MARGIN = 0.5  # metres around a box
DEVIATIONS = 2.0  # of the predicted position


def hungarian() -> Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]:
    """SciPy's solver. Raises ValueError with the line to type where SciPy is missing."""
    return require("scipy.optimize", "tracking").linear_sum_assignment


def assign(cost: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Pairs (rows, columns) of a matrix [n, m] (Hungarian algorithm): as many as possible, of the
    least total cost. What costs infinitely much is never a pair."""
    allowed = np.isfinite(cost)
    if not allowed.any():
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    # One forbidden pair costs more than all allowed ones together.
    forbidden = 1 + min(cost.shape) * cost[allowed].max()
    rows, columns = hungarian()(np.where(allowed, cost, forbidden))
    kept = allowed[rows, columns]
    return rows[kept], columns[kept]


def distances(known: Estimates, boxes: np.ndarray) -> np.ndarray:
    """[n, m] metres from n predicted boxes to the centres of boxes [m, 7] seen from above.

    Infinite outside of an ellipse along the predicted box: its half axes are half of the length
    and of the width, a margin, and two standard deviations of the position in their direction. So
    a new object, whose speed is unknown, may be found again far along its heading, but not aside.
    """
    mean, spread = known.mean, known.covariance[:, :2, :2]
    offsets = boxes[None, :, :2] - mean[:, None, :2]  # [n, m, 2]
    cos, sin = np.cos(mean[:, 3]), np.sin(mean[:, 3])
    inside = np.zeros(offsets.shape[:2])
    for axis, size in ((np.stack([cos, sin], axis=1), 4), (np.stack([-sin, cos], axis=1), 5)):
        deviation = np.sqrt(np.einsum("ni,nij,nj->n", axis, spread, axis))
        reach = mean[:, size] / 2 + MARGIN + DEVIATIONS * deviation
        inside += (np.einsum("nmi,ni->nm", offsets, axis) / reach[:, None]) ** 2
    return np.where(inside <= 1, np.hypot(offsets[..., 0], offsets[..., 1]), np.inf)


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

    def named(self) -> NamedDetections:
        """The same as detections, without ids and ages."""
        return NamedDetections(self.boxes, self.scores, self.names, self.velocities)


@dataclass(frozen=True)
class _Live:
    """All live tracks as columns, oldest first; boxes and velocities are in the world."""

    mean: np.ndarray  # [n, 9], see Estimates
    covariance: np.ndarray  # [n, 9, 9]
    names: np.ndarray  # [n] str
    scores: np.ndarray  # [n] of the latest detection
    ids: np.ndarray  # [n] int64; 0 for a track that is not confirmed
    hits: np.ndarray  # [n] int64: detections so far
    ages: np.ndarray  # [n] int64: scans since the first
    seen: np.ndarray  # [n] time of the latest detection, seconds
    sure: np.ndarray  # [n] time of the latest strong detection
    facing: np.ndarray  # [n] int64: detections of the track's heading less opposite ones

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
        confirmed track (Zhang et al., "ByteTrack", ECCV 2022), one below a fifth of it nothing.
    confirm: scans in a row, from its first, in which a track must be detected to be reported.
    max_gap: seconds without a detection of birth_score after which a confirmed track ends.
    coast: seconds for which a track without a detection is reported where it should be. The default
        bridges one scan at 10 Hz.

    Raises ValueError for values out of their range, and where SciPy is missing.
    """

    def __init__(
        self, birth_score: float = 0.5, confirm: int = 2, max_gap: float = 1.0, coast: float = 0.15
    ):
        if not 0 <= birth_score <= 1:
            raise ValueError(f"birth_score: expected a score from 0 to 1, got {birth_score}")
        if isinstance(confirm, bool) or not isinstance(confirm, int | np.integer) or confirm < 1:
            raise ValueError(f"confirm: expected a whole number of scans from 1, got {confirm}")
        for name, seconds in (("max_gap", max_gap), ("coast", coast)):
            if not 0 <= seconds < math.inf:
                raise ValueError(f"{name}: expected finite seconds from 0, got {seconds}")
        hungarian()  # without it nothing can be tracked: say so before the first scan
        self._birth_score, self._confirm = birth_score, confirm
        self._max_gap, self._coast = max_gap, coast
        self._live = _begin(NamedDetections(np.zeros((0, 7)), np.zeros(0), ()), 0.0)
        self._time = -math.inf  # of the scan before
        self._posed: bool | None = None  # whether scans come with poses
        self._ids = 0  # given so far

    def update(self, found: NamedDetections, time: float, pose: np.ndarray | None = None) -> Tracks:
        """The tracks with the detections of one more scan, in any order.

        time: of the scan in seconds, after the scan before. pose [4, 4]: takes points from the
        LiDAR frame of this scan to the world; for all scans or for none. A scan without
        detections is one too. Velocities of detections are over ground, NaN where unknown; with
        poses they are measurements too, without poses they are not used. Raises ValueError for
        other times or poses and for what is not finite; the tracks are then as before.
        """
        found = _checked(found)
        if not (math.isfinite(time) and time > self._time):
            raise ValueError(
                f"time {time} is not after {self._time}, the time of the scan before; begin "
                "another recording with another Tracker"
            )
        if self._posed not in (None, pose is not None):
            raise ValueError("pose: give one for every scan of a recording, or for none")
        world = np.eye(4) if pose is None else check_pose(pose)

        # best first, ties by name and box: tracks do not depend on the order of detections
        names = np.array(found.names, dtype=str)
        order = np.lexsort([*found.boxes.T[::-1], names, -found.scores])
        found = found.select(order[found.scores[order] >= WEAKEST * self._birth_score])
        velocities = found.velocities
        if velocities is not None:
            velocities = None if pose is None else velocities @ world[:2, :2].T
        found = found._replace(boxes=move_boxes(found.boxes, world), velocities=velocities)
        live = self._live.select(time - self._live.sure <= self._max_gap)
        if len(live):
            mean, covariance = live.known.predict(time - self._time)
            live = replace(live, mean=mean, covariance=covariance, ages=live.ages + 1)
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
        *Estimates.begin(found.boxes, found.velocities),
        names=np.array(found.names, dtype=str),
        scores=found.scores,
        ids=np.zeros(count, np.int64),
        hits=np.ones(count, np.int64),
        ages=np.zeros(count, np.int64),
        seen=np.full(count, time),
        sure=np.full(count, time),
        facing=np.ones(count, np.int64),
    )


def _correct(
    live: _Live, rows: np.ndarray, found: NamedDetections, strong: np.ndarray, time: float
) -> _Live:
    """The tracks, after those in rows [k] have been found again: k detections, strong or not.

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
    known = live.select(rows).known.correct(boxes, found.velocities)
    live.mean[rows], live.covariance[rows] = known
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
    require_unmasked("boxes", found.boxes)
    require_unmasked("scores", found.scores)
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
    velocities = found.velocities
    if velocities is not None:
        require_unmasked("velocities", velocities)
        velocities = np.asarray(velocities, np.float64)
        if velocities.shape != (len(scores), 2):
            raise ValueError(
                f"velocities {list(velocities.shape)} do not fit {len(scores)} boxes: [n, 2]"
            )
    return NamedDetections(boxes, scores, found.names, velocities)
