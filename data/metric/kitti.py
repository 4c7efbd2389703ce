"""The KITTI detection metric in numpy: average precision of boxes in the image, from above, in 3-D;
its table; and its verdict on each object and each detection of one frame.

The rules are the official ones (see matching.py). The numbers agree with the benchmark's own
evaluators. Neither a GPU nor a compiler is needed.
"""

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from millisecond.data.kitti.labels import MAX_OCCLUDED, MIN_HEIGHT, Labels
from millisecond.data.metric.matching import (
    COUNTS,
    OF_FALSE,
    OF_MISSED,
    OUT,
    SAMPLES,
    Matcher,
    Objects,
    Overlaps,
    average,
    detection_roles,
    find_overlaps,
    recall_thresholds,
    tell_reasons,
    truth_roles,
)

# Overlaps that make a match: the benchmark's, and a loose one often reported beside it.
MIN_OVERLAP = {"Car": (0.7, 0.5), "Pedestrian": (0.5, 0.25), "Cyclist": (0.5, 0.25)}
OTHER_OVERLAP = (0.5, 0.25)  # of classes that the benchmark does not have
OPERATING_SCORE = 0.5

Result = dict[str, dict[str, dict[str, list]]]


def evaluate(
    detections: Sequence[Labels],
    ground_truth: Sequence[Labels],
    classes: Sequence[str] = tuple(MIN_OVERLAP),
    min_overlap: Mapping[str, tuple[float, float]] = MIN_OVERLAP,
) -> Result:
    """Scores detections, one Labels per frame, against the ground truth of the same frames.

    Returns class -> metric -> figure -> [easy, moderate, hard]. Metrics are bbox, aos, bev and 3d
    at the benchmark's overlap, and the same at the loose one, named bbox@0.5 and so on. Figures:

    - R11, R40: average precision in percent over 11 and 40 places of recall (aos: orientation
      similarity). Fewer than 41 ground truths cap them: 20 found perfectly give 47.5 at R40.
    - count: number of ground truths of this difficulty.
    - recall, precision: shares, of the detections that score at least 0.5. Recall is hits / count,
      precision hits / (hits + false ones); detections that the benchmark ignores count as neither.

    aos is missing where a detection of the class has alpha = -10, KITTI's unknown orientation.
    Raises ValueError for sequences of different length, a class KITTI does not evaluate, and
    detections without a score.
    """
    if len(detections) != len(ground_truth):
        raise ValueError(
            f"detections of {len(detections)} frames and ground truth of {len(ground_truth)}: "
            "give one Labels per frame on both sides"
        )
    for name in classes:
        if name not in min_overlap:
            raise ValueError(f"class {name!r} has no KITTI metric: use {', '.join(min_overlap)}")
    truth, found = Objects.of(ground_truth), Objects.of(detections)
    if np.isnan(found.scores).any():
        frame = found.frames[np.isnan(found.scores)][0]
        raise ValueError(f"detections of frame number {frame} have no score: add a 16th field")
    overlaps = find_overlaps(truth, found)
    return {
        name: _evaluate_class(name, min_overlap[name], truth, found, overlaps) for name in classes
    }


def _evaluate_class(
    name: str,
    min_overlap: tuple[float, float],
    truth: Objects,
    detections: Objects,
    overlaps: Overlaps,
) -> dict[str, dict[str, list]]:
    oriented = not (detections.alpha[detections.types == name.lower()] == -10).any()
    result: dict[str, dict[str, list]] = {}
    roles = [
        (truth_roles(truth, name, difficulty), detection_roles(detections, name, difficulty))
        for difficulty in range(len(MIN_HEIGHT))
    ]
    easy, detected = roles[0]  # no other difficulty has fewer boxes that are left out
    near = np.maximum.reduce(list(overlaps.iou.values())) > min(min_overlap)
    used = (easy != OUT)[overlaps.truth] & (detected != OUT)[overlaps.detections]
    overlaps = overlaps.select(near & used)
    for loose, min_iou in enumerate(min_overlap):
        suffix = f"@{min_iou}" if loose else ""
        for pair in roles:
            for metric in overlaps.iou:
                scored = _score(metric, min_iou, truth, detections, overlaps, *pair)
                for scored_metric, figures in scored.items():
                    if scored_metric == "aos" and not oriented:
                        continue
                    columns = result.setdefault(scored_metric + suffix, {})
                    for figure, value in figures.items():
                        columns.setdefault(figure, []).append(value)
    return result


