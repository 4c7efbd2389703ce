"""The nuScenes detection score (NDS): AP by the distance of centres, and the errors of matches.

Caesar et al., "nuScenes: a multimodal dataset for autonomous driving", CVPR 2020, section 3.1. The
development kit, nuscenes/eval/detection, version 1.2.0, gives the same figures; it cannot be
installed beside numpy 2.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from millisecond.data.boxes import NamedDetections, nearest_of_class
from millisecond.data.metric.overlap import (
    ALL,
    DISTANCES,
    MIN_RECALL,
    Boxes,
    CentreMatches,
    find_pairs,
)

RANGES = dict.fromkeys(("car", "truck", "bus", "trailer", "construction_vehicle"), 50.0)
RANGES |= dict.fromkeys(("pedestrian", "motorcycle", "bicycle"), 40.0)
RANGES |= dict.fromkeys(("traffic_cone", "barrier"), 30.0)  # metres from the car, seen from above
ERRORS = ("ATE", "ASE", "AOE", "AVE", "AAE")  # translation, scale, orientation, velocity, attribute
NOT_JUDGED = {"traffic_cone": ERRORS[2:], "barrier": ERRORS[3:]}
NEAR = 2.0  # metres between centres, of a match whose errors count
PLACES = np.linspace(0, 1, 101)  # of recall
WEIGHT = 5  # of AP; of each error 1


def velocity_errors(objects: NamedDetections, found: NamedDetections) -> dict[str, np.ndarray]:
    """By class, in m/s: how far the velocity of the nearest box of its class is from an object's,
    where one is within NEAR of the object and both have a velocity."""
    if objects.velocities is None or found.velocities is None:
        return {}
    rows = nearest_of_class(objects, found, NEAR)
    near = (rows >= 0) & np.isfinite(objects.velocities).all(axis=1)
    apart = np.linalg.norm(found.velocities[rows[near]] - objects.velocities[near], axis=1)
    names = np.array(objects.names, dtype=str)[near]
    return {str(name): apart[names == name] for name in np.unique(names)}


def mean_velocity_errors(
    scans: Iterable[dict[str, np.ndarray]], classes: Sequence[str]
) -> tuple[dict[str, float], list[str]]:
    """The means of `velocity_errors` over scans, and lines that tell them; of classes that have
    any."""
    parts: dict[str, list[np.ndarray]] = {name: [] for name in classes}
    for scan in scans:
        for name in scan.keys() & parts.keys():
            parts[name].append(scan[name])
    joined = {name: np.concatenate(some) for name, some in parts.items() if some}
    means = {name: float(errors.mean()) for name, errors in joined.items()}
    return means, [
        f"mean error of velocities, {name}: {means[name]:.2f} m/s, {len(errors)} boxes"
        for name, errors in joined.items()
    ]


class WorldBoxes(NamedTuple):
    """The objects or the detections of all scans, of the benchmark's classes, within RANGES."""

    boxes: Boxes  # in the world; scores of detections, points of objects
    velocities: np.ndarray  # [n, 2] m/s in the world; NaN where an object's is unknown
    attributes: np.ndarray  # [n] str, empty for none

    def select(self, rows: np.ndarray) -> WorldBoxes:
        """The rows of a mask or of indices."""
        b = self.boxes
        columns = (b.frames, b.names, b.boxes, b.points, b.scores)
        boxes = Boxes(b.n_frames, *(column[rows] for column in columns))
        return WorldBoxes(boxes, self.velocities[rows], self.attributes[rows])


class Score(NamedTuple):
    nds: float
    ap: float  # mean over classes and distances, 0 to 1
    errors: dict[str, float]  # means over the classes
    classes: dict[str, dict[str, float]]  # AP and errors, NaN where the class has no such error


def detection_score(found: WorldBoxes, truth: WorldBoxes) -> Score:
    """Scores detections in the same scans as the objects; objects without points are left out."""
    pairs = find_pairs(truth.boxes, found.boxes)
    classes = {}
    for name in RANGES:
        count = int(((truth.boxes.names == name) & (truth.boxes.points > 0)).sum())
        figures = {}
        for limit in DISTANCES:
            matches = CentreMatches(name, limit, truth.boxes, found.boxes, pairs)
            figures[f"AP@{limit:g}"] = (matches.average_precision(ALL) or 0.0) / 100
            if limit == NEAR:
                rows, partners = matches.best_first()
                errors = _errors(found.select(rows), truth, partners, count, name)
        figures["AP"] = float(np.mean([*figures.values()]))
        classes[name] = figures | errors
    ap = float(np.mean([figures["AP"] for figures in classes.values()]))
    means = {
        error: float(np.nanmean([figures[error] for figures in classes.values()]))
        for error in ERRORS
    }
    total = WEIGHT * ap + sum(max(0.0, 1 - error) for error in means.values())
    return Score(total / (WEIGHT + len(ERRORS)), ap, means, classes)


def _errors(
    found: WorldBoxes, truth: WorldBoxes, partners: np.ndarray, count: int, name: str
) -> dict[str, float]:
    """found: best first; partners: row of the object that each found, or -1; count: of objects."""
    hit = partners >= 0
    wrong = dict.fromkeys(ERRORS, 1.0)
    if hit.any():
        scores = found.boxes.scores
        recall = np.cumsum(hit) / count
        sure = np.interp(PLACES, recall, scores, right=0)
        first, last = round(100 * MIN_RECALL) + 1, np.flatnonzero(sure).max(initial=0)
        each = _differences(found.select(hit), truth.select(partners[hit]), name)
        for error in ERRORS if last >= first else ():
            means = np.interp(sure[::-1], scores[hit][::-1], _running_mean(each[error])[::-1])[::-1]
            wrong[error] = float(means[first : last + 1].mean())
    return wrong | dict.fromkeys(NOT_JUDGED.get(name, ()), np.nan)


def _differences(found: WorldBoxes, truth: WorldBoxes, name: str) -> dict[str, np.ndarray]:
    """Of each pair, NaN where the object's own value is unknown."""
    a, b = found.boxes.boxes, truth.boxes.boxes
    common = np.minimum(a[:, 3:6], b[:, 3:6]).prod(axis=1)
    union = a[:, 3:6].prod(axis=1) + b[:, 3:6].prod(axis=1) - common
    period = np.pi if name == "barrier" else 2 * np.pi  # nobody knows a barrier's front
    turn = np.abs((b[:, 6] - a[:, 6] + period / 2) % period - period / 2)
    other = found.attributes != truth.attributes
    return {
        "ATE": np.linalg.norm(a[:, :2] - b[:, :2], axis=1),
        "ASE": 1 - common / union,
        "AOE": turn,
        "AVE": np.linalg.norm(found.velocities - truth.velocities, axis=1),
        "AAE": np.where(truth.attributes == "", np.nan, other),
    }


def _running_mean(values: np.ndarray) -> np.ndarray:
    """The mean of each value and those before it, without NaN; 1 where all are NaN."""
    known = ~np.isnan(values)
    if not known.any():
        return np.ones(len(values))
    sums, counts = np.nancumsum(values), np.cumsum(known)
    return np.divide(sums, counts, out=np.zeros(len(sums)), where=counts > 0)
