"""How unsure a network is of a scan, to choose what to label next."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch

from millisecond.data.boxes import NamedDetections
from millisecond.detector.detector import Detector
from millisecond.detector.tracking.ego_motion import inverse, move_boxes
from millisecond.ops import iou_bev

MEASURES = ("both", "entropy", "disagreement")


CLEAR = 0.5  # a box that is worth less is in no doubt
NAMED = 2  # doubts that are put into words


class DoubtfulBox(NamedTuple):
    """A box about which a network is unsure."""

    worth: float  # its entropy in bits, and how much the views disagree on it
    name: str
    score: float | None  # None: not found but in the mirror image
    found: np.ndarray | None  # [7]; None likewise
    mirrored: np.ndarray | None  # [7], brought back; None: not found there, or not looked for
    why: str


class Uncertainty(NamedTuple):
    """Of one scan."""

    entropy: float  # bits
    disagreement: float | None  # boxes; None where only detections are known
    boxes: int  # that were found
    doubts: tuple[DoubtfulBox, ...] = ()  # worth most first

    @property
    def why(self) -> str:
        """The first doubts in words."""
        words, more = [doubt.why for doubt in self.doubts[:NAMED]], len(self.doubts) - NAMED
        return "; ".join([*words, f"{more} more"] if more > 0 else words)


def examine(detector: Detector, points: np.ndarray) -> Uncertainty:
    """The uncertainty of a network about a scan [P, C], from what it finds there and in the
    scan's mirror image.

    Both measures, and their use together, are from Elezi, Yu, Anandkumar and Leal-Taixe, "Not all
    labels are equal", CVPR 2022. Here they are for boxes in 3-D whose scores are sigmoids. They
    are added up over a scan, as Haussmann et al., "Scalable active learning for object detection",
    IV 2020, add up entropies. `score_entropy` and `disagreement` define them.
    """
    found, other = (view_of(detector, points, axes) for axes in ((), (1,)))
    entropy, differ = score_entropy(found.scores), disagreement(found, other)
    return Uncertainty(entropy, differ, len(found.scores), doubts_of(found, other))


def examine_found(found: NamedDetections) -> Uncertainty:
    """The uncertainty of a network about a scan, from what it found there."""
    return Uncertainty(score_entropy(found.scores), None, len(found.scores), doubts_of(found))


def view_of(
    detector: Detector,
    points: np.ndarray,
    axes: Sequence[int],
    turn: float = 0.0,
    stretch: float = 1.0,
) -> NamedDetections:
    """What a network finds in a scan [P, C] that is turned to the left (radians), stretched, then
    mirrored along some axes (0 is x, 1 is y) at the middle of the network's range. The boxes are in
    the frame of the scan itself."""
    ends = detector.config.grid.range
    cloud, pose = points.copy(), np.eye(4)
    pose[:2, :2] = [[np.cos(turn), -np.sin(turn)], [np.sin(turn), np.cos(turn)]]
    if turn or stretch != 1:
        cloud[:, :3] = stretch * cloud[:, :3] @ pose[:3, :3].T
    for axis in axes:
        cloud[:, axis] = ends[axis] + ends[axis + 3] - cloud[:, axis]
    detector.forget()  # the ground of a mirrored cloud leans to the other side
    found = detector.detect(cloud)[0].named(detector.config.class_names)
    found = found._replace(velocities=None)  # nobody wants them turned back
    for axis in axes:
        found = mirrored(found, ends[axis] + ends[axis + 3], axis)
    boxes = found.boxes / np.array([stretch] * 6 + [1])
    return found._replace(boxes=move_boxes(boxes, inverse(pose)) if turn else boxes)


def mirrored(found: NamedDetections, twice_middle: float, axis: int = 1) -> NamedDetections:
    """Boxes on the other side of the plane y = twice_middle / 2 (metres), or x for axis 0."""
    boxes = found.boxes.copy()
    boxes[:, axis] = twice_middle - boxes[:, axis]
    boxes[:, 6] = -boxes[:, 6] if axis else np.pi - boxes[:, 6]
    return found._replace(boxes=boxes)


def score_entropy(scores: np.ndarray) -> float:
    """Sum over the boxes of a scan of the entropy of their score s [N], from 0 to 1, in bits:
    -s log2(s) - (1 - s) log2(1 - s)."""
    return float(_entropies(scores).sum())


def _entropies(scores: np.ndarray) -> np.ndarray:
    s = np.asarray(scores, np.float64).clip(1e-12, 1 - 1e-12)
    return -(s * np.log2(s) + (1 - s) * np.log2(1 - s))


def disagreement(a: NamedDetections, b: NamedDetections) -> float:
    """On how many boxes two views of a scan disagree, 0 for equal ones.

    Boxes of the same class that overlap from above are pairs, the largest IoU first, each box in
    one pair at most. A pair with scores s and t counts |s - t| + min(s, t) (1 - IoU), a box
    without a partner its score.
    """
    return float(sum(differ for *_, differ in _pairs(a, b)))


def _pairs(a: NamedDetections, b: NamedDetections) -> list[tuple[int | None, int | None, float]]:
    """The boxes of both views, a row of each in a pair, and how much the views disagree on it."""
    s, t = (np.asarray(found.scores, np.float64).tolist() for found in (a, b))
    one, other = (torch.from_numpy(np.asarray(found.boxes, np.float64)) for found in (a, b))
    iou = iou_bev(one, other).numpy()
    iou = np.where(np.array(a.names)[:, None] == np.array(b.names)[None], iou, 0.0)
    pairs: list[tuple[int | None, int | None, float]] = []
    free_a, free_b = dict.fromkeys(range(len(s))), dict.fromkeys(range(len(t)))
    rows, columns = np.nonzero(iou)
    for place in np.argsort(-iou[rows, columns], kind="stable"):
        i, j = int(rows[place]), int(columns[place])
        if i in free_a and j in free_b:
            del free_a[i], free_b[j]
            pairs.append((i, j, abs(s[i] - t[j]) + min(s[i], t[j]) * (1 - float(iou[i, j]))))
    return [*pairs, *((i, None, s[i]) for i in free_a), *((None, j, t[j]) for j in free_b)]


def doubts_of(
    found: NamedDetections, other: NamedDetections | None = None
) -> tuple[DoubtfulBox, ...]:
    """The boxes that make a scan worth labelling, the most doubtful first. other: what was found in
    the mirror image, brought back; None: that is not known."""
    entropies, doubts = _entropies(found.scores), []
    alone = ((i, None, 0.0) for i in range(len(found.scores)))
    for i, j, differ in alone if other is None else _pairs(found, other):
        own = None if i is None else np.asarray(found.boxes[i])
        there = None if j is None or other is None else np.asarray(other.boxes[j])
        view, row = (found, i) if i is not None else (other, j)
        assert view is not None and row is not None, "a pair without a box"
        box, name = view.boxes[row], view.names[row]
        text = "none" if i is None else f"{found.scores[i]:.2f}"
        if other is not None:
            text += f", mirrored {'none' if j is None else f'{other.scores[j]:.2f}'}"
        why = f"{name} at {np.hypot(box[0], box[1]):.0f} m: {text}"
        worth = differ + (0.0 if i is None else float(entropies[i]))
        score = None if i is None else float(found.scores[i])
        doubts.append(DoubtfulBox(worth, name, score, own, there, why))
    doubts.sort(key=lambda doubt: -doubt.worth)
    return tuple(doubt for doubt in doubts if doubt.worth >= CLEAR)


def values(scans: Sequence[Uncertainty], measure: str = "both") -> np.ndarray:
    """[N] what the scans are worth, 1 on average: entropy or disagreement over its mean over the
    scans, or the mean of the two."""
    columns = np.array([scan[:2] for scan in scans], np.float64).reshape(-1, 2)
    means = columns.mean(axis=0) if len(columns) else np.ones(2)
    shares = columns / np.where(means > 0, means, 1)
    if measure == "both":
        return shares.mean(axis=1)
    return shares[:, MEASURES.index(measure) - 1]
