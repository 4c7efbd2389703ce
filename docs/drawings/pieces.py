"""Grids, cells, frames and arrows, and their colours. A canvas is measured in cells, y down."""

from __future__ import annotations

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, Polygon, Rectangle

INK, FAINT, EMPTY = "#24292f", "#8c959f", "#ffffff"
FIRST, SECOND, ACTIVE = "#9ecbff", "#ffc48a", "#d0d7de"  # what comes from P1, from P2, from any
SKIPPED, ACCENT = "#e7eaee", "#cf222e"
COLOURS = (FIRST, SECOND)  # by input row


def canvas(width: float, height: float) -> tuple[Figure, Axes]:
    """A figure of so many cells; the first one begins 1 from the left and 2 from the top."""
    figure = plt.figure(figsize=(11, 11 * height / width))
    axis = figure.add_axes((0, 0, 1, 1))
    axis.set(xlim=(-1, width - 1), ylim=(height - 2, -2))
    axis.axis("off")
    return figure, axis


def grid(axis: Axes, left: float, top: float, side: int, title: str, ticks: bool = True) -> None:
    """An empty grid, y down, with numbered lines and columns."""
    axis.text(left, top - (0.85 if ticks else 0.4), title, color=INK, size=11)
    for y in range(side):
        for x in range(side):
            corner = left + x, top + y
            axis.add_patch(Rectangle(corner, 1, 1, fc=EMPTY, ec=ACTIVE, lw=0.9))
    if not ticks:
        return
    for i in range(side):
        number = {"ha": "center", "va": "center", "size": 9, "color": FAINT}
        axis.text(left - 0.3, top + i + 0.5, f"{i}", **number)
        axis.text(left + i + 0.5, top - 0.3, f"{i}", **number)


def cell(axis: Axes, x: float, y: float, colours: list[str], name: str, below: str) -> None:
    """A filled cell with two lines of text; two colours share it along the diagonal."""
    axis.add_patch(Rectangle((x, y), 1, 1, fc=colours[0], ec=FAINT, lw=0.9))
    if len(colours) > 1:
        corners = [(x, y + 1), (x + 1, y + 1), (x + 1, y)]
        axis.add_patch(Polygon(corners, fc=colours[1], ec="none"))
        axis.add_patch(Rectangle((x, y), 1, 1, fill=False, ec=FAINT, lw=0.9))
    axis.text(x + 0.5, y + 0.38, name, ha="center", va="center", size=10, color=INK)
    axis.text(x + 0.5, y + 0.76, below, ha="center", va="center", size=7, color=INK)


def frame(axis: Axes, x: float, y: float, width: float, height: float) -> None:
    axis.add_patch(
        Rectangle((x, y), width, height, fill=False, ec=ACCENT, lw=1.8, ls=(0, (4, 2)), zorder=4)
    )


def arrow(axis: Axes, start: tuple[float, float], end: tuple[float, float], colour: str) -> None:
    style = {"arrowstyle": "-|>", "mutation_scale": 14, "lw": 2.2, "color": colour}
    axis.add_patch(FancyArrowPatch(start, end, **style))
