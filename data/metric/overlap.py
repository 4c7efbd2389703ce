"""Average precision in the LiDAR frame, for any sensor: a match by overlap (KITTI's rules, AP R40),
or by the distance between centres (nuScenes' AP).

Caesar et al., "nuScenes: a multimodal dataset for autonomous driving", CVPR 2020, section 3.1, and
the benchmark's development kit, nuscenes/eval/detection/algo.py (`accumulate`, `calc_ap`), version
1.2.0.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from millisecond.data.boxes import NamedDetections, points_in_boxes
from millisecond.data.frame import Frame
from millisecond.data.metric.kitti import OPERATING_SCORE
from millisecond.data.metric.matching import (
    COUNTS,
    NEUTRAL,
    OUT,
    Matcher,
    average,
    box_iou,
    recall_thresholds,
)
from millisecond.data.metric.reliability import Judged


@dataclass(frozen=True)
class Boxes:
    """The objects or the detections of n_frames frames, frame after frame."""

    n_frames: int
    frames: np.ndarray  # [n] int64: index of the box's frame, ascending
    names: np.ndarray  # [n] str
    boxes: np.ndarray  # [n, 7] float64, LiDAR frame
    points: np.ndarray  # [n] int64: points of the scan inside the box
    scores: np.ndarray  # [n] float64; zeros for objects

    @classmethod
    def of(cls, frames: Sequence[FrameBoxes]) -> Boxes:
        """Raises ValueError where the columns of a frame are not equally long."""
        sizes = [len(frame.boxes) for frame in frames]
        for number, (frame, size) in enumerate(zip(frames, sizes, strict=True)):
            if not len(frame.names) == len(frame.points) == len(frame.scores) == size:
                raise ValueError(
                    f"frame number {number}: {size} boxes, {len(frame.names)} names, "
                    f"{len(frame.points)} numbers of points and {len(frame.scores)} scores"
                )
        names = [str(name) for frame in frames for name in frame.names]
        flat = [np.zeros((0, 7)), *(np.asarray(frame.boxes, np.float64) for frame in frames)]
        return cls(
            n_frames=len(sizes),
            frames=np.repeat(np.arange(len(sizes)), sizes),
            names=np.array(names, dtype=str),
            boxes=np.concatenate(flat),
            points=np.concatenate([np.zeros(0, np.int64), *(f.points for f in frames)]),
            scores=np.concatenate([np.zeros(0), *(f.scores for f in frames)]),
        )

    @property
    def distances(self) -> np.ndarray:
        """[n] metres from the sensor to the centre, seen from above."""
        return np.hypot(self.boxes[:, 0], self.boxes[:, 1])

    def rows(self) -> list[np.ndarray]:
        """For each frame, the rows that are its own."""
        starts = np.searchsorted(self.frames, np.arange(self.n_frames + 1))
        return [np.arange(a, b) for a, b in pairwise(starts)]


class FrameBoxes(NamedTuple):
    """The objects or the detections of one frame."""

    boxes: np.ndarray  # [n, 7] LiDAR frame
    names: Sequence[str]  # n
    points: np.ndarray  # [n] int64: points of the scan inside the box
    scores: np.ndarray  # [n]; zeros for objects
    beams: Sequence[int] = ()  # n: beams with a point inside; none for detections


def objects_of(frame: Frame, features: Sequence[str] = ()) -> FrameBoxes:
    """The labelled objects of a frame.

    features: of the points; `ring` names the beam. Without it the beams on an object are estimated:
    elevations 0.12 degrees apart are of two. Where elevations run into each other, on objects that
    are near, that is too few.
    """
    x, y, z = frame.points[:, :3].astype(np.float64).T
    beam, apart = np.degrees(np.arctan2(z, np.hypot(x, y))), 0.12
    if "ring" in features:
        beam, apart = frame.points[:, features.index("ring") - len(features)], 0.5
    inside = points_in_boxes(frame.points, frame.boxes)
    beams = [(np.diff(np.sort(beam[row])) >= apart).sum() + row.any() for row in inside]
    counts = inside.sum(axis=1, dtype=np.int64)
    return FrameBoxes(frame.boxes, frame.names, counts, np.zeros(len(counts)), beams)


def detections_in(frame: Frame, found: NamedDetections) -> FrameBoxes:
    """The detections of a frame."""
    counts = points_in_boxes(frame.points, found.boxes).sum(axis=1, dtype=np.int64)
    return FrameBoxes(found.boxes, found.names, counts, np.asarray(found.scores, np.float64))


class Group(NamedTuple):
    """Boxes of a range of distances, or of numbers of points inside: low <= value < high."""

    title: str
    by: str  # "distance" (metres from the sensor) or "points"
    low: float
    high: float

    def holds(self, boxes: Boxes) -> np.ndarray:
        """[n] bool."""
        values = boxes.distances if self.by == "distance" else boxes.points
        return (values >= self.low) & (values < self.high)


ALL = Group("all", "distance", 0, math.inf)


def rings(edges: Sequence[float]) -> list[Group]:
    """Groups by distance: 0 to the first edge, ..., from the last edge on. Raises ValueError for
    edges that are not positive and ascending."""
    bounds = _bounds(0, edges, "--rings", "distances in metres")
    titles = [f"{a:g}-{b:g} m" if b < math.inf else f"{a:g}+ m" for a, b in bounds]
    return [Group(title, "distance", *ends) for title, ends in zip(titles, bounds, strict=True)]


def point_groups(edges: Sequence[int]) -> list[Group]:
    """Groups by points in the box: 1 to below the first edge, and so on; errors as `rings`."""
    bounds = _bounds(1, edges, "--points", "numbers of points over 1")
    titles = [f"{a:g}-{b - 1:g} points" if b < math.inf else f"{a:g}+ points" for a, b in bounds]
    return [Group(title, "points", *ends) for title, ends in zip(titles, bounds, strict=True)]


def _bounds(
    first: float, edges: Sequence[float], option: str, what: str
) -> list[tuple[float, float]]:
    ends = [float(first), *map(float, edges), math.inf]
    if not all(a < b for a, b in pairwise(ends)):
        told = " ".join(f"{edge:g}" for edge in edges)
        raise ValueError(f"{option} {told}: give {what}, ascending")
    return list(pairwise(ends))


FARTHEST = 4.0  # metres between centres: the largest that the nuScenes metric asks for


class NearPairs(NamedTuple):
    """Every detection that touches an object of its frame, or whose centre is within 4 m of it."""

    frames: np.ndarray  # [P] int64, ascending
    truth: np.ndarray  # [P] int64: row of the objects
    detections: np.ndarray  # [P] int64: row of the detections
    bev: np.ndarray  # [P] float64: IoU from above
    volume: np.ndarray  # [P] float64: IoU in 3-D
    distance: np.ndarray  # [P] float64: metres between the centres, seen from above

    def select(self, kept: np.ndarray) -> NearPairs:
        """The pairs of a mask or of indices."""
        return NearPairs(*(column[kept] for column in self))


def find_pairs(truth: Boxes, detections: Boxes) -> NearPairs:
    """The pairs of all frames, by frame, then by object, then by detection."""
    rows, columns = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    for objects, candidates in zip(truth.rows(), detections.rows(), strict=True):
        boxes, others = truth.boxes[objects, None], detections.boxes[None, candidates]
        apart = np.hypot(boxes[..., 0] - others[..., 0], boxes[..., 1] - others[..., 1])
        reach = np.hypot(boxes[..., 3], boxes[..., 4]) + np.hypot(others[..., 3], others[..., 4])
        a, b = np.nonzero(apart <= np.maximum(FARTHEST, reach / 2))
        rows.append(objects[a])
        columns.append(candidates[b])
    a, b = np.concatenate(rows), np.concatenate(columns)
    one, other = truth.boxes[a], detections.boxes[b]
    bev, volume = box_iou(one, other)
    distance = np.hypot(one[:, 0] - other[:, 0], one[:, 1] - other[:, 1])
    return NearPairs(truth.frames[a], a, b, bev, volume, distance)


def match_greedily(pairs: NearPairs, order: np.ndarray) -> np.ndarray:
    """[P] bool: the pairs that are taken when each, in the given order of rows, takes its object
    and its detection where both are still free. Rows that are not in the order are not taken."""
    taken = np.zeros(len(pairs.frames), bool)
    objects: set[int] = set()
    found: set[int] = set()
    truth, detections = pairs.truth.tolist(), pairs.detections.tolist()
    for row in order.tolist():
        if truth[row] not in objects and detections[row] not in found:
            taken[row] = True
            objects.add(truth[row])
            found.add(detections[row])
    return taken


class OverlapMatches:
    """The detections of one class, matched by their overlap with objects.

    The rules are KITTI's (`data.metric.matching`) without its rules on the image. An object without
    any point inside is neutral: to detect it is neither right nor wrong.
    """

    def __init__(
        self,
        name: str,
        iou: np.ndarray,
        min_iou: float,
        truth: Boxes,
        detections: Boxes,
        pairs: NearPairs,
    ):
        """iou: [P] of the pairs, from above or in 3-D; more than min_iou makes a match."""
        self._truth, self._found, self._pairs = truth, detections, pairs
        self._iou, self._min_iou = iou, min_iou
        self._objects, self._own = truth.names == name, detections.names == name

    def score(self, group: Group) -> dict[str, float | int | list[float] | None]:
        """The figures of a group of objects.

        - count: of its objects that hold points
        - R40: AP in percent, None without objects
        - recall, precision: shares, of the detections that score at least 0.5
        - curve_recall, curve_precision: shares at the scores that R40 samples, best score first

        A detection counts in the group of its object; a detection without an object counts in its
        own group.
        """
        roles, matcher = self._match(group)
        count = int((roles == COUNTS).sum())
        thresholds = recall_thresholds(matcher.hit_scores(), max(count, 1))
        wrong_if_free = self._own & group.holds(self._found)
        hits, false, _ = matcher.count(np.append(thresholds, OPERATING_SCORE), wrong_if_free)
        recall, precision = hits / max(count, 1), hits / np.maximum(hits + false, 1)
        return {
            "count": count,
            "R40": average(precision[:-1])["R40"] if count else None,
            "recall": float(recall[-1]),
            "precision": float(precision[-1]),
            "curve_recall": recall[:-1].tolist(),
            "curve_precision": precision[:-1].tolist(),
        }

    def judged(self) -> Judged:
        """All detections that are either right or wrong."""
        return self._match(ALL)[1].judged(self._own)

    def errors(self, score: float = OPERATING_SCORE) -> tuple[np.ndarray, np.ndarray]:
        """The missed objects [G] and the false detections [D] at a score, bool."""
        objects, detections, _ = self.taken(score)
        missed = self._objects & (self._truth.points > 0)
        missed[objects] = False
        false = self._own & (self._found.scores >= score)
        false[detections] = False
        return missed, false

    def taken(self, score: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Rows of objects and of the detections that they are matched with at a score, and their
        overlaps."""
        matcher = self._match(ALL)[1]
        taken = matcher.taken(np.array([score]))[:, 0]
        return matcher.truth[taken], matcher.detections[taken], matcher.iou[taken]

    def _match(self, group: Group) -> tuple[np.ndarray, Matcher]:
        """Roles [G] of the objects, see data.metric.matching, and the matcher of a group."""
        counts = group.holds(self._truth) & (self._truth.points > 0)
        roles = np.select([~self._objects, counts], [OUT, COUNTS], NEUTRAL)
        detected = np.where(self._own, COUNTS, OUT)
        pairs, scores = self._pairs[:3], self._found.scores
        return roles, Matcher(pairs, self._iou, self._min_iou, roles, detected, scores)