def _score(
    metric: str,
    min_iou: float,
    truth: Objects,
    detections: Objects,
    overlaps: Overlaps,
    roles: np.ndarray,
    detected: np.ndarray,
) -> dict[str, dict[str, float]]:
    """Figures of one metric for the roles of truth and detections; the figures of aos come with
    bbox."""
    iou = overlaps.iou[metric]
    matcher = Matcher(overlaps[:3], iou, min_iou, roles, detected, detections.scores)
    count = int((roles == COUNTS).sum())
    thresholds = np.append(recall_thresholds(matcher.hit_scores(), count), OPERATING_SCORE)

    # Only the image metric has DontCare regions: they have no place in 3-D.
    absorbed = (overlaps.dont_care > min_iou) & (metric == "bbox")
    hits, false, taken = matcher.count(thresholds, (detected == COUNTS) & ~absorbed)
    total = np.maximum(hits + false, 1)

    plain = {
        "count": count,
        "recall": float(hits[-1] / max(count, 1)),
        "precision": float(hits[-1] / total[-1]),
    }
    figures = {metric: average((hits / total)[:-1]) | plain}
    if metric == "bbox":
        turn = truth.alpha[matcher.truth] - detections.alpha[matcher.detections]
        similarity = ((1 + np.cos(turn)) / 2) @ (taken & matcher.hits[:, None])
        figures["aos"] = average((similarity / total)[:-1]) | plain
    return figures


LEVELS = ("easy", "mod.", "hard")
WIDTH = 100  # columns of a printed line
HEADER = (
    f"{'':9}{'AP R40 (ground truths)':<45}{'AP R11':<23}{'recall':<13}precision\n"
    f"{'':9}{''.join(f'{level:<15}' for level in LEVELS)}"
    f"{''.join(f'{level:<7}' for level in LEVELS)}   e   m   h    e   m   h"
)
NOTES = {
    "*": f"fewer than {SAMPLES} ground truths: the {SAMPLES} places of recall cap the AP\n"
    "  (20 found perfectly give 47.5 at R40, 45.5 at R11)",
    "-": "no ground truth of this class and difficulty: see the limits of height in the\n"
    "  image, occlusion and truncation",
}


def format_table(result: Result) -> str:
    """A summary, then a block per class and overlap, a row per metric; every AP beside its number
    of objects.

    AP, recall and precision are in percent; recall and precision as evaluation.evaluate
    defines them. Marks, explained below the table, show where AP is capped or where there are no
    objects.
    """
    aps = {
        name: (metrics["3d"]["R40"][1], metrics["3d"]["count"][1])
        for name, metrics in result.items()
    }
    found = ", ".join(f"{name} {_ap(value, count).strip()}" for name, (value, count) in aps.items())
    known = [value for value, count in aps.values() if count]
    mean = f"; mean {np.mean(known):.2f}" if len(known) > 1 else ""
    summary = f"AP in 3-D, R40, moderate: {found}{mean}"
    lines = [textwrap.fill(summary, WIDTH, subsequent_indent="  "), "", HEADER]
    marks: set[str] = set()
    for name, metrics in result.items():
        block = None
        for metric, figures in metrics.items():
            kind, _, overlap = metric.partition("@")
            if block != overlap:
                block = overlap
                lines.append(f"{name}, overlap {overlap or MIN_OVERLAP[name][0]}")
            marks |= {_mark(count) for count in figures["count"]} - {""}
            lines.append(_row(kind, figures))
    lines.append(f"recall and precision: of detections that score at least {OPERATING_SCORE}")
    lines += [f"{mark} {note}" for mark, note in NOTES.items() if mark in marks]
    return "\n".join(lines)


def _mark(count: int) -> str:
    if count == 0:
        return "-"
    return "*" if count < SAMPLES else ""


def _row(kind: str, figures: dict[str, list]) -> str:
    counts = figures["count"]
    r40 = "".join(
        f"{_ap(v, n) + f' ({n})':<15}" for v, n in zip(figures["R40"], counts, strict=True)
    )
    r11 = "".join(_ap(v, n) for v, n in zip(figures["R11"], counts, strict=True))
    shares = ("".join(f"{100 * v:4.0f}" for v in figures[key]) for key in ("recall", "precision"))
    return f"  {kind:<5}{r40}{r11}  {' '.join(shares)}"


def _ap(value: float, count: int) -> str:
    return f"{'' if count == 0 else f'{value:.2f}':>6}{_mark(count) or ' '}"


MATCHED, MISSED, FALSE, IGNORED = "matched", "missed", "false", "ignored"


class Verdicts(NamedTuple):
    """M objects and N detections of a frame, in their order."""

    truth: np.ndarray  # [M] str: matched, missed or ignored
    detections: np.ndarray  # [N] str: matched, false or ignored
    partner: np.ndarray  # [N] int64: the object that a detection is matched with, or -1
    overlap: np.ndarray  # [N] float64: with that object, or NaN
    truth_reasons: np.ndarray  # [M] str: of missed and ignored objects; empty for others
    reasons: np.ndarray  # [N] str: of false and ignored detections; empty for others


class Count(NamedTuple):
    """Numbers of verdicts in a frame, or of one class there."""

    matched: int = 0
    missed: int = 0
    false: int = 0

    def __str__(self) -> str:
        return f"{self.matched} matched, {self.missed} missed, {self.false} false"


def count(truth: Iterable[str], detections: Iterable[str]) -> Count:
    """Numbers of the verdicts on objects and on detections."""
    objects, found = list(truth), list(detections)
    return Count(found.count(MATCHED), objects.count(MISSED), found.count(FALSE))


