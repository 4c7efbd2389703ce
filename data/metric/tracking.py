"""The metric of tracking on KITTI's labels: CLEAR MOT and IDF1 by overlap of volumes; its table;
identities of labelled objects, for label files that have none.

Bernardin and Stiefelhagen, "Evaluating Multiple Object Tracking Performance: The CLEAR MOT
Metrics", 2008: MOTA and MOTP. Ristani et al., "Performance Measures and a Data Set for
Multi-Target, Multi-Camera Tracking", 2016: IDF1.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import NamedTuple

import numpy as np

from millisecond.data.files import require
from millisecond.data.kitti.labels import DONT_CARE, Labels
from millisecond.data.metric.matching import NEIGHBOURS, Objects, find_overlaps

FARTHEST = 2.0  # metres that an object moves between two frames, in the camera's frame


def nearest_identities(frames: Sequence[Labels]) -> list[np.ndarray]:
    """Ids [M] int64 per frame of successive frames, from 1.

    The files of the object benchmark have no track ids. An object takes the id of the nearest
    object of equal type in the frame before, if their centres are within 2 m. The nearest pair of
    all comes first. An object without such a pair is new, also an object that comes back. DontCare
    regions have id 0.
    """
    ids: list[np.ndarray] = []
    before, old, known = None, np.zeros(0, np.int64), 0
    for labels in frames:
        new = np.zeros(len(labels), np.int64)
        if before is not None:
            for a, b in _nearest_pairs(before, labels):
                new[b] = old[a]
        fresh = np.flatnonzero((new == 0) & (labels.types != DONT_CARE))
        new[fresh] = known + 1 + np.arange(len(fresh))
        known += len(fresh)
        ids.append(new)
        before, old = labels, new
    return ids


def _nearest_pairs(a: Labels, b: Labels) -> list[tuple[int, int]]:
    """Pairs of objects of equal type, nearest first; each object has one partner at most."""
    apart = np.linalg.norm(a.location[:, None] - b.location[None], axis=2)
    fits = (a.types[:, None] == b.types[None]) & (a.types != DONT_CARE)[:, None]
    apart[~fits] = np.inf
    pairs = []
    for flat in np.argsort(apart, axis=None, kind="stable"):
        row, column = divmod(int(flat), len(b))
        if apart[row, column] <= FARTHEST:
            pairs.append((row, column))
            apart[row], apart[:, column] = np.inf, np.inf
    return pairs


KEPT = 1000.0  # more than the largest sum of overlaps in a frame


class FrameOverlaps(NamedTuple):
    """The input of the metric for one frame."""

    truth: np.ndarray  # [g] int64: id of each labelled object
    tracks: np.ndarray  # [t] int64: id of each track's box
    iou: np.ndarray  # [g, t] overlap, 0 where they do not match


@dataclass(frozen=True)
class TrackingCounts:
    """The result for the tracks of one class, or of several together."""

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
    """(rows, columns) of the matches of every frame: a match of the frame before is kept while the
    pair still overlaps enough. The rest is matched for the largest sum of overlaps."""
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
    """Pairs (rows, columns) of a matrix with the largest sum; an entry of 0 is not paired."""
    solver = require("scipy.optimize", "the metric of tracking")
    rows, columns = solver.linear_sum_assignment(worth, maximize=True)
    kept = worth[rows, columns] > 0
    return rows[kept], columns[kept]


MIN_IOU = 0.25  # of the volumes, as in AB3DMOT's evaluation of KITTI
MAX_DONT_CARE = 0.5  # share of a box in the image that a DontCare region may cover


class Identified(NamedTuple):
    """The objects of the frames of one sequence, and their ids."""

    labels: Sequence[Labels]  # one per frame
    ids: Sequence[np.ndarray]  # [M] int64 per frame, from 1

    def flat_ids(self, side: str) -> np.ndarray:
        """The ids of all frames in one array. Raises ValueError for a frame with one id twice."""
        for place, (labels, ids) in enumerate(zip(self.labels, self.ids, strict=True)):
            if len(ids) != len(labels):
                raise ValueError(f"{side}, frame {place}: {len(ids)} ids of {len(labels)} objects")
            own = ids[labels.types != DONT_CARE]
            if len(np.unique(own)) < len(own):
                raise ValueError(f"{side}, frame {place}: an id stands there twice")
        return np.concatenate([np.zeros(0, np.int64), *self.ids])


def evaluate_tracks(
    tracks: Identified, truth: Identified, classes: Sequence[str], min_iou: float = MIN_IOU
) -> dict[str, TrackingCounts]:
    """Counts per class of one sequence.

    A track's box matches an object of its class where the IoU of their volumes is at least
    min_iou. As in KITTI's evaluation, two kinds of boxes are not judged. One matches an object of
    the neighbouring class (Van for Car, Person_sitting for Pedestrian). The other matches nothing,
    and more than half of it lies in a DontCare region of the image. Every labelled object of the
    class counts, also objects that are hard to see. Raises ValueError if tracks and ground truth do
    not fit together.
    """
    if len(tracks.labels) != len(truth.labels):
        raise ValueError(
            f"tracks of {len(tracks.labels)} frames and ground truth of {len(truth.labels)}"
        )
    found, objects = Objects.of(tracks.labels), Objects.of(truth.labels)
    found_ids, object_ids = tracks.flat_ids("tracks"), truth.flat_ids("ground truth")
    matrices, covered = _overlap_matrices(objects, found, min_iou)
    result = {}
    for name in classes:
        own = objects.types == name.lower()
        neutral = objects.types == NEIGHBOURS.get(name, "").lower()
        mine = found.types == name.lower()
        frames = []
        for rows, columns, iou in matrices:
            judged = _judged(iou, own[rows], neutral[rows], mine[columns], covered[columns])
            seen = own[rows]
            frames.append(
                FrameOverlaps(
                    object_ids[rows][seen], found_ids[columns][judged], iou[seen][:, judged]
                )
            )
        result[name] = count_tracks(frames)
    return result


def _overlap_matrices(
    objects: Objects, found: Objects, min_iou: float
) -> tuple[list[tuple[slice, slice, np.ndarray]], np.ndarray]:
    """Per frame its rows of both sides and their overlaps, 0 below min_iou; and which boxes [D]
    DontCare regions cover."""
    overlaps = find_overlaps(objects, found)
    value = np.where(overlaps.iou["3d"] >= min_iou, overlaps.iou["3d"], 0)
    pairs = np.searchsorted(overlaps.frames, np.arange(objects.n_frames + 1))
    a, b, matrices = objects.starts(), found.starts(), []
    for frame in range(objects.n_frames):
        here = slice(pairs[frame], pairs[frame + 1])
        iou = np.zeros((a[frame + 1] - a[frame], b[frame + 1] - b[frame]))
        iou[overlaps.truth[here] - a[frame], overlaps.detections[here] - b[frame]] = value[here]
        rows, columns = slice(a[frame], a[frame + 1]), slice(b[frame], b[frame + 1])
        matrices.append((rows, columns, iou))
    return matrices, overlaps.dont_care > MAX_DONT_CARE


def _judged(
    iou: np.ndarray,  # [g, t]
    own: np.ndarray,  # [g] bool: of the class
    neutral: np.ndarray,  # [g] bool: of its neighbour
    mine: np.ndarray,  # [t] bool: of the class
    covered: np.ndarray,  # [t] bool: in a DontCare region
) -> np.ndarray:
    """[t] bool: boxes of the class that are either right or wrong."""
    rows, columns = best_pairs(iou * ((own | neutral)[:, None] & mine[None]))
    unmatched = mine.copy()
    unmatched[columns] = False
    judged = mine & ~(unmatched & covered)
    judged[columns[neutral[rows]]] = False
    return judged


HEADER = (
    f"{'':12}{'MOTA':>7}{'MOTP':>7}{'IDF1':>7}{'switches':>10}{'fragments':>11}{'false pos.':>12}"
    f"{'misses':>8}{'objects':>9}"
)
ALL = "all"


def format_tracks(result: Mapping[str, TrackingCounts], runs: int = 1) -> str:
    """A row per class and one of all together: shares in percent, counts per run."""
    rows = dict(result)
    if len(rows) > 1:
        rows[ALL] = sum_counts(result.values())
    more = max(0, *(len(name) - 9 for name in rows))  # for a long name
    lines = [" " * more + HEADER]
    lines += [_row(f"{name:{10 + more}}", counts, runs) for name, counts in rows.items()]
    return "\n".join(lines)


def figures(
    result: Mapping[str, TrackingCounts], runs: int = 1
) -> dict[str, dict[str, float | None]]:
    """The numbers of the table per class, shares from 0 to 1; None where nothing can be shared."""
    rows = {**result, ALL: sum_counts(result.values())}
    return {name: {**_shares(counts), **_counts(counts, runs)} for name, counts in rows.items()}


def sum_counts(parts: Iterable[TrackingCounts]) -> TrackingCounts:
    first, *others = parts
    return sum(others, first)


def _shares(counts: TrackingCounts) -> dict[str, float | None]:
    shares = {"mota": counts.mota, "motp": counts.motp, "idf1": counts.idf1}
    return {name: None if math.isnan(value) else value for name, value in shares.items()}


def _counts(counts: TrackingCounts, runs: int) -> dict[str, float]:
    names = ("switches", "fragmentations", "false_positives", "misses", "objects")
    return {name: getattr(counts, name) / runs for name in names}


def _row(name: str, counts: TrackingCounts, runs: int) -> str:
    shares = "".join(
        f"{'-' if value is None else f'{100 * value:.1f}':>7}" for value in _shares(counts).values()
    )
    numbers = "".join(
        f"{value:>{width}.{0 if runs == 1 else 1}f}"
        for value, width in zip(_counts(counts, runs).values(), (10, 11, 12, 8, 9), strict=True)
    )
    return f"  {name}{shares}{numbers}"