DISTANCES = (0.5, 1.0, 2.0, 4.0)  # metres
MIN_RECALL, MIN_PRECISION = 0.1, 0.1


class CentreMatches:
    """The detections of one class, matched by the distance of their centres.

    The best detection of all frames comes first. It takes the nearest free object of its frame, if
    this object is nearer than the limit. Of equal scores the last comes first, as in the kit.
    Objects without any point inside are left out.
    """

    def __init__(self, name: str, limit: float, truth: Boxes, detections: Boxes, pairs: NearPairs):
        """limit: metres."""
        self._truth, self._found = truth, detections
        self._objects = (truth.names == name) & (truth.points > 0)
        self._own = np.flatnonzero(detections.names == name)
        near = pairs.distance < limit
        near &= self._objects[pairs.truth] & (detections.names[pairs.detections] == name)
        rank = np.empty(len(detections.scores), np.int64)
        rank[_best_first(detections.scores)] = np.arange(len(rank))
        rows = np.flatnonzero(near)
        order = np.lexsort((pairs.distance[rows], rank[pairs.detections[rows]]))
        taken = match_greedily(pairs, rows[order])
        self._partner = np.full(len(rank), -1)
        self._partner[pairs.detections[taken]] = pairs.truth[taken]

    def best_first(self) -> tuple[np.ndarray, np.ndarray]:
        """The detections, and the object that each found, -1 for none."""
        own = self._own[_best_first(self._found.scores[self._own])]
        return own, self._partner[own]

    def average_precision(self, group: Group) -> float | None:
        """In percent; None where the group has no object.

        A detection counts in the group of its object, a detection without an object in its own
        group.
        """
        in_group, found_in_group = group.holds(self._truth), group.holds(self._found)
        count = int((self._objects & in_group).sum())
        if count == 0:
            return None
        partner = self._partner[self._own]
        hit = partner >= 0
        counts = np.where(hit, in_group[partner], found_in_group[self._own])
        own, hit = self._own[counts], hit[counts]
        hit = hit[_best_first(self._found.scores[own])]
        return 100 * average_precision(hit, count)


def average_precision(hits: np.ndarray, count: int) -> float:
    """AP from 0 to 1 of detections [N] bool, best first, in a set of `count` objects.

    Precision is interpolated at 101 places of recall. AP is the mean of (precision - 0.1) / 0.9, at
    least 0 each, over the places above a recall of 0.1.
    """
    if not hits.any():
        return 0.0
    found = np.cumsum(hits)
    recall, precision = found / count, found / np.arange(1, len(hits) + 1)
    sampled = np.interp(np.linspace(0, 1, 101), recall, precision, right=0)
    clipped = sampled[round(100 * MIN_RECALL) + 1 :] - MIN_PRECISION
    return float(clipped.clip(min=0).mean() / (1 - MIN_PRECISION))


def _best_first(scores: np.ndarray) -> np.ndarray:
    return np.argsort(scores, kind="stable")[::-1]
