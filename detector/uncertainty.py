"""How unsure a network is of a scan, to choose what to label next."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch

from millisecond.data.boxes import NamedDetections
from millisecond.detector.detector import Detector
from millisecond.detector.tracking.ego_motion import inverse, move_boxes
from millisecond.ops import iou_bev

MEASURES = ("both", "entropy", "disagreement")


class Uncertainty(NamedTuple):
    """Of one scan."""

    entropy: float  # bits
    disagreement: float | None  # boxes; None where only detections are known
    boxes: int  # that were found


def examine(detector: Detector, points: np.ndarray) -> Uncertainty:
    """The uncertainty of a network about a scan [P, C], from what it finds there and in the
    scan's mirror image.

    Both measures, and their use together, are from Elezi, Yu, Anandkumar and Leal-Taixe, "Not all
    labels are equal", CVPR 2022. Here they are for boxes in 3-D whose scores are sigmoids. They
    are added up over a scan, as Haussmann et al., "Scalable active learning for object detection",
    IV 2020, add up entropies. `score_entropy` and `disagreement` define them.
    """
    found, other = (view_of(detector, points, axes) for axes in ((), (1,)))
    return Uncertainty(score_entropy(found.scores), disagreement(found, other), len(found.scores))


def examine_found(found: NamedDetections) -> Uncertainty:
    """The uncertainty of a network about a scan, from what it found there."""
    return Uncertainty(score_entropy(found.scores), None, len(found.scores))


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
    s = np.asarray(scores, np.float64).clip(1e-12, 1 - 1e-12)
    return float(-(s * np.log2(s) + (1 - s) * np.log2(1 - s)).sum())


def disagreement(a: NamedDetections, b: NamedDetections) -> float:
    """On how many boxes two views of a scan disagree, 0 for equal ones.

    Boxes of the same class that overlap from above are pairs, the largest IoU first, each box in
    one pair at most. A pair with scores s and t counts |s - t| + min(s, t) (1 - IoU), a box
    without a partner its score.
    """
    s, t = (np.asarray(found.scores, np.float64) for found in (a, b))
    one, other = (torch.from_numpy(np.asarray(found.boxes, np.float64)) for found in (a, b))
    iou = iou_bev(one, other).numpy()
    iou = np.where(np.array(a.names)[:, None] == np.array(b.names)[None], iou, 0.0)
    total, free_a, free_b = 0.0, np.ones(len(s), bool), np.ones(len(t), bool)
    rows, columns = np.nonzero(iou)
    for place in np.argsort(-iou[rows, columns], kind="stable"):
        i, j = rows[place], columns[place]
        if free_a[i] and free_b[j]:
            free_a[i] = free_b[j] = False
            total += abs(s[i] - t[j]) + min(s[i], t[j]) * (1 - iou[i, j])
    return float(total + s[free_a].sum() + t[free_b].sum())


def values(scans: Sequence[Uncertainty], measure: str = "both") -> np.ndarray:
    """[N] what the scans are worth, 1 on average: entropy or disagreement over its mean over the
    scans, or the mean of the two."""
    columns = np.array([scan[:2] for scan in scans], np.float64).reshape(-1, 2)
    means = columns.mean(axis=0) if len(columns) else np.ones(2)
    shares = columns / np.where(means > 0, means, 1)
    if measure == "both":
        return shares.mean(axis=1)
    return shares[:, MEASURES.index(measure) - 1]
