"""A picture of how long calls took: one histogram per series, with its percentiles."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from PIL import Image, ImageDraw

from detector.draw.style import BACKGROUND, FAINT, GRID, TEXT, Colour
from detector.draw.text import shortened, width, write
from tools.benchmarks.percentiles import Percentiles

WIDTH, LEFT, RIGHT = 1100, 40, 40  # pixels
TITLE, ROW, BARS = 56, 150, 78  # heights: of the title, of a series, of its bars
BAR = 4  # pixels of a bar
FILL: Colour = (70, 110, 178)
MARKS: dict[str, Colour] = {"p50": (52, 224, 108), "p90": (255, 214, 50), "p99": (255, 84, 84)}


def draw_latencies(samples: Mapping[str, Sequence[float]], title: str) -> np.ndarray:
    """Milliseconds by the name of their series -> a picture [H, W, 3] uint8.

    Each series has its own scale: from its fastest call to its 99.9th percentile.
    """
    image = Image.new("RGB", (WIDTH, TITLE + ROW * len(samples)), BACKGROUND)
    draw = ImageDraw.Draw(image)
    write(draw, (LEFT, TITLE / 2), shortened(title, 18, WIDTH - LEFT - RIGHT), TEXT, 18)
    for number, (name, milliseconds) in enumerate(samples.items()):
        _series(draw, TITLE + ROW * number, name, milliseconds)
    return np.asarray(image)


def _series(
    draw: ImageDraw.ImageDraw, top: float, name: str, milliseconds: Sequence[float]
) -> None:
    times = Percentiles.of(milliseconds)
    low, high = min(milliseconds), times.p99_9
    high = max(high, low * 1.01, low + 1e-3)  # calls that all took the same
    room, base = WIDTH - LEFT - RIGHT, top + 26 + BARS
    counts, _ = np.histogram(milliseconds, bins=room // BAR, range=(low, high))
    write(draw, (LEFT, top + 10), f"{name}: {len(milliseconds)} calls", TEXT, 14)
    slow = sum(time > high for time in milliseconds)
    text = f"p99.9 {times.p99_9:.3f} ms" + (f", {slow} slower" if slow else "")
    right: float = WIDTH - RIGHT
    for said, colour in ((text, FAINT), *_percentiles(times)):
        write(draw, (right, top + 10), said, colour, 14, "rm")
        right -= width(said, 14) + 16

    # ---- axis ----
    step = _step(high - low)
    for tick in np.arange(np.ceil(low / step) * step, high + step * 1e-6, step):
        x = LEFT + room * (tick - low) / (high - low)
        draw.line((x, base - BARS, x, base + 4), GRID)
        write(draw, (x, base + 14), f"{tick:.6g}", FAINT, 12, "mm")
    draw.line((LEFT, base, LEFT + room, base), FAINT)

    # ---- bars and percentiles ----
    for place, count in enumerate(counts):
        if count:
            x = LEFT + place * BAR
            height = max(1, round(BARS * count / counts.max()))
            draw.rectangle((x, base - height, x + BAR - 2, base - 1), FILL)
    for mark, colour in MARKS.items():
        x = LEFT + room * (getattr(times, mark) - low) / (high - low)
        draw.line((x, base - BARS, x, base), colour)


def _percentiles(times: Percentiles) -> list[tuple[str, Colour]]:
    """Those that are marked, the slowest first, in the colours of their lines."""
    return [(f"{mark} {getattr(times, mark):.3f}", MARKS[mark]) for mark in reversed(MARKS)]


def _step(span: float) -> float:
    """A round distance of the ticks: 1, 2 or 5 times a power of ten, six to fifteen of them."""
    power = 10 ** np.floor(np.log10(span / 5))
    return float(next(step for step in (power, 2 * power, 5 * power) if span / step < 15))
