"""The scores of boxes in the LiDAR frame: by class, by distance, by points on the object."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from data.kitti.metric.judge import default_overlap
from data.metric.boxes import ALL, Boxes, FrameBoxes, Group
from data.metric.centre_distance import DISTANCES, CentreMatches
from data.metric.confusion import confusion
from data.metric.overlap import Errors, OverlapMatches
from data.metric.pairs import Pairs, find_pairs

WORST = 10  # frames of the list

Result = dict[str, Any]
Overlaps = Mapping[str, Sequence[float]]  # by class; the first also judges frames and curves


def default_overlaps(classes: Sequence[str]) -> dict[str, tuple[float, ...]]:
    """KITTI's: 0.7 for cars, else 0.5."""
    return {name: (default_overlap(name),) for name in classes}


def evaluate(
    detections: Sequence[FrameBoxes],
    objects: Sequence[FrameBoxes],
    overlaps: Overlaps,
    groups: Sequence[Group] = (),
    frame_ids: Sequence[str] = (),
) -> Result:
    """Scores the detections of frames against the objects of the same frames.

    Args:
        overlaps: least overlaps of a match, for each class that is scored.
        groups: of objects that get figures beside those of all.
        frame_ids: the names of the frames, their numbers unless given.

    Returns:
        - classes: class -> group -> figures: count (objects that hold points), empty (those that
          do not, which no figure counts), bev@IoU and 3d@IoU as of `OverlapMatches.score`, and
          centre, the nuScenes AP in percent by its distance in metres, and the mean of those.
        - mean: the mean over the classes that have objects of R40 in 3-D and from above at the
          first overlap, and of centre's mean; None without objects.
        - confusion: see `data.metric.confusion`.
        - worst: the ten frames with most errors at a score of 0.5, in 3-D: frame, missed, false,
          and badness, 1 for each missed object and its score for each false detection.

    Raises ValueError for other numbers of frames.
    """
    if len(detections) != len(objects):
        raise ValueError(f"detections of {len(detections)} frames, objects of {len(objects)}")
    truth, found = Boxes.of(objects), Boxes.of(detections)
    pairs = find_pairs(truth, found)
    classes = {
        name: _score_class(name, least, [ALL, *groups], truth, found, pairs)
        for name, least in overlaps.items()
    }
    confused = confusion(truth, found, pairs, list(overlaps))
    names = list(frame_ids) or [str(number) for number in range(truth.n_frames)]
    return {
        "classes": classes,
        "mean": _means(classes, overlaps),
        "confusion": {**confused._asdict(), "counts": confused.counts.tolist()},
        "worst": _worst(overlaps, truth, found, pairs, names),
    }


def _score_class(
    name: str,
    overlaps: Sequence[float],
    groups: Sequence[Group],
    truth: Boxes,
    found: Boxes,
    pairs: Pairs,
) -> dict[str, dict[str, Any]]:
    by_overlap = {
        f"{kind}@{least:g}": OverlapMatches(name, iou, least, truth, found, pairs)
        for least in overlaps
        for kind, iou in (("bev", pairs.bev), ("3d", pairs.volume))
    }
    by_distance = {
        f"{limit:g}": CentreMatches(name, limit, truth, found, pairs) for limit in DISTANCES
    }
    empty = (truth.names == name) & (truth.points == 0)
    scores = {}
    for group in groups:
        figures: dict[str, Any] = {key: m.score(group) for key, m in by_overlap.items()}
        counts = [columns.pop("count") for columns in figures.values()]
        centre = {key: m.average_precision(group) for key, m in by_distance.items()}
        known = [value for value in centre.values() if value is not None]
        scores[group.title] = {
            "count": counts[0],
            "empty": int((empty & group.holds(truth)).sum()),
            **figures,
            "centre": {**centre, "mean": float(np.mean(known)) if known else None},
        }
    return scores


def _means(classes: Mapping[str, dict], overlaps: Overlaps) -> dict[str, float | None]:
    columns: dict[str, list[float]] = {"bev": [], "3d": [], "centre": []}
    for name, groups in classes.items():
        figures = groups[ALL.title]
        if figures["count"]:
            for kind in ("bev", "3d"):
                columns[kind].append(figures[f"{kind}@{overlaps[name][0]:g}"]["R40"])
            columns["centre"].append(figures["centre"]["mean"])
    return {key: float(np.mean(values)) if values else None for key, values in columns.items()}


def _worst(
    overlaps: Overlaps, truth: Boxes, found: Boxes, pairs: Pairs, names: Sequence[str]
) -> list[dict[str, Any]]:
    missed, false, badness = (np.zeros(truth.n_frames) for _ in range(3))
    for name, (least, *_) in overlaps.items():
        errors: Errors = OverlapMatches(name, pairs.volume, least, truth, found, pairs).errors()
        np.add.at(missed, truth.frames[errors.missed], 1)
        np.add.at(false, found.frames[errors.false], 1)
        np.add.at(badness, found.frames[errors.false], found.scores[errors.false])
    badness += missed
    order = np.argsort(-badness, kind="stable")[:WORST]
    return [
        {
            "frame": names[row],
            "missed": int(missed[row]),
            "false": int(false[row]),
            "badness": float(badness[row]),
        }
        for row in order
        if badness[row] > 0
    ]
