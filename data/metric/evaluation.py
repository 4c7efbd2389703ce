"""Scores of boxes in the LiDAR frame, by class, distance and points on the object; the confusion
of classes; their tables.
"""

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from millisecond.data.metric.kitti import (
    FALSE,
    IGNORED,
    MATCHED,
    NOT_SCORED,
    OPERATING_SCORE,
    WIDTH,
    Verdicts,
    default_overlap,
)
from millisecond.data.metric.matching import OF_FALSE, OF_MISSED, SAMPLES, tell_reasons
from millisecond.data.metric.overlap import (
    ALL,
    DISTANCES,
    Boxes,
    CentreMatches,
    FrameBoxes,
    Group,
    NearPairs,
    OverlapMatches,
    find_pairs,
    match_greedily,
)
from millisecond.data.metric.reliability import format_reliability, reliability

LIMIT = 2.0  # metres between the centres of a pair, as for the errors of the nuScenes metric
MISSED, NOTHING = "missed", "nothing"


class Confusion(NamedTuple):
    """Numbers of objects by their class and the detected class."""

    rows: tuple[str, ...]  # classes of the objects, then NOTHING: where no object is
    columns: tuple[str, ...]  # classes of the detections, then MISSED
    counts: np.ndarray  # [rows, columns] int64


def confusion(
    truth: Boxes, detections: Boxes, pairs: NearPairs, classes: Sequence[str]
) -> Confusion:
    """Of the detections that score at least 0.5 and the objects that hold points.

    A detection goes with an object within 2 m, nearest pairs first. In a first round both have the
    same class. In a second round the remaining detections go with the remaining objects of any
    class. Objects of classes that are not among `classes` have a row if there are any.
    """
    others = sorted(set(truth.names[truth.points > 0].tolist()) - set(classes))
    rows, columns = (*classes, *others, NOTHING), (*classes, MISSED)
    sure = (detections.scores >= OPERATING_SCORE) & np.isin(detections.names, classes)
    there = truth.points > 0
    near = pairs.select(there[pairs.truth] & sure[pairs.detections] & (pairs.distance <= LIMIT))
    unlike = truth.names[near.truth] != detections.names[near.detections]
    taken = match_greedily(near, np.lexsort((near.distance, unlike)))

    counts = np.zeros((len(rows), len(columns)), np.int64)
    row_of, column_of = ({name: i for i, name in enumerate(names)} for names in (rows, columns))
    found = np.full(len(truth.names), MISSED, dtype=object)
    found[near.truth[taken]] = detections.names[near.detections[taken]]
    for name, column in zip(truth.names[there].tolist(), found[there].tolist(), strict=True):
        counts[row_of[name], column_of[column]] += 1
    free = sure.copy()
    free[near.detections[taken]] = False
    for name in detections.names[free].tolist():
        counts[row_of[NOTHING], column_of[name]] += 1
    return Confusion(rows, columns, counts)


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
        groups: of objects that get figures of their own, beside the figures of all objects.
        frame_ids: the names of the frames, their numbers unless given.

    Returns:
        - classes: class -> group -> figures. count: objects that hold points. empty: objects
          without points, which no figure counts. bev@IoU and 3d@IoU: see `OverlapMatches.score`.
          centre: the nuScenes AP in percent by its distance in metres, and their mean.
        - mean: the means, over the classes that have objects, of R40 in 3-D and from above at the
          first overlap, and of centre's mean; None without objects.
        - confusion: see `data.metric.confusion`.
        - reliability: class -> rows, see `reliability`; in 3-D at the first overlap.
        - worst: the ten frames with most errors at a score of 0.5, in 3-D: frame, missed, false,
          and badness, 1 for each missed object and its score for each false detection.

    Raises ValueError if both do not have as many frames.
    """
    if len(detections) != len(objects):
        raise ValueError(f"detections of {len(detections)} frames, objects of {len(objects)}")
    truth, found, pairs, matches = matches_of(detections, objects, overlaps)
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
        "reliability": {name: reliability(of.judged()) for name, of in matches.items()},
        "worst": _worst(matches, truth, found, names),
    }


def matches_of(
    detections: Sequence[FrameBoxes], objects: Sequence[FrameBoxes], overlaps: Overlaps
) -> tuple[Boxes, Boxes, NearPairs, dict[str, OverlapMatches]]:
    """Objects, detections, their pairs, and their matches by class in 3-D at the first overlap."""
    truth, found = Boxes.of(objects), Boxes.of(detections)
    pairs, matches = find_pairs(truth, found), {}
    for name, (least, *_) in overlaps.items():
        matches[name] = OverlapMatches(name, pairs.volume, least, truth, found, pairs)
    return truth, found, pairs, matches


def _score_class(
    name: str,
    overlaps: Sequence[float],
    groups: Sequence[Group],
    truth: Boxes,
    found: Boxes,
    pairs: NearPairs,
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


def errors_of_frames(
    matches: Mapping[str, OverlapMatches], truth: Boxes, found: Boxes
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Of every frame, the missed objects, the false detections, and its badness: see `evaluate`."""
    missed, false, badness = (np.zeros(truth.n_frames) for _ in range(3))
    for of in matches.values():
        lost, wrong = of.errors()
        np.add.at(missed, truth.frames[lost], 1)
        np.add.at(false, found.frames[wrong], 1)
        np.add.at(badness, found.frames[wrong], found.scores[wrong])
    return missed, false, badness + missed


