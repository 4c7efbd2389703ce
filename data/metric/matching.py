"""Objects of many frames in flat columns, their matching by the rules of the KITTI benchmark, and
average precision (AP): precision sampled at 41 places of recall, R11 and R40.

Geiger, Lenz, Urtasun, "Are we ready for autonomous driving?", CVPR 2012, and the benchmark's
development kit. An object, or a detection, has one of three roles for a class and difficulty.
COUNTS: it is scored. NEUTRAL (the kit says ignored): a match with it is neither right nor wrong.
OUT: it is left out.
"""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from millisecond.data.kitti.labels import MIN_HEIGHT, Labels, joined
from millisecond.data.metric.reliability import Judged


@dataclass(frozen=True)
class Objects:
    """The objects of n_frames frames, frame after frame, each in file order."""

    n_frames: int
    frames: np.ndarray  # [n] int64: index of the object's frame, ascending
    types: np.ndarray  # [n] str in lower case, since the benchmark's evaluators ignore the case
    difficulty: np.ndarray  # [n]: 0 easy, 1 moderate, 2 hard, -1 none
    alpha: np.ndarray  # [n] float64, radians
    bbox: np.ndarray  # [n, 4] float64: image box x1, y1, x2, y2, pixels
    boxes: np.ndarray  # [n, 7] float64: camera frame with z up, see `of`
    scores: np.ndarray  # [n] float64; NaN where the labels have none

    @classmethod
    def of(cls, labels: Sequence[Labels]) -> "Objects":
        """Boxes become (right, forward, up, l, w, h, yaw): the camera's axes relabelled rigidly."""
        sizes = [len(frame) for frame in labels]
        whole = joined(labels)
        x, y, z, length, height, width, rotation = whole.boxes.T
        boxes = np.stack([x, z, height / 2 - y, length, width, height, -rotation], axis=1)
        return cls(
            n_frames=len(sizes),
            frames=np.repeat(np.arange(len(sizes)), sizes),
            types=np.array([name.lower() for name in whole.types.tolist()], dtype=str),
            difficulty=whole.difficulty,
            alpha=whole.alpha,
            bbox=whole.bbox,
            boxes=boxes,
            scores=np.full(len(whole), np.nan) if whole.score is None else whole.score,
        )

    @cached_property
    def extents(self) -> tuple[np.ndarray, ...]:
        """Image box x1, y1, x2, y2; centre from above, diameter of the circle around the box there:
        [n] each, an array of its own, which is read faster than a column."""
        columns = *self.bbox.T, *self.boxes[:, :2].T, np.hypot(*self.boxes[:, 3:5].T)
        return tuple(np.ascontiguousarray(column) for column in columns)

    def starts(self) -> np.ndarray:
        """[n_frames + 1] int64: frame f holds the rows starts[f]:starts[f + 1]."""
        return np.searchsorted(self.frames, np.arange(self.n_frames + 1))


class Overlaps(NamedTuple):
    """Every detection that touches a labelled object of its frame, and by how much."""

    frames: np.ndarray  # [P] int64, ascending
    truth: np.ndarray  # [P] int64: row of the ground truth
    detections: np.ndarray  # [P] int64: row of the detections
    iou: dict[str, np.ndarray]  # "bbox", "bev", "3d" -> [P] float64
    dont_care: np.ndarray  # [D] float64: largest share of a detection's image box in one DontCare

    def select(self, kept: np.ndarray) -> "Overlaps":
        """The pairs of a mask."""
        iou = {metric: values[kept] for metric, values in self.iou.items()}
        truth, detections = self.truth[kept], self.detections[kept]
        return Overlaps(self.frames[kept], truth, detections, iou, self.dont_care)


