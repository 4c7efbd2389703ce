"""The objects of a whole recording, from the detections of its scans: what is known later mends
what was seen earlier.

Qi et al., "Offboard 3D Object Detection from Point Cloud Sequences", CVPR 2021: detect, follow,
fuse the scans of standing objects, smooth moving ones. Here no network does the last two steps, but
weighted means and the filter of `tracker.py`, which looks at both directions of time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch

from millisecond.data.boxes import NamedDetections, points_in_boxes, wrap_angle
from millisecond.data.metric.matching import box_iou
from millisecond.detector.tracking.ego_motion import inverse, move_boxes
from millisecond.detector.tracking.tracker import MEASURED, STATE, YAW, Estimates, assign, distances
from millisecond.ops import iou_bev

SAME = 0.3  # IoU from above, from which on boxes of one class in one scan are one object
BIRTH = 0.3  # least score of a detection that begins a track
MAX_GAP = 1.0  # seconds without a detection after which a track is not continued
FEWEST = 3  # detections of an object
SURE = 0.35  # confidence from which on an object is labelled
RIVAL = 0.2  # mean IoU from above, from which on two objects cannot both be there
POINTS = 10  # in a box: so many show that an object is there, before and after its detections
GROUND = 0.3  # metres above the bottom of a box in which points may be of the ground
COASTING = 0.5  # seconds for which points alone continue an object that moves


class Observed(NamedTuple):
    """A scan of a recording, by what was detected in it."""

    found: NamedDetections  # boxes [n, 7] in the LiDAR frame
    points: np.ndarray  # [n] in each box
    time: float  # seconds, after the time of the scan before
    pose: np.ndarray  # [4, 4] from the LiDAR frame to the world


@dataclass(frozen=True)
class Object:
    """An object in the S scans of a recording."""

    name: str
    boxes: np.ndarray  # [S, 7] in the world, also where nothing shows it
    scores: np.ndarray  # [S] of its detections, 0 where there is none
    points: np.ndarray  # [S] in its box, without those near the ground
    standing: bool
    spread: float  # metres from its boxes to its detections, root of the weighted mean square

    @property
    def present(self) -> np.ndarray:
        """[S] bool: all scans from its first detection to its last, and before and after these as
        long as points show it."""
        first, last = np.flatnonzero(self.scores)[[0, -1]]
        shown = self.points >= POINTS
        shown[first : last + 1] = True
        absent = np.flatnonzero(~shown)
        shown[: absent[absent < first].max(initial=-1) + 1] = False
        shown[absent[absent > last].min(initial=len(shown)) :] = False
        return shown

    @property
    def confidence(self) -> float:
        """Mean of the scores in all scans that have it, from 0 to 1, weighted by the square root
        of the points: a detector is right about what it sees well."""
        weights = np.sqrt(self.points + 1e-9) * self.present
        return float((weights * self.scores).sum() / weights.sum())

    @property
    def coherent(self) -> bool:
        """Whether its detections lie near its boxes, and are enough."""
        enough = np.count_nonzero(self.scores) >= FEWEST
        return bool(enough and self.spread < self.boxes[0, 4] / 2)


def merge_views(views: Sequence[NamedDetections]) -> NamedDetections:
    """What views of one scan show together, all turned back to the scan. Overlapping boxes of a
    class, at most one of each view, become their mean by score; the score is the mean over all
    views (Solovyev et al., "Weighted boxes fusion", Image and Vision Computing 2021)."""
    boxes = np.concatenate([np.asarray(view.boxes, np.float64) for view in views]).reshape(-1, 7)
    scores = np.concatenate([np.asarray(view.scores, np.float64) for view in views])
    names = np.array([name for view in views for name in view.names], dtype=str)
    view_of = np.repeat(np.arange(len(views)), [len(view.scores) for view in views])
    overlap = iou_bev(torch.from_numpy(boxes), torch.from_numpy(boxes)).numpy()
    overlap = np.where(names[:, None] == names, overlap, 0)
    free, groups = np.ones(len(scores), bool), []
    for row in np.lexsort([*boxes.T, names, -scores]):
        if not free[row]:
            continue
        group = [row]
        for view in range(len(views)):
            near = np.where(free & (view_of == view) & (view != view_of[row]), overlap[row], 0)
            if near.max() >= SAME:
                group.append(int(near.argmax()))
        free[group] = False
        groups.append(group)
    return NamedDetections(
        np.array([_mean_box(boxes[rows], scores[rows]) for rows in groups]).reshape(-1, 7),
        np.array([scores[rows].sum() / len(views) for rows in groups]),
        tuple(names.item(rows[0]) for rows in groups),
    )


def _mean_box(boxes: np.ndarray, weights: np.ndarray) -> np.ndarray:
    weights = weights + 1e-12  # all may be 0
    mean = np.average(boxes, axis=0, weights=weights)
    mean[6] = mean_heading(boxes[:, 6], weights)
    return mean


def mean_heading(yaws: np.ndarray, weights: np.ndarray) -> float:
    """Headings [n], some perhaps turned by pi -> one, of the side that more weight has.
    The axis is a mean of doubled angles (Mardia and Jupp, "Directional Statistics", 2000, 9.1)."""
    axis = np.angle((weights * np.exp(2j * yaws)).sum()) / 2
    ahead = (weights * np.cos(yaws - axis)).sum() >= 0
    return float(wrap_angle(axis if ahead else axis + np.pi))


def weighted_median(values: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """[n, k], weights [n] -> [k]: the values below which half of the weight is."""
    order = np.argsort(values, axis=0, kind="stable")
    below = np.cumsum(weights[order], axis=0)
    middle = (below < below[-1] / 2).sum(axis=0)
    return np.take_along_axis(values, np.take_along_axis(order, middle[None], 0), 0)[0]


class _Seen(NamedTuple):
    """Detections of one class in all scans, or of one track."""

    boxes: np.ndarray  # [d, 7] in the world
    scores: np.ndarray  # [d]
    scans: np.ndarray  # [d] number of the scan
    weights: np.ndarray  # [d] how much each tells of the object

    def select(self, rows: np.ndarray) -> _Seen:
        return _Seen(*(column[rows] for column in self))


def objects_of(scans: Sequence[Observed], points_of: Callable[[int], np.ndarray]) -> list[Object]:
    """All objects that may be there, the surest first; the same scans give the same bits.

    points_of: gives the points [P, 3 or more] of a scan by its number, LiDAR frame.
    """
    times = np.array([scan.time for scan in scans])
    sensor = np.array([scan.pose[:2, 3] for scan in scans])
    boxes = np.concatenate([move_boxes(scan.found.boxes, scan.pose) for scan in scans])
    scores = np.concatenate([scan.found.scores for scan in scans])
    names = np.array([name for scan in scans for name in scan.found.names], dtype=str)
    numbers = np.repeat(np.arange(len(scans)), [len(scan.points) for scan in scans])
    weights = scores * np.sqrt(1 + np.concatenate([scan.points for scan in scans]))
    seen, objects = _Seen(boxes, scores, numbers, weights), []
    for name in np.unique(names).tolist():
        own = seen.select(names == name)
        tracks = [own.select(rows) for rows in tracks_of(own, times)]
        objects += [_object(name, track, times, sensor) for track in _joined(tracks)]
    objects = _with_points(objects, scans, points_of)
    objects.sort(key=lambda one: (-one.confidence, one.name, one.boxes[0].tolist()))
    return without_rivals(objects)


def tracks_of(seen: _Seen, times: np.ndarray) -> list[np.ndarray]:
    """Rows of the detections of each track, in the order of time: followed forward, then backward
    from there, which finds the weak detections before the first strong one."""
    owner = _followed(seen, times, np.full(len(seen.scores), -1))
    backward = seen._replace(scans=len(times) - 1 - seen.scans)
    owner = _followed(backward, times[-1] - times[::-1], owner)
    return [np.flatnonzero(owner == track) for track in np.unique(owner[owner >= 0])]


def _followed(seen: _Seen, times: np.ndarray, owner: np.ndarray) -> np.ndarray:
    """Track [d] of each detection, -1 for none. Detections that have one keep it, unless it ends
    where another track arrives: then the two are one."""
    owner, next_id = owner.copy(), owner.max(initial=-1) + 1
    ids, last, known = np.zeros(0, np.int64), np.zeros(0), Estimates.begin(np.zeros((0, 7)))
    for scan, time in enumerate(times):
        kept = time - last <= MAX_GAP
        ids, last = ids[kept], last[kept]
        known = Estimates(known.mean[kept], known.covariance[kept])
        if scan:
            known = known.predict(time - times[scan - 1])
        rows = np.flatnonzero(seen.scans == scan)
        hit = np.full(len(ids), -1)  # row of each track's detection
        for place in np.flatnonzero(np.isin(ids, owner[rows])):
            hit[place] = rows[owner[rows] == ids[place]][0]
        cost = distances(known, seen.boxes[rows])
        for place, column in np.argwhere(np.isfinite(cost)):
            if not _can_join(seen, owner, ids[place], owner[rows[column]], hit, rows[column]):
                cost[place, column] = np.inf
        for strong in (True, False):  # strong detections are chosen first, as in `Tracker`
            columns = np.flatnonzero((seen.scores[rows] >= BIRTH) == strong)
            free = np.flatnonzero(hit < 0)
            for a, b in zip(*assign(cost[np.ix_(free, columns)]), strict=True):
                row, track = rows[columns[b]], ids[free[a]]
                if owner[row] >= 0:
                    owner[owner == owner[row]] = track
                owner[row], hit[free[a]] = track, row
        found = np.flatnonzero(hit >= 0)
        boxes = seen.boxes[hit[found]]
        boxes[:, 6] = _alike(boxes[:, 6], known.mean[found, YAW])
        corrected = Estimates(known.mean[found], known.covariance[found]).correct(boxes)
        known.mean[found], known.covariance[found], last[found] = *corrected, time
        new = np.setdiff1d(rows, hit)
        new = new[(owner[new] >= 0) | (seen.scores[new] >= BIRTH)]
        born = new[owner[new] < 0]
        owner[born] = next_id + np.arange(len(born))
        next_id += len(born)
        ids, last = np.append(ids, owner[new]), np.append(last, np.full(len(new), time))
        begun = Estimates.begin(seen.boxes[new])
        known = Estimates(*(np.concatenate(pair) for pair in zip(known, begun, strict=True)))
    return owner


def _can_join(
    seen: _Seen, owner: np.ndarray, track: int, other: int, hit: np.ndarray, row: int
) -> bool:
    """Whether a track can take a detection: a free one, or the end of a track that is not in any of
    its scans."""
    if row in hit:
        return False
    own, others = seen.scans[owner == track], seen.scans[owner == other]
    return other < 0 or not np.isin(own, others).any()


def _alike(yaws: np.ndarray, others: np.ndarray) -> np.ndarray:
    """The headings, turned by pi where the others point to the opposite side."""
    return np.where(np.cos(yaws - others) < 0, yaws + np.pi, yaws)


def _joined(tracks: list[_Seen]) -> list[_Seen]:
    """Tracks that stand in one place, one after the other, are one: something hid the object."""
    joined: list[_Seen] = []
    for track in sorted(tracks, key=lambda track: -track.weights.sum()):
        for place, other in enumerate(joined):
            both = _Seen(*(np.concatenate(pair) for pair in zip(other, track, strict=True)))
            apart = len(np.unique(both.scans)) == len(both.scans)
            if apart and _stands(track) and _stands(other):
                one, two = (_mean_box(part.boxes, part.weights) for part in (track, other))
                if box_iou(one[None], two[None])[0][0] >= SAME:
                    joined[place] = both.select(np.argsort(both.scans, kind="stable"))
                    break
        else:
            joined.append(track)
    return joined


def _stands(track: _Seen) -> bool:
    """Whether it moves by less than half of its width from end to end, on a line through it."""
    times, width = track.scans - np.average(track.scans, weights=track.weights), track.boxes[:, 4]
    if len(times) < FEWEST:
        return True
    slope = (track.weights * times) @ track.boxes[:, :2] / (track.weights @ times**2)
    return bool(np.hypot(*slope) * np.ptp(times) < np.median(width) / 2)


def _object(name: str, track: _Seen, times: np.ndarray, sensor: np.ndarray) -> Object:
    """An object of one size. What stands has one box, the mean of all; what moves, smoothed ones
    that head where it goes."""
    size = weighted_median(track.boxes[:, 3:6], track.weights)
    boxes, standing = resized(track.boxes, size, sensor[track.scans]), _stands(track)
    if standing:
        smoothed = np.tile(_mean_box(boxes, track.weights), (len(times), 1))
    else:
        for row in range(1, len(boxes)):
            boxes[row, 6] = _alike(boxes[row, 6], boxes[row - 1, 6])
        ahead = np.stack([np.cos(boxes[:, 6]), np.sin(boxes[:, 6])], axis=1)
        moves = np.gradient(boxes[:, :2], axis=0)
        boxes[:, 6] += np.pi * ((ahead * moves).sum() < 0)
        smoothed = smooth(boxes, track.scans, times)
    scores = np.zeros(len(times))
    scores[track.scans] = track.scores
    off = smoothed[track.scans, :2] - boxes[:, :2]
    spread = float(np.sqrt(np.average((off**2).sum(axis=1), weights=track.weights)))
    return Object(name, smoothed, scores, np.zeros(len(times)), standing, spread)


def resized(boxes: np.ndarray, size: np.ndarray, sensor: np.ndarray) -> np.ndarray:
    """Boxes [n, 7] with another size [3]. The sides that face the sensor at [n, 2] stay where they
    were seen, and so does the bottom."""
    moved = boxes.copy()
    away = sensor - boxes[:, :2]
    for axis, turn in ((0, 0.0), (1, np.pi / 2)):
        ahead = np.stack([np.cos(boxes[:, 6] + turn), np.sin(boxes[:, 6] + turn)], axis=1)
        side = ((away * ahead).sum(axis=1) / (boxes[:, 3 + axis] / 2)).clip(-1, 1)
        moved[:, :2] += (side * (boxes[:, 3 + axis] - size[axis]) / 2)[:, None] * ahead
    moved[:, 2] += (size[2] - boxes[:, 5]) / 2
    moved[:, 3:6] = size
    return moved


def smooth(boxes: np.ndarray, scans: np.ndarray, times: np.ndarray) -> np.ndarray:
    """Boxes [n, 7] of a moving object of one size, in some of S scans -> [S, 7]: the tracker's
    filter forward, then backward the smoother of Rauch, Tung and Striebel ("Maximum likelihood
    estimates of linear dynamic systems", AIAA Journal 1965). Beyond both ends it goes on at the
    velocity there."""
    known, ahead = [Estimates.begin(boxes[:1])], []
    row_of = {int(scan): row for row, scan in enumerate(scans)}
    inside = range(int(scans[0]), int(scans[-1]) + 1)
    for scan in inside[1:]:
        ahead.append(known[-1].predict(times[scan] - times[scan - 1]))
        row = row_of.get(scan)
        known.append(ahead[-1] if row is None else ahead[-1].correct(boxes[row : row + 1]))
    states = [known[-1].mean[0]]
    for place in range(len(ahead) - 1, -1, -1):
        now, then = known[place], ahead[place]
        move = np.eye(STATE)
        move[[0, 1], [MEASURED, MEASURED + 1]] = times[inside[place + 1]] - times[inside[place]]
        gain = np.linalg.solve(then.covariance[0], move @ now.covariance[0]).T
        states.append(now.mean[0] + gain @ (states[-1] - then.mean[0]))
    nearest = np.arange(len(times)).clip(inside[0], inside[-1])
    state = np.array(states[::-1])[nearest - inside[0]]
    state[:, :2] += state[:, MEASURED:] * (times - times[nearest])[:, None]
    return Estimates(state, np.zeros((len(times), STATE, STATE))).boxes


def _with_points(
    objects: Sequence[Object], scans: Sequence[Observed], points_of: Callable[[int], np.ndarray]
) -> list[Object]:
    """The objects with the points in their boxes."""
    counts = np.zeros((len(objects), len(scans)), np.int64)
    times = np.array([scan.time for scan in scans])
    ends = [times[np.flatnonzero(one.scores)[[0, -1]]] for one in objects]
    for number, scan in enumerate(scans):
        near = [
            row
            for row, (one, (first, last)) in enumerate(zip(objects, ends, strict=True))
            if one.standing or first - COASTING <= scan.time <= last + COASTING
        ]
        boxes = np.array([objects[row].boxes[number] for row in near]).reshape(-1, 7)
        boxes = move_boxes(boxes, inverse(scan.pose))
        boxes[:, 2] += GROUND / 2
        boxes[:, 5] = np.maximum(boxes[:, 5] - GROUND, 0)
        counts[near, number] = points_in_boxes(points_of(number), boxes).sum(axis=1)
    return [replace(one, points=own) for one, own in zip(objects, counts, strict=True)]


def without_rivals(objects: Sequence[Object], known: Sequence[Object] = ()) -> list[Object]:
    """All that are known, then the others: of two in one place at one time, of any class, the
    first stays."""
    kept = [*known]
    for one in objects:
        for other in kept:
            both = one.present & other.present
            if both.any() and box_iou(one.boxes[both], other.boxes[both])[0].mean() >= RIVAL:
                break
        else:
            kept.append(one)
    return kept