def verdicts_of(
    matches: Mapping[str, OverlapMatches],
    truth: Boxes,
    found: Boxes,
    pairs: NearPairs,
    overlaps: Overlaps,
) -> Verdicts:
    """The verdicts on the boxes of all frames at a score of 0.5, in 3-D at the first overlap; what
    scores less is ignored."""
    objects, detections = len(truth.names), len(found.names)
    result = Verdicts(
        np.full(objects, IGNORED),
        np.full(detections, IGNORED),
        np.full(detections, -1),
        np.full(detections, np.nan),
        np.full(objects, NOT_SCORED, object),
        np.full(detections, NOT_SCORED, object),
    )
    sure = found.scores >= OPERATING_SCORE
    near, low = pairs.select(sure[pairs.detections]), pairs.select(~sure[pairs.detections])
    for name, of in matches.items():
        own, own_found, least = truth.names == name, found.names == name, overlaps[name][0]
        result.truth_reasons[own], result.reasons[own_found] = NO_POINT, f"on an object, {NO_POINT}"
        result.reasons[own_found & ~sure] = f"scores less than {OPERATING_SCORE}"
        missed, false = of.errors()
        taken = of.taken(OPERATING_SCORE)
        a, b, iou = (column[truth.points[taken[0]] > 0] for column in taken)
        result.truth[missed], result.detections[false] = MISSED, FALSE
        result.truth[a], result.detections[b] = MATCHED, MATCHED
        result.truth_reasons[a], result.reasons[b] = "", ""
        result.partner[b], result.overlap[b] = a, iou
        strange, others = np.where(own_found, "", found.names), np.where(own, "", truth.names)
        a, b, iou = near.truth, near.detections, near.volume
        tell_reasons(missed, (a, b), iou, least, strange, OF_MISSED, result.truth_reasons)
        tell_reasons(false, (b, a), iou, least, others, OF_FALSE, result.reasons)
        unsure = low.select(missed[low.truth] & own_found[low.detections] & (low.volume > least))
        for row, detection in zip(unsure.truth, unsure.detections, strict=True):
            score = f"{found.scores[detection]:.2f} < {OPERATING_SCORE:.2f}"
            result.truth_reasons[row] = f"its detection scores {score}"
    return result


NO_POINT = "no point on it"


def _worst(
    matches: Mapping[str, OverlapMatches], truth: Boxes, found: Boxes, names: Sequence[str]
) -> list[dict[str, Any]]:
    missed, false, badness = errors_of_frames(matches, truth, found)
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


TITLE = 16  # characters
BEAMS = {"1 beam": 1, "2 beams": 2, "3-4 beams": 3, "5-8 beams": 5, "9+ beams": 9}  # from on
NOTE = (
    f"* fewer than {SAMPLES} objects: the {SAMPLES} places of recall cap R40 (20 found perfectly "
    "give 47.5)"
)


def format_tables(result: Result, overlaps: Overlaps) -> str:
    """A summary, AP and reliability of every class, the confusion of classes, the worst frames; in
    percent."""
    blocks = [
        _summary(result, overlaps),
        _ap_table(result, overlaps),
        format_reliability(result["reliability"]),
    ]
    blocks.append(_confusion_table(result["confusion"]))
    if result["worst"]:
        blocks.append(_worst_table(result["worst"]))
    return "\n\n".join(blocks)


def _summary(result: Result, overlaps: Overlaps) -> str:
    """3-D AP of each class that has objects, and their mean, as in the rows of the table."""
    aps = []
    for name, groups in result["classes"].items():
        if count := groups["all"]["count"]:
            value = groups["all"][f"3d@{overlaps[name][0]:g}"]["R40"]
            aps.append(f"{name} {_ap(value, count < SAMPLES).strip()}")
    mean = f"; mean {_number(result['mean']['3d'])}" if len(aps) > 1 else ""
    text = f"AP in 3-D, R40: {', '.join(aps) or 'no objects'}{mean}"
    return textwrap.fill(text, WIDTH, subsequent_indent="  ")


def _ap_table(result: Result, overlaps: Overlaps) -> str:
    distances = "".join(f"{f'{limit:g} m':>7}" for limit in DISTANCES)
    sure = f"3-D, score >= {OPERATING_SCORE:g}"
    lines = [
        f"{'':{TITLE}}{'':8}{'AP R40':>14}{'':6}{'nuScenes AP, centre within':>33}{sure:>23}",
        f"{'':{TITLE}}{'objects':>8}{'BEV':>8} {'3-D':>8}   {distances}{'mean':>7}"
        f"{'recall':>10}{'precision':>11}",
    ]
    marked = empty = 0
    for name, groups in result["classes"].items():
        for number, least in enumerate(overlaps[name]):
            lines.append(f"{name}, overlap {least:g}")
            for title, figures in groups.items():
                lines.append(_row(title, figures, least, with_centre=number == 0))
                marked += 0 < figures["count"] < SAMPLES
        empty += groups["all"]["empty"]
    mean = result["mean"]
    if len(result["classes"]) > 1:
        capped = any(0 < groups["all"]["count"] < SAMPLES for groups in result["classes"].values())
        values = f"{'':8}{_ap(mean['bev'], capped)}{_ap(mean['3d'], capped)}"
        lines.append(f"{'mean':{TITLE}}{values}  {'':28}{_number(mean['centre']):>7}")
    lines += [NOTE] * bool(marked)
    if empty:
        lines.append(f"left out, for they hold no point of the scan: {empty}")
    return "\n".join(lines)


