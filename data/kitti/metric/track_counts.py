"""Counts of tracking of one class in one sequence, from the overlaps of every frame.

Bernardin and Stiefelhagen, "Evaluating Multiple Object Tracking Performance: The CLEAR MOT
Metrics", 2008: MOTA and MOTP. Ristani et al., "Performance Measures and a Data Set for
Multi-Target, Multi-Camera Tracking", 2016: IDF1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import NamedTuple

import numpy as np

MISSING = "the metric of tracking needs scipy; install it: pip install -e '.[live]'"
KEPT = 1000.0  # more than all the overlap that a frame can have


class FrameOverlaps(NamedTuple):
    """A frame as the metric sees it."""

    truth: np.ndarray  # [g] int64: id of each labelled object
    tracks: np.ndarray  # [t] int64: id of each track's box
    iou: np.ndarray  # [g, t] overlap, 0 where it is no match


@dataclass(frozen=True)
class TrackingCounts:
    """What the tracks of one class, or of several together, come to."""

    objects: int  # labelled boxes, over all frames
    boxes: int  # boxes of tracks, over all frames
    matches: int
    overlap: float  # sum of the IoU of all matches
    switches: int  # of an object: matched by another track than at its latest match
    fragmentations: int  # of an object: matched again after frames without a match
    identified: int  # IDTP: matches if every object could have but one track, and the reverse

    def __add__(self, other: TrackingCounts) -> TrackingCounts:
        sums = [getattr(self, f.name) + getattr(other, f.name) for f in fields(self)]
        return TrackingCounts(*sums)

    @property
    def misses(self) -> int:
        return self.objects - self.matches

    @property
    def false_positives(self) -> int:
        return self.boxes - self.matches

    @property
    def mota(self) -> float:
        """1 - (misses + false positives + switches) / objects: negative where errors are more."""
        errors = self.misses + self.false_positives + self.switches
        return 1 - errors / self.objects if self.objects else np.nan

    @property
    def motp(self) -> float:
        """Mean IoU of the matches."""
        return self.overlap / self.matches if self.matches else np.nan

    @property
    def idf1(self) -> float:
        """2 IDTP / (objects + boxes)."""
        total = self.objects + self.boxes
        return 2 * self.identified / total if total else np.nan


def count_tracks(frames: Sequence[FrameOverlaps]) -> TrackingCounts:
    """Counts of the frames of one sequence, in the order of time."""
    matches = clear_mot_matches(frames)
    latest: dict[int, int] = {}  # object -> track of its latest match
    matched_at: dict[int, list[int]] = {}  # object -> its own frames, counted, that have a match
    present: dict[int, int] = {}  # object -> frames so far
    switches, overlap = 0, 0.0
    for frame, (rows, columns) in zip(frames, matches, strict=True):
        for row, column in zip(rows, columns, strict=True):
            thing, track = int(frame.truth[row]), int(frame.tracks[column])
            switches += latest.get(thing, track) != track
            latest[thing] = track
            matched_at.setdefault(thing, []).append(present.get(thing, 0))
            overlap += float(frame.iou[row, column])
        for thing in frame.truth.tolist():
            present[thing] = present.get(thing, 0) + 1
    gaps = sum(int((np.diff(places) > 1).sum()) for places in matched_at.values())
    return TrackingCounts(
        objects=sum(len(frame.truth) for frame in frames),
        boxes=sum(len(frame.tracks) for frame in frames),
        matches=sum(len(rows) for rows, _ in matches),
        overlap=overlap,
        switches=switches,
        fragmentations=gaps,
        identified=identified(frames),
    )


def clear_mot_matches(frames: Sequence[FrameOverlaps]) -> list[tuple[np.ndarray, np.ndarray]]:
    """(rows, columns) of the matches of every frame: a match of the frame before is kept while it
    is one, the rest is matched for the largest sum of overlaps."""
    kept: dict[int, int] = {}
    matches = []
    for truth, tracks, iou in frames:
        before = np.array([kept.get(thing, 0) for thing in truth.tolist()], np.int64)
        same = (before[:, None] == tracks[None]) & (before > 0)[:, None]
        rows, columns = best_pairs(np.where(iou > 0, iou + KEPT * same, 0))
        kept = dict(zip(truth[rows].tolist(), tracks[columns].tolist(), strict=True))
        matches.append((rows, columns))
    return matches


def identified(frames: Sequence[FrameOverlaps]) -> int:
    """IDTP: frames in which objects match their tracks, each object with one track for the whole
    sequence and each track with one object, chosen for the largest sum."""
    truth = np.unique(np.concatenate([np.zeros(0, np.int64), *(f.truth for f in frames)]))
    tracks = np.unique(np.concatenate([np.zeros(0, np.int64), *(f.tracks for f in frames)]))
    together = np.zeros((len(truth), len(tracks)))
    for frame in frames:
        rows, columns = np.nonzero(frame.iou)
        places = np.searchsorted(truth, frame.truth), np.searchsorted(tracks, frame.tracks)
        together[places[0][rows], places[1][columns]] += 1
    return int(together[best_pairs(together)].sum())


def best_pairs(worth: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Pairs (rows, columns) of a matrix of the largest sum; a worth of 0 is no pair."""
    try:
        from scipy.optimize import linear_sum_assignment
    except ModuleNotFoundError:
        raise ValueError(MISSING) from None
    rows, columns = linear_sum_assignment(worth, maximize=True)
    kept = worth[rows, columns] > 0
    return rows[kept], columns[kept]