def badness(verdicts: Verdicts, scores: np.ndarray) -> float:
    """How bad a frame is: 1 for each missed object, its score for each false detection."""
    missed = (verdicts.truth == MISSED).sum()
    return float(missed + np.asarray(scores)[verdicts.detections == FALSE].sum())


METRICS = ("3d", "bev")
HARD = 2  # the difficulty that counts most objects: all that KITTI does not leave out


def default_overlap(name: str) -> float:
    """KITTI's least overlap of a match in a class: 0.7 for cars, else 0.5."""
    return MIN_OVERLAP.get(name, OTHER_OVERLAP)[0]


def judge(
    detections: Labels, truth: Labels, min_overlap: Mapping[str, float], metric: str = "3d"
) -> Verdicts:
    """Matches all given detections of a frame with its labelled objects.

    The rules of `evaluate` at the difficulty "hard" apply. Give only the detections that
    score enough: then the matched and the false detections, summed over many frames, are the hits
    and the false detections in its recall and precision.

    Args:
        detections: with a score.
        min_overlap: by the names of the classes that are judged. All others are ignored.
        metric: "3d" or "bev".
    """
    objects, found = Objects.of([truth]), Objects.of([detections])
    overlaps = find_overlaps(objects, found)
    result = Verdicts(
        np.full(len(truth), IGNORED),
        np.full(len(detections), IGNORED),
        np.full(len(detections), -1),
        np.full(len(detections), np.nan),
        np.full(len(truth), NOT_SCORED, object),
        np.full(len(detections), NOT_SCORED, object),
    )
    for name, least in min_overlap.items():
        roles, detected = truth_roles(objects, name, HARD), detection_roles(found, name, HARD)
        matcher = Matcher(overlaps[:3], overlaps.iou[metric], least, roles, detected, found.scores)
        taken = matcher.taken(np.array([-np.inf]))[:, 0]
        hit = taken & matcher.hits
        a, b = matcher.truth[hit], matcher.detections[hit]
        own, own_found = objects.types == name.lower(), found.types == name.lower()
        result.truth_reasons[own], result.reasons[own_found] = "", ""
        # A counting object whose only detection is too low in the image is neither right nor wrong.
        result.truth[own & (roles == COUNTS)] = MISSED
        touched = matcher.truth[taken]
        result.truth[touched[own[touched]]] = IGNORED
        result.truth[a] = MATCHED
        result.detections[own_found & (detected == COUNTS)] = FALSE
        used = matcher.detections[taken]
        result.detections[used[own_found[used]]] = IGNORED
        result.detections[b] = MATCHED
        result.partner[b], result.overlap[b] = a, matcher.iou[hit]
        counted = own & (roles == COUNTS), own_found & (detected == COUNTS)
        _tell_excuses(result, truth, (own, own_found), counted, (touched, used))
        a, b, iou = overlaps.truth, overlaps.detections, overlaps.iou[metric]
        strange, others = np.where(own_found, "", detections.types), np.where(own, "", truth.types)
        missed, false = own & (result.truth == MISSED), own_found & (result.detections == FALSE)
        tell_reasons(missed, (a, b), iou, least, strange, OF_MISSED, result.truth_reasons)
        tell_reasons(false, (b, a), iou, least, others, OF_FALSE, result.reasons)
    return result


NOT_SCORED = "class not scored"
LOW = f"lower than {MIN_HEIGHT[HARD]} pixels"


def _tell_excuses(
    result: Verdicts,
    truth: Labels,
    own: tuple[np.ndarray, np.ndarray],
    counted: tuple[np.ndarray, np.ndarray],
    taken: tuple[np.ndarray, np.ndarray],
) -> None:
    """Writes why boxes of one class are ignored.

    own, counted: [M], [N] bool, of the class, and those that are scored unless they are matched
    otherwise. taken: rows of objects and of their detections.
    """
    for row in np.flatnonzero(own[0] & (result.truth == IGNORED)).tolist():
        low = f"its detection is {LOW}"
        result.truth_reasons[row] = low if counted[0][row] else _excuse(truth, row)
    result.reasons[own[1] & (result.detections == IGNORED)] = LOW
    for partner, row in zip(*(rows.tolist() for rows in taken), strict=True):
        if counted[1][row] and result.detections.item(row) == IGNORED:
            why = f", {result.truth_reasons[partner]}" if own[0][partner] else ""
            result.reasons[row] = f"on a {truth.types.item(partner)}{why}"


def _excuse(truth: Labels, row: int) -> str:
    """Why KITTI's metric counts an object at no difficulty."""
    if truth.bbox[row, 3] - truth.bbox[row, 1] < MIN_HEIGHT[HARD]:
        return LOW
    if truth.occluded[row] > MAX_OCCLUDED[HARD]:
        return f"hidden, {truth.occluded[row]}"
    return f"cut off, {truth.truncated[row]:.2f}"
