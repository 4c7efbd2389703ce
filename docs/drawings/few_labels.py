"""The drawing of few_labels.md."""

from __future__ import annotations

import numpy as np

from millisecond.detector.draw.plot import COLOURS, Line, Panel, Scale, draw_panels

# BEV AP R40 at overlap 0.5 by labelled frames, as in few_labels.md
FINE_TUNED = {20: 46.6, 100: 51.9, 500: 52.2}
FROM_NOTHING = {20: 27.5, 100: 44.0, 500: 44.8}
UNTOUCHED = 37.9
# a value per series of rounds
Series = dict[int, tuple[float, ...]]
SUGGESTED: Series = {20: (47.9, 50.0), 40: (50.7, 51.8), 80: (54.1, 53.2)}
RANDOM: Series = {20: (47.9, 50.0), 40: (50.3, 50.3), 80: (51.3, 52.5)}
SUGGESTED_OF_FEW: Series = {20: (42.9, 39.5), 40: (50.8, 49.9), 80: (51.0, 50.5)}
RANDOM_OF_FEW: Series = {20: (42.9, 39.5), 40: (50.0, 45.9), 80: (48.4, 49.2)}


def draw() -> np.ndarray:
    """[H, W, 3] uint8."""
    panels = [
        _fine_tuning(),
        _suggestion("What to label next: all streets", SUGGESTED, RANDOM),
        _suggestion("Where 4 of 5 have a car at most", SUGGESTED_OF_FEW, RANDOM_OF_FEW),
    ]
    return draw_panels([panels])


def _fine_tuning() -> Panel:
    frames = Scale("labelled frames", 16, 620, (20, 100, 500), logarithmic=True)
    lines = [
        Line("fine-tuned, --from", *_columns(FINE_TUNED), COLOURS[0], marked=True),
        Line("from random weights", *_columns(FROM_NOTHING), COLOURS[1], marked=True),
        Line("the weights as they are", (16, 620), (UNTOUCHED, UNTOUCHED), dashed=True),
    ]
    return Panel("Fine-tuning", frames, Scale("BEV AP", 20, 60, range(20, 61, 10)), lines)


def _suggestion(title: str, suggested: Series, at_random: Series) -> Panel:
    """The mean of the series, and each of them dashed."""
    frames = Scale("labelled frames", 17, 94, (20, 40, 80), logarithmic=True)
    choices = (("chosen by millisecond suggest", suggested), ("chosen at random", at_random))
    lines = []
    for (name, series), colour in zip(choices, COLOURS, strict=False):
        means = {count: float(np.mean(values)) for count, values in series.items()}
        lines.append(Line(f"{name}, mean", *_columns(means), colour, marked=True))
        red, green, blue = (part // 2 for part in colour)
        for number, one in enumerate(zip(*series.values(), strict=True)):
            key = "" if number else f"{name}, each series"
            lines.append(Line(key, list(series), one, (red, green, blue), dashed=True))
    return Panel(title, frames, Scale("BEV AP", 38, 56, range(40, 57, 4)), lines)


def _columns(curve: dict[int, float]) -> tuple[list[int], list[float]]:
    return list(curve), list(curve.values())
