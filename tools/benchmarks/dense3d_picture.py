"""A picture of sparse convolution beside dense: milliseconds over occupancy."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from millisecond.detector.draw.plot import COLOURS, Line, Panel, Scale, draw_panels

OCCUPANCY = Scale("occupied sites, %", 0.1, 100, (0.1, 1, 10, 100), logarithmic=True)


def draw_occupancies(rows: Sequence[dict], crossings: Sequence[dict], title: str) -> np.ndarray:
    """A panel per precision, [H, W, 3] uint8: solid is sparse, dashed is dense, and a dot is where
    they cross."""
    times = [row[key] for row in rows for key in ("sparse_ms", "dense_ms")]
    low, high = (10.0 ** f(np.log10(t)) for f, t in ((np.floor, min(times)), (np.ceil, max(times))))
    ticks = 10.0 ** np.arange(round(np.log10(low)), round(np.log10(high)) + 1)
    scale = Scale("ms; dashed: dense, by cuDNN", low, high, ticks.tolist(), logarithmic=True)
    panels = []
    for precision in dict.fromkeys(row["precision"] for row in rows):
        lines: list[Line] = []
        for number, channels in enumerate(dict.fromkeys(row["channels"] for row in rows)):
            kind = {"precision": precision, "channels": channels}
            curve = [row for row in rows if kind.items() <= row.items()]
            crossing = next(row for row in crossings if kind.items() <= row.items())
            lines += _lines(curve, crossing["below"], COLOURS[number])
        panels.append(Panel(f"{title}, {precision}", OCCUPANCY, scale, lines))
    return draw_panels([panels])


def _lines(curve: Sequence[dict], below: float, colour: tuple[int, int, int]) -> list[Line]:
    percent = [100 * row["occupancy"] for row in curve]
    sparse, dense = ([row[key] for row in curve] for key in ("sparse_ms", "dense_ms"))
    where = {0.0: "nowhere", 1.0: "everywhere"}.get(below, f"below {100 * below:.2g} %")
    name = f"{curve[0]['channels']} channels: sparse faster {where}"
    lines = [Line(name, percent, sparse, colour), Line("", percent, dense, colour, dashed=True)]
    if 0 < below < 1:
        lines.append(Line("", [100 * below], dense[:1], colour, marked=True))
    return lines
