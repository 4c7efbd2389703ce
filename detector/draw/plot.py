"""Curves in panels: axes, lines of several colours, and their names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from PIL import Image, ImageDraw

from millisecond.detector.draw.style import (
    BACKGROUND,
    CLASS_COLOURS,
    FAINT,
    GRID,
    OTHER_COLOURS,
    TEXT,
    Colour,
    dash,
    draw_lines,
)
from millisecond.detector.draw.text import shortened, write

SMOOTH = 3  # drawn this many times larger, then shrunk
SIZE = (420, 300)  # pixels of the area of the curves
LEFT, TOP, RIGHT, BOTTOM = 62, 54, 24, 52  # margins of a panel
ROW, KEY = 20, 34  # of the list of lines: its rows, and the piece of line before a name
COLOURS: tuple[Colour, ...] = (*CLASS_COLOURS.values(), *OTHER_COLOURS)


class Line(NamedTuple):
    """A curve through points, or, where they are `marked`, dots that it connects. A curve without a
    name is not in the list of lines."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    colour: Colour = TEXT
    dashed: bool = False
    marked: bool = False


class Scale(NamedTuple):
    """One axis: its label, its ends, and the places of its numbers; logarithmic or not."""

    name: str
    low: float
    high: float
    ticks: Sequence[float]
    logarithmic: bool = False

    def share(self, values: Sequence[float] | np.ndarray) -> np.ndarray:
        """Places from 0 (low) to 1 (high)."""
        ends = np.array([self.low, self.high], np.float64)
        at = np.asarray(values, np.float64)
        if self.logarithmic:
            ends, at = np.log(ends), np.log(at)
        return (at - ends[0]) / (ends[1] - ends[0])


class Panel(NamedTuple):
    """Curves over the same axes."""

    title: str
    x: Scale
    y: Scale
    lines: Sequence[Line]


def draw_panels(rows: Sequence[Sequence[Panel]]) -> np.ndarray:
    """Panels side by side and below each other: [H, W, 3] uint8 RGB.

    The panels of a row are as high as the one with most lines.
    """
    drawn = []
    for row in rows:
        keys = max((len(_named(panel)) for panel in row), default=0)
        drawn.append([_panel(panel, keys) for panel in row])
    across = max(sum(picture.width for picture in row) for row in drawn)
    sheet = Image.new("RGB", (across, sum(row[0].height for row in drawn)), BACKGROUND)
    top = 0
    for pictures in drawn:
        left = 0
        for picture in pictures:
            sheet.paste(picture, (left, top))
            left += picture.width
        top += pictures[0].height
    return np.asarray(sheet)


def _panel(panel: Panel, keys: int) -> Image.Image:
    across, down = SIZE
    size = (LEFT + across + RIGHT, TOP + down + BOTTOM + keys * ROW + 8)
    picture = Image.new("RGB", size, BACKGROUND)
    picture.paste(_curves(panel), (LEFT, TOP))
    draw = ImageDraw.Draw(picture)
    write(draw, (LEFT - 46, 18), shortened(panel.title, 16, across + 46), TEXT, 16)
    for tick, share in zip(panel.x.ticks, panel.x.share(panel.x.ticks), strict=True):
        u = LEFT + share * (across - 1)
        write(draw, (u, TOP + down + 7), f"{tick:g}", FAINT, 12, "mt")
    for tick, share in zip(panel.y.ticks, panel.y.share(panel.y.ticks), strict=True):
        v = TOP + (1 - share) * (down - 1)
        write(draw, (LEFT - 8, v), f"{tick:g}", FAINT, 12, "rm")
    write(draw, (LEFT + across, TOP + down + 24), panel.x.name, FAINT, 13, "rt")
    write(draw, (LEFT - 46, TOP - 14), panel.y.name, FAINT, 13)
    for number, line in enumerate(_named(panel)):
        v = TOP + down + BOTTOM + (number + 0.5) * ROW
        if len(line.x) > 1:
            piece = np.array([[[LEFT, v], [LEFT + KEY, v]]])
            draw_lines(draw, dash(piece, 5) if line.dashed else piece, line.colour, 3)
        if line.marked or len(line.x) == 1:
            u = LEFT + KEY / 2
            draw.ellipse((u - 4, v - 4, u + 4, v + 4), fill=line.colour)
        name = shortened(line.name, 14, across - KEY - 10)
        write(draw, (LEFT + KEY + 10, v), name, TEXT, 14)
    return picture


def _named(panel: Panel) -> list[Line]:
    return [line for line in panel.lines if line.name]


def _curves(panel: Panel) -> Image.Image:
    """The area of the curves, with the lines of the grid."""
    across, down = (side * SMOOTH for side in SIZE)
    plot = Image.new("RGB", (across, down), BACKGROUND)
    draw = ImageDraw.Draw(plot)
    draw.rectangle((0, 0, across - 1, down - 1), outline=GRID, width=SMOOTH)
    for share in panel.x.share(panel.x.ticks):
        draw.line((share * across, 0, share * across, down), GRID, SMOOTH)
    for share in panel.y.share(panel.y.ticks):
        draw.line((0, (1 - share) * down, across, (1 - share) * down), GRID, SMOOTH)
    for line in panel.lines:
        _curve(draw, panel, line, (across, down))
    return plot.resize(SIZE, Image.Resampling.BOX)


def _curve(draw: ImageDraw.ImageDraw, panel: Panel, line: Line, size: tuple[int, int]) -> None:
    u, v = panel.x.share(line.x) * size[0], (1 - panel.y.share(line.y)) * size[1]
    points = np.stack([u, v], axis=1)
    if line.dashed:
        draw_lines(draw, _dashes(points, 7 * SMOOTH), line.colour, 2 * SMOOTH)
    elif len(points) > 1:
        draw.line([tuple(point) for point in points.tolist()], line.colour, 2 * SMOOTH, "curve")
    if line.marked or len(points) == 1:
        reach = 4 * SMOOTH
        for x, y in points.tolist():
            draw.ellipse((x - reach, y - reach, x + reach, y + reach), fill=line.colour)


def _dashes(points: np.ndarray, length: float) -> np.ndarray:
    """[S, 2, 2]: every second piece of a path, each about so long, around its corners too."""
    steps = np.linalg.norm(np.diff(points, axis=0), axis=1)
    along = np.append(0, np.cumsum(steps))
    pieces = []
    for start in np.arange(0, along[-1], 2 * length):
        ends = np.array([start, min(start + length, along[-1])])
        inside = along[(along > ends[0]) & (along < ends[1])]
        at = np.concatenate([ends[:1], inside, ends[1:]])
        path = np.stack([np.interp(at, along, points[:, axis]) for axis in (0, 1)], axis=1)
        pieces.append(np.stack([path[:-1], path[1:]], axis=1))
    return np.concatenate(pieces) if pieces else np.zeros((0, 2, 2))
