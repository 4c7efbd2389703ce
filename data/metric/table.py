"""The scores of `data.metric.evaluation` as tables to read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from data.kitti.metric.average_precision import SAMPLES
from data.kitti.metric.evaluation import OPERATING_SCORE
from data.metric.centre_distance import DISTANCES
from data.metric.confusion import LIMIT
from data.metric.evaluation import Overlaps, Result

TITLE = 16  # characters
NOTE = (
    f"* fewer than {SAMPLES} objects: the {SAMPLES} places of recall cap R40 (20 found perfectly "
    "give 47.5)"
)


def format_tables(result: Result, overlaps: Overlaps) -> str:
    """The AP of every class, then the confusion of classes and the worst frames; in percent."""
    blocks = [_ap_table(result, overlaps), _confusion_table(result["confusion"])]
    if result["worst"]:
        blocks.append(_worst_table(result["worst"]))
    return "\n\n".join(blocks)


def _ap_table(result: Result, overlaps: Overlaps) -> str:
    distances = "".join(f"{f'{limit:g} m':>7}" for limit in DISTANCES)
    sure = f"3-D, score >= {OPERATING_SCORE:g}"
    lines = [
        f"{'':{TITLE}}{'':8}{'AP R40':>14}{'':6}{'nuScenes AP, centre within':>33}{sure:>24}",
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


def _ap(value: float | None, capped: bool = False) -> str:
    return f"{_number(value):>8}{'*' if capped else ' '}"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"


def _confusion_table(confusion: Mapping[str, Any]) -> str:
    rows: Sequence[str] = confusion["rows"]
    columns: Sequence[str] = confusion["columns"]
    wide = max(len("found:"), *map(len, rows)) + 2
    widths = [max(7, len(name) + 2) for name in columns]
    heads = "".join(f"{name:>{w}}" for name, w in zip(columns, widths, strict=True))
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
        lines.append(f"{name:{wide}}{cells}".rstrip())
    return "\n".join(lines)


def _worst_table(worst: Sequence[Mapping[str, Any]]) -> str:
    wide = max(len("worst frame"), *(len(row["frame"]) for row in worst))
    lines = [f"{'worst frame':{wide}}  missed  false  badness"]
    for row in worst:
        lines.append(
            f"{row['frame']:{wide}}  {row['missed']:6}  {row['false']:5}  {row['badness']:7.2f}"
        )
    return "\n".join(lines)
