"""Draws the picture of few_labels.md: python -m docs.drawings.few_labels"""

from __future__ import annotations

from pathlib import Path

from detector.draw.plot import COLOURS, Line, Panel, Scale, draw_panels
from detector.draw.png import save_png

# BEV AP R40 at overlap 0.5 by labelled frames, as in few_labels.md
FINE_TUNED = {20: 46.6, 100: 51.9, 500: 52.2}
FROM_NOTHING = {20: 27.5, 100: 44.0, 500: 44.8}
UNTOUCHED = 37.9
SUGGESTED: dict[int, tuple[float, ...]] = {}  # a value per series
RANDOM: dict[int, tuple[float, ...]] = {}


def main(folder: Path = Path(__file__).parents[1]) -> None:
    save_png(folder / "few_labels.png", draw_panels([[_fine_tuning(), _suggestion()]]))


def _fine_tuning() -> Panel:
    frames = Scale("labelled frames", 16, 620, (20, 100, 500), logarithmic=True)
    lines = [
        Line("fine-tuned, --from", *_columns(FINE_TUNED), COLOURS[0], marked=True),
        Line("from random weights", *_columns(FROM_NOTHING), COLOURS[1], marked=True),
        Line("the weights as they are", (16, 620), (UNTOUCHED, UNTOUCHED), dashed=True),
    ]
    return Panel("Fine-tuning", frames, Scale("BEV AP", 20, 60, range(20, 61, 10)), lines)


def _suggestion() -> Panel:
    frames = Scale("labelled frames", 17, 94, (20, 40, 80), logarithmic=True)
    lines = []
    for name, series, colour in (
        ("chosen by suggest.py, mean", SUGGESTED, COLOURS[0]),
        ("chosen at random, mean", RANDOM, COLOURS[1]),
    ):
        means = {count: sum(values) / len(values) for count, values in series.items()}
        lines.append(Line(name, *_columns(means), colour, marked=True))
    for series, colour in ((SUGGESTED, COLOURS[0]), (RANDOM, COLOURS[1])):
        for one in zip(*series.values(), strict=True):
            faint = tuple(round(0.45 * part) for part in colour)
            lines.insert(0, Line("", list(series), one, faint))
    return Panel("What to label next", frames, Scale("BEV AP", 44, 56, range(44, 57, 2)), lines)


def _columns(curve: dict[int, float]) -> tuple[list[int], list[float]]:
    return list(curve), list(curve.values())


if __name__ == "__main__":
    main()