def find_overlaps(truth: Objects, detections: Objects) -> Overlaps:
    """Overlaps of all detections with all labelled objects of the same frame."""
    cared = truth.types != "dontcare"
    touching = []
    for one, other in _pairs(truth, np.flatnonzero(cared), detections):
        kept = _may_touch(truth, detections, one, other)
        touching.append((one[kept], other[kept]))
    a, b = (np.concatenate(rows) for rows in zip(*touching, strict=True))
    dont_care = np.zeros(len(detections.scores))
    for region, inside in _pairs(truth, np.flatnonzero(~cared), detections):
        shared = _image_overlap(truth.bbox[region], detections.bbox[inside])
        np.maximum.at(dont_care, inside, shared / _image_area(detections.bbox[inside]))
    one, other = truth.bbox[a], detections.bbox[b]
    shared = _image_overlap(one, other)
    iou = shared / (_image_area(one) + _image_area(other) - shared)
    bev, volume = box_iou(truth.boxes[a], detections.boxes[b])
    return Overlaps(truth.frames[a], a, b, {"bbox": iou, "bev": bev, "3d": volume}, dont_care)


PAIRS = 1 << 15  # at once: they stay in the cache


def _pairs(
    truth: Objects, rows: np.ndarray, detections: Objects
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Rows of the truth, each with every detection of its frame, in parts: rows [P], [P]."""
    starts = detections.starts()
    begin, end = starts[truth.frames[rows]], starts[truth.frames[rows] + 1]
    parts = 1 + int((end - begin).sum()) // PAIRS
    for part in np.array_split(np.arange(len(rows)), parts):
        counts = (end - begin)[part]
        before = np.repeat(np.cumsum(counts) - counts, counts)
        yield (
            np.repeat(rows[part], counts),
            np.arange(counts.sum()) - before + np.repeat(begin[part], counts),
        )


def _may_touch(truth: Objects, detections: Objects, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """[P] bool: image boxes overlap, or circles around the boxes seen from above do."""
    left, top, right, bottom, x, y, reach = (
        (column.take(a), other.take(b))
        for column, other in zip(truth.extents, detections.extents, strict=True)
    )
    wide = np.minimum(*right) > np.maximum(*left)
    high = np.minimum(*bottom) > np.maximum(*top)
    return (wide & high) | (2 * np.hypot(x[0] - x[1], y[0] - y[1]) < reach[0] + reach[1])


def _image_area(boxes: np.ndarray) -> np.ndarray:
    """[..., 4] -> [...] square pixels; never 0, so that it can divide."""
    area = (boxes[..., 2] - boxes[..., 0]) * (boxes[..., 3] - boxes[..., 1])
    return np.maximum(area, np.finfo(np.float64).tiny)


def _image_overlap(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """[..., 4] x [..., 4] -> [...] square pixels that two image boxes share."""
    width, height = (
        np.minimum(a[..., end], b[..., end]) - np.maximum(a[..., begin], b[..., begin])
        for begin, end in ((0, 2), (1, 3))
    )
    return np.maximum(width, 0) * np.maximum(height, 0)


def box_iou(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """[P, 7] x [P, 7] -> [P], [P]: overlap over union seen from above and of the volumes."""
    import torch  # pictures name what this module finds, and need no torch

    from millisecond.ops import paired_overlap_bev

    area = paired_overlap_bev(torch.from_numpy(a), torch.from_numpy(b)).numpy()
    top = np.minimum(a[:, 2] + a[:, 5] / 2, b[:, 2] + b[:, 5] / 2)
    bottom = np.maximum(a[:, 2] - a[:, 5] / 2, b[:, 2] - b[:, 5] / 2)
    volume = area * np.maximum(top - bottom, 0)

    def over_union(shared: np.ndarray, dimensions: slice) -> np.ndarray:
        union = a[:, dimensions].prod(axis=1) + b[:, dimensions].prod(axis=1) - shared
        return np.where(shared > 0, shared / np.where(shared > 0, union, 1), 0)

    return over_union(area, slice(3, 5)), over_union(volume, slice(3, 6))


class Words(NamedTuple):
    """Why an object is missed, or why a detection is false."""

    taken: str  # what overlaps enough has another partner
    other: str  # where only another class is; {} stands for it
    nothing: str


OF_MISSED = Words("its detection has another object", "found as {}", "nothing found there")
OF_FALSE = Words("its object has another detection", "there is a {}", "no object there")


def tell_reasons(
    wrong: np.ndarray,
    pairs: tuple[np.ndarray, np.ndarray],
    iou: np.ndarray,
    least: float,
    names: np.ndarray,
    words: Words,
    told: np.ndarray,
) -> None:
    """Writes why boxes of one class are wrong.

    Args:
        wrong: [N] bool.
        pairs: rows of these boxes, and rows of the boxes on the other side, [P] each.
        iou: [P] of the pairs; more than `least` makes a match.
        names: classes of the boxes on the other side, empty for boxes of this class.
        told: [N] str objects, where the wrong ones get theirs.
    """
    for row in np.flatnonzero(wrong).tolist():
        near = np.flatnonzero(pairs[0] == row)
        partners = names[pairs[1][near]]
        best = iou[near[partners == ""]].max(initial=0.0)
        strange = near[(partners != "") & (iou[near] > 0)]
        if best > least:
            told[row] = words.taken
        elif best > 0:
            shown = min(round(100 * best), np.ceil(100 * least) - 1) / 100  # less, rounded too
            told[row] = f"best overlap {shown:.2f} < {least:.2f}"
        elif len(strange):
            told[row] = words.other.format(names[pairs[1][strange[iou[strange].argmax()]]])
        else:
            told[row] = words.nothing


COUNTS, NEUTRAL, OUT = 0, 1, 2

NEIGHBOURS = {"Car": "Van", "Pedestrian": "Person_sitting"}


def truth_roles(truth: Objects, name: str, difficulty: int) -> np.ndarray:
    """[G] role of every labelled object: too hard ones and the neighbouring class are neutral."""
    fits = (truth.difficulty >= 0) & (truth.difficulty <= difficulty)
    neighbour = truth.types == NEIGHBOURS.get(name, "").lower()
    own = np.where(fits, COUNTS, NEUTRAL)
    return np.select([truth.types == name.lower(), neighbour], [own, NEUTRAL], OUT)


def detection_roles(detections: Objects, name: str, difficulty: int) -> np.ndarray:
    """[D] role of every detection: too low ones in the image, of any class, are neutral."""
    height = detections.bbox[:, 3] - detections.bbox[:, 1]
    low = np.abs(height) < MIN_HEIGHT[difficulty]
    return np.select([low, detections.types == name.lower()], [NEUTRAL, COUNTS], OUT)


class Matcher:
    """The candidate pairs of one class, difficulty and overlap, and their matching."""

    def __init__(
        self,
        pairs: Sequence[np.ndarray],  # [P] each: frame, row of the truth, row of the detections
        iou: np.ndarray,  # [P]
        min_iou: float,
        truth: np.ndarray,  # [G] roles
        detections: np.ndarray,  # [D] roles
        scores: np.ndarray,  # [D]
    ):
        frames, a, b = pairs
        kept = (iou > min_iou) & (truth[a] != OUT) & (detections[b] != OUT)
        self.frames, self.truth, self.detections = frames[kept], a[kept], b[kept]
        self.every_score, self.iou, self.scores = scores, iou[kept], scores[self.detections]
        self.neutral = detections[self.detections] == NEUTRAL
        self.hits = (truth[self.truth] == COUNTS) & ~self.neutral  # a match of this pair is a hit
        partners = (np.bincount(rows)[rows] for rows in (self.truth, self.detections))
        self.disputed = np.flatnonzero(np.maximum(*partners) > 1)  # rows of pairs

    def hit_scores(self) -> np.ndarray:
        """Scores of the hits when every object, in file order, takes its best-scored detection."""
        return self.scores[self._best() & self.hits]

    def judged(self, wrong_if_free: np.ndarray) -> Judged:
        """As every object, in file order, takes its best-scored one; see `count`."""
        taken, kept = self._best(), wrong_if_free.copy()
        kept[self.detections[taken & ~self.hits]] = False
        right = np.zeros(len(kept), bool)
        right[self.detections[taken & self.hits]] = True
        return Judged(self.every_score[kept], right[kept])

    def _best(self) -> np.ndarray:
        """[P] bool: the pairs of objects, in file order, and their best-scored detections."""
        return self._assign(-self.scores, np.ones((len(self.scores), 1), dtype=bool))[:, 0]

    def taken(self, thresholds: np.ndarray) -> np.ndarray:  # [T] -> [P, T]
        """Pairs matched among the detections that score at least each threshold.

        Every object, in file order, takes the detection of largest overlap. It takes a neutral
        detection only where there is no other.
        """
        order = np.where(self.neutral, 0, -self.iou)
        return self._assign(order, self.scores[:, None] >= thresholds)

    def count(
        self, thresholds: np.ndarray, wrong_if_free: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Hits [T] and false detections [T] that score at least each threshold, and the pairs
        `taken` [P, T]. wrong_if_free: [D] bool, detections that are false without an object."""
        taken = self.taken(thresholds)
        scores = np.sort(self.every_score[wrong_if_free])
        false = len(scores) - np.searchsorted(scores, thresholds)
        false = false - taken[wrong_if_free[self.detections]].sum(axis=0)
        return taken[self.hits].sum(axis=0), false, taken

    def _assign(self, order: np.ndarray, allowed: np.ndarray) -> np.ndarray:  # [P], [P, T]
        """Greedy assignment, [P, T]: objects, in file order, take their first free detection.

        order: the least is an object's first. A pair whose object and detection have no other is
        taken where it is allowed. Of the others the n-th pairs of all frames are handled at once:
        they share neither an object nor a detection.
        """
        taken, rows = allowed.copy(), self.disputed
        rows = rows[np.lexsort((order[rows], self.truth[rows]))]
        truth, detections = (
            np.unique(column[rows], return_inverse=True)[1]
            for column in (self.truth, self.detections)
        )
        free_truth = np.ones((len(rows), allowed.shape[1]), dtype=bool)
        free_detections = np.ones_like(free_truth)
        frames = self.frames[rows]
        turns = np.arange(len(rows)) - np.searchsorted(frames, frames)
        by_turn = np.argsort(turns, kind="stable")
        for places in np.split(by_turn, np.cumsum(np.bincount(turns))[:-1]):
            a, b, pairs = truth[places], detections[places], rows[places]
            match = allowed[pairs] & free_truth[a] & free_detections[b]
            free_truth[a] &= ~match
            free_detections[b] &= ~match
            taken[pairs] = match
        return taken


SAMPLES = 41


def recall_thresholds(scores: np.ndarray, count: int) -> np.ndarray:
    """Scores, at most 41 of them, at which recall comes nearest to 0, 1/40, ... 1.

    scores: of the hits, any order. count: number of ground truths, hit or not.
    There are never more thresholds than hits, which caps the average below 41 ground truths.
    """
    scores = np.sort(scores)[::-1]
    thresholds: list[float] = []
    wanted, i = 0.0, -1

    def near(i: int) -> bool:
        """The next hit is not nearer to the wanted recall. From one hit on, this holds for all."""
        return (i + 2) / count - wanted >= wanted - (i + 1) / count

    while i + 1 < len(scores):
        i = bisect_left(range(len(scores) - 1), True, i + 1, key=near)
        thresholds.append(scores[i])
        # Summed up as the benchmark does it: multiples of 1/40 would round otherwise.
        wanted += 1.0 / (SAMPLES - 1.0)
    return np.array(thresholds, dtype=np.float64)


def average(values: np.ndarray) -> dict[str, float]:
    """R11 and R40 in percent of a curve [T] sampled at the T recall thresholds.

    The curve is first made to fall: each sample becomes the largest from there on. Samples that
    were not reached are 0. R11 averages samples 0, 4, ... 40, R40 samples 1 to 40.
    """
    curve = np.zeros(SAMPLES)
    curve[: len(values)] = np.maximum.accumulate(values[::-1])[::-1]
    return {"R11": 100 * float(curve[::4].mean()), "R40": 100 * float(curve[1:].mean())}
