"""Curves of precision over recall, as a picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from data.metric.boxes import ALL, Group
from data.metric.evaluation import Overlaps, Result
from detector.draw.plot import COLOURS, Line, Panel, Scale, draw_panels
from detector.draw.style import TEXT

TICKS = (0, 0.2, 0.4, 0.6, 0.8, 1)
RECALL, PRECISION = Scale("recall", 0, 1.02, TICKS), Scale("precision", 0, 1.02, TICKS)
TITLES = {"distance": "by distance", "points": "by points on the object"}


def draw_curves(result: Result, overlaps: Overlaps, groups: Sequence[Group]) -> np.ndarray:
    """A row per class, [H, W, 3] uint8: left the groups by distance, right those by points.

    The curves are those that AP averages: in 3-D at the first overlap of the class, for all objects
    from above too. Groups without objects have none.
    """
    kinds = dict.fromkeys(group.by for group in groups) or {ALL.by: None}
    rows = []
    for name, figures in result["classes"].items():
        least = overlaps[name][0]
        row = []
        for kind in kinds:
            shown = [group.title for group in groups if group.by == kind]
            title = f"{name}, overlap {least:g}, {TITLES[kind]}"
            row.append(Panel(title, RECALL, PRECISION, _lines(figures, shown, least)))
        rows.append(row)
    return draw_panels(rows)


def _lines(figures: Mapping[str, Any], groups: Sequence[str], least: float) -> list[Line]:
    lines = []
    if figures[ALL.title]["count"]:
        lines.append(_line(figures, ALL.title, f"bev@{least:g}", "from above", dashed=True))
        lines.append(_line(figures, ALL.title, f"3d@{least:g}", "3-D"))
    for number, group in enumerate(groups):
        if figures[group]["count"]:
            line = _line(figures, group, f"3d@{least:g}", "3-D")
            lines.append(line._replace(colour=COLOURS[number % len(COLOURS)]))
    return lines


def _line(
    figures: Mapping[str, Any], group: str, metric: str, kind: str, dashed: bool = False
) -> Line:
    curve = figures[group][metric]
    recall, precision = np.array(curve["curve_recall"]), np.array(curve["curve_precision"])
    falling = np.maximum.accumulate(precision[::-1])[::-1]
    name = f"{group}, {kind}: AP {curve['R40']:.1f}, {figures[group]['count']} objects"
    x, y = np.append(0, recall), np.append(falling[:1], falling)
    return Line(name, x[: len(y)].tolist(), y.tolist(), TEXT, dashed)