def _row(title: str, figures: Mapping[str, Any], least: float, with_centre: bool) -> str:
    bev, volume, count = figures[f"bev@{least:g}"], figures[f"3d@{least:g}"], figures["count"]
    capped = 0 < count < SAMPLES
    row = f"  {title:{TITLE - 2}}{count:8}{_ap(bev['R40'], capped)}{_ap(volume['R40'], capped)}  "
    centre = figures["centre"].values()  # the same at every overlap
    row += "".join(f"{_number(value) if with_centre else '':>7}" for value in centre)
    if count:
        row += f"{100 * volume['recall']:10.0f}{100 * volume['precision']:11.0f}"
    return row.rstrip()


def sensor_report(
    detections: Sequence[FrameBoxes],
    objects: Sequence[FrameBoxes],
    overlaps: Overlaps,
    groups: Sequence[Group],
) -> str:
    """A table by distance, points and beams: medians of the objects that hold points, and how many
    are found in 3-D at the first overlap."""
    truth, _, _, matches = matches_of(detections, objects, overlaps)
    beams = np.concatenate([np.zeros(0, np.int64), *(frame.beams for frame in objects)])
    masks = {group.title: group.holds(truth) for group in (ALL, *groups)}
    kinds = np.searchsorted(list(BEAMS.values()), beams, side="right") - 1
    masks |= {title: kinds == number for number, title in enumerate(BEAMS)}
    lines = [
        f"{'what the sensor shows':{TITLE + 8}}{'medians of an object':>22}{'recall in 3-D':>26}",
        f"{'':{TITLE}}{'objects':>8}{'points':>12}{'beams':>10}{'score >= 0.5':>17}{'any':>9}",
    ]
    for name, of in matches.items():
        lines.append(f"{name}, overlap {overlaps[name][0]:g}")
        missed = [of.errors(score)[0] for score in (OPERATING_SCORE, 0.0)]
        for title, mask in masks.items():
            own = mask & (truth.names == name) & (truth.points > 0)
            if own.any():
                shown = f"{np.median(truth.points[own]):12.0f}{np.median(beams[own]):10.0f}"
                sure, any_ = (100 * (1 - lost[own].mean()) for lost in missed)
                lines.append(f"  {title:{TITLE - 2}}{own.sum():8}{shown}{sure:17.0f}{any_:9.0f}")
    return "\n".join(lines)


def _ap(value: float | None, capped: bool = False) -> str:
    return f"{_number(value):>8}{'*' if capped else ' '}"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"


def _confusion_table(confusion: Mapping[str, Any]) -> str:
    rows: Sequence[str] = confusion["rows"]
    columns: Sequence[str] = confusion["columns"]
    wide = max(len("found:"), *map(len, rows)) + 2
    widths, titles = [max(7, len(name) + 2) for name in columns], list(columns)
    places: dict[str, str] = {}  # numbers in the place of names that are too long side by side
    if wide + sum(widths) > WIDTH:
        places = {name: f"{number} " for number, name in enumerate(columns[:-1], 1)}
        titles = [places.get(name, name).strip() for name in columns]
        wide, widths = wide + 3, [6] * len(places) + [8]
    heads = "".join(f"{name:>{w}}" for name, w in zip(titles, widths, strict=True))
    lines = [
        f"confusion of classes: objects, and detections within {LIMIT:g} m that score at least "
        f"{OPERATING_SCORE}",
        f"{'found:':{wide}}{heads}",
    ]
    for name, counts in zip(rows, confusion["counts"], strict=True):
        learnt = name in columns
        if not (learnt or name == rows[-1] or any(counts[:-1])):
            continue
        shown = [*map(str, counts[:-1]), str(counts[-1]) if learnt else ""]
        cells = "".join(f"{text:>{w}}" for text, w in zip(shown, widths, strict=True))
        lines.append(f"{places.get(name, '') + name:{wide}}{cells}".rstrip())
    return "\n".join(lines)


def _worst_table(worst: Sequence[Mapping[str, Any]]) -> str:
    wide = max(len("worst frame"), *(len(row["frame"]) for row in worst))
    lines = [f"{'worst frame':{wide}}  missed  false  badness"]
    for row in worst:
        lines.append(
            f"{row['frame']:{wide}}  {row['missed']:6}  {row['false']:5}  {row['badness']:7.2f}"
        )
    return "\n".join(lines)
