"""Drawings of the worked example: two active sites in a grid of 5 x 5, a kernel of 3 x 3."""

from __future__ import annotations

from typing import NamedTuple

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from torch import Tensor

from docs.drawings.pieces import (
    ACCENT,
    ACTIVE,
    COLOURS,
    EMPTY,
    FAINT,
    INK,
    SKIPPED,
    arrow,
    canvas,
    cell,
    frame,
    grid,
)
from millisecond.ops import ConvGeometry, sparse_conv, strided_map, submanifold_map

WINDOW = ConvGeometry((3, 3), (1, 1), (0, 0), (1, 1))


class Example(NamedTuple):
    """Two active sites in a grid of 5 x 5, and their convolution with a kernel of 3 x 3."""

    coords: Tensor  # [2, 3] (b, y, x)
    features: Tensor  # [2, 3]
    weight: Tensor  # [9, 3, 2]
    regular_coords: Tensor  # [8, 3]
    regular: Tensor  # [9, 8] neighbours
    submanifold: Tensor  # [9, 2] neighbours
    regular_out: Tensor  # [8, 2]
    submanifold_out: Tensor  # [2, 2]


def example() -> Example:
    coords = torch.tensor([[0, 1, 2], [0, 2, 3]], dtype=torch.int32)
    features = torch.tensor([[0.1, 0.1, 0.1], [0.2, 0.2, 0.2]])
    weight = torch.ones(9, 3, 2)
    weight[:, :, 1] = torch.arange(9.0)[:, None]
    regular_coords, _, regular = strided_map(coords, (5, 5), 1, WINDOW)
    same = submanifold_map(coords, (5, 5), 1, 3)
    return Example(
        coords,
        features,
        weight,
        regular_coords,
        regular.forward.neighbours,
        same.forward.neighbours,
        sparse_conv(features, weight, regular),
        sparse_conv(features, weight, same),
    )


# ---- sites ---------------------------------------------------------------------------------------


def draw_sites() -> Figure:
    """The input, and where the two kinds of convolution have outputs."""
    it = example()
    figure, axis = canvas(18.8, 9.1)
    grid(axis, 0, 0, 5, "input: 2 sites")
    for row, (_, y, x) in enumerate(it.coords.tolist()):
        cell(axis, x, y, [COLOURS[row]], f"P{row + 1}", f"row {row}")
    grid(axis, 7, 0, 3, f"regular output: {len(it.regular_coords)} sites")
    grid(axis, 12.4, 0, 5, f"submanifold output: {len(it.coords)} sites")
    outputs = (
        (7, it.regular_coords, it.regular, it.regular_out),
        (12.4, it.coords, it.submanifold, it.submanifold_out),
    )
    for left, coords, table, out in outputs:
        for n, (_, y, x) in enumerate(coords.tolist()):
            sources = sorted({int(row) for row in table[:, n] if row >= 0})
            colours = [COLOURS[row] for row in sources]
            cell(axis, left + x, y, colours, f"{out[n, 0]:.1f}", f"row {n}")
    frame(axis, 0, 0, 3, 3)
    frame(axis, 7, 0, 1, 1)
    axis.text(0.12, 2.82, "window of output (0, 0)", color=ACCENT, size=8)
    p1, p2 = (", ".join(f"{value:.1f}" for value in row) for row in it.features)
    axis.text(0, 5.8, f"P1 has the channels ({p1}), P2 has ({p2}).", size=10, color=INK)
    text = "Blue comes from P1, orange from P2. The number is what the first filter adds up."
    axis.text(0, 6.4, text, size=10, color=INK)
    return figure


# ---- rulebook ------------------------------------------------------------------------------------


def draw_rulebook() -> Figure:
    """The kernel's offsets, and which input row each output reads through each of them."""
    it = example()
    figure, axis = canvas(25.2, 12.2)
    grid(axis, 0, 0, 3, "offsets v of the kernel", ticks=False)
    for v in range(9):
        cell(axis, v % 3, v // 3, [EMPTY], f"{v}", f"({v // 3}, {v % 3})")
    _table(axis, 5.2, it.submanifold, it.coords, "submanifold")
    _table(axis, 12.8, it.regular, it.regular_coords, "regular")
    return figure


def _table(axis: Axes, left: float, table: Tensor, coords: Tensor, title: str) -> None:
    """Neighbours [V, N], and beside each offset its pairs."""
    offsets, rows = table.shape
    axis.text(left, -1.5, f"{title}: neighbours [{offsets}, {rows}]", size=11, color=INK)
    for n in range(rows):
        _, y, x = coords[n].tolist()
        axis.text(left + n + 0.5, -0.75, f"{n}", ha="center", va="center", size=10, weight="bold")
        site = f"({y}, {x})"
        axis.text(left + n + 0.5, -0.25, site, ha="center", va="center", size=7, color=FAINT)
    axis.text(left - 0.3, -0.75, "n", ha="right", va="center", style="italic", color=FAINT)
    axis.text(left - 0.3, -0.2, "v", ha="right", va="center", style="italic", color=FAINT)
    text_x = left + rows + 0.4
    axis.text(text_x, -0.5, "pairs (in, out)", va="center", size=9, color=FAINT)
    for v in range(offsets):
        axis.text(left - 0.3, v + 0.5, f"{v}", ha="right", va="center", size=10, weight="bold")
        for n, source in enumerate(table[v].tolist()):
            colour, ink = (EMPTY, ACTIVE) if source < 0 else (COLOURS[source], INK)
            axis.add_patch(Rectangle((left + n, v), 1, 1, fc=colour, ec=FAINT, lw=0.7))
            middle = left + n + 0.5, v + 0.5
            axis.text(*middle, f"{source}", ha="center", va="center", size=10, color=ink)
        pairs = [f"({source}, {n})" for n, source in enumerate(table[v].tolist()) if source >= 0]
        axis.text(text_x, v + 0.5, "  ".join(pairs), va="center", size=9, color=INK)


# ---- gather, GEMM, scatter -----------------------------------------------------------------------


def draw_gather(v: int = 4) -> Figure:
    """One offset of the regular convolution: its pairs, its product, where the sums go."""
    it = example()
    outputs = [n for n in range(it.regular.shape[1]) if it.regular[v, n] >= 0]
    sources = [int(it.regular[v, n]) for n in outputs]
    gathered = it.features[sources]
    product = gathered @ it.weight[v]
    figure, axis = canvas(24.6, 11.4)
    top = 3.0
    _matrix(axis, 0, top, it.features, "features [2, 3]", list(COLOURS), rows=["0", "1"])
    colours = [COLOURS[source] for source in sources]
    _matrix(axis, 6, top, gathered, "gathered [2, 3]", colours)
    _matrix(axis, 11, top - 0.5, it.weight[v], f"weight[{v}] [3, 2]", [EMPTY] * 3, form="{:.0f}")
    _matrix(axis, 15, top, product, "product [2, 2]", colours)
    names = [f"{n}" for n in range(len(it.regular_out))]
    marked = dict(zip(outputs, colours, strict=True))
    partial = torch.zeros_like(it.regular_out)
    partial[outputs] = product
    fills = [marked.get(n, EMPTY) for n in range(len(partial))]
    _matrix(axis, 20.6, 0, partial, "out [8, 2] +=", fills, rows=names, faint=set(marked))
    for index, source in enumerate(sources):
        arrow(axis, (3.1, top + source + 0.5), (5.9, top + index + 0.5), colours[index])
    for index, n in enumerate(outputs):
        arrow(axis, (17.1, top + index + 0.5), (20.2, n + 0.5), colours[index])
    axis.text(4.5, 6.4, "gather", ha="center", size=12, weight="bold", color=INK)
    axis.text(10, top + 1, "\N{MULTIPLICATION SIGN}", ha="center", va="center", size=18, color=INK)
    axis.text(14, top + 1, "=", ha="center", va="center", size=18, color=INK)
    axis.text(12, 6.4, "GEMM", ha="center", size=12, weight="bold", color=INK)
    axis.text(18.5, 6.4, "scatter", ha="center", size=12, weight="bold", color=INK)
    pairs = " and ".join(f"({s}, {n})" for s, n in zip(sources, outputs, strict=True))
    axis.text(
        0,
        9.1,
        f"Offset v = {v} has the pairs {pairs}. The other eight offsets do the same, "
        "and add to the same rows.",
        size=10,
        color=INK,
    )
    return figure


def _matrix(
    axis: Axes,
    x: float,
    y: float,
    values: Tensor,
    title: str,
    fills: list[str],
    rows: list[str] | None = None,
    form: str = "{:.1f}",
    faint: set[int] | None = None,
) -> None:
    """Numbers in cells; where `faint` is given, only these rows are in full ink."""
    axis.text(x, y - 0.35, title, size=10, color=INK)
    for i, line in enumerate(values.tolist()):
        if rows:
            axis.text(x - 0.2, y + i + 0.5, rows[i], ha="right", va="center", size=9, color=FAINT)
        for j, value in enumerate(line):
            axis.add_patch(Rectangle((x + j, y + i), 1, 1, fc=fills[i], ec=FAINT, lw=0.7))
            ink = INK if faint is None or i in faint else ACTIVE
            text = form.format(value)
            axis.text(x + j + 0.5, y + i + 0.5, text, ha="center", va="center", size=9, color=ink)


# ---- bitmap --------------------------------------------------------------------------------------


def draw_bitmap() -> Figure:
    """Bits of the sites, how the output's bits come about, and rows by counting bits."""
    it = example()
    figure, axis = canvas(27.6, 8.2)
    _bitmap(axis, 0, it.coords, 5, "bits of the input")
    after = _bitmap(axis, 11.4, it.regular_coords, 3, "bits of the regular output")
    arrow(axis, (7.4, 1.5), (10.6, 1.5), INK)
    axis.text(8.9, 1.1, "mark", ha="center", size=11, weight="bold", color=INK)
    text = "OR of the input's\nbits, shifted by\nevery offset"
    axis.text(8.9, 2.0, text, ha="center", va="top", size=9, color=INK)
    y, x = 1, 2
    row = next(n for n, site in enumerate(it.regular_coords.tolist()) if site[1:] == [y, x])
    frame(axis, 11.4 + x, y, 1, 1)
    lines = (
        ("rank", f"which row has site ({y}, {x})?"),
        ("", f"{after[y]} ones before line {y},"),
        ("", f"{row - after[y]} ones left of x = {x}: row {row}"),
        ("select", f"which site has row {row}?"),
        ("", f"line {y} begins with row {after[y]},"),
        ("", f"{row - after[y]} ones later is x = {x}"),
    )
    heights = (0.4, 1.1, 1.8, 3.0, 3.7, 4.4)
    for (name, text), height in zip(lines, heights, strict=True):
        axis.text(17.6, height, name, size=11, weight="bold", color=INK)
        axis.text(19.8, height, text, size=10, color=INK)
    return figure


def _bitmap(axis: Axes, left: float, coords: Tensor, side: int, title: str) -> list[int]:
    """Draws one line of bits per y, with the ones before it; returns those numbers."""
    lines = [[0] * side for _ in range(side)]
    for _, y, x in coords.tolist():
        lines[y][x] = 1
    before, total = [], 0
    grid(axis, left, 0, side, title)
    axis.text(left + side + 1, -0.3, "before", ha="center", va="center", size=9, color=FAINT)
    for y, line in enumerate(lines):
        before.append(total)
        for x, bit in enumerate(line):
            if bit:
                cell(axis, left + x, y, [ACTIVE], "1", f"row {total}")
            else:
                middle = left + x + 0.5, y + 0.5
                axis.text(*middle, "0", ha="center", va="center", size=10, color=FAINT)
            total += bit
        corner = left + side + 0.4, y
        axis.add_patch(Rectangle(corner, 1.2, 1, fc=SKIPPED, ec=FAINT, lw=0.7))
        middle = left + side + 1, y + 0.5
        axis.text(*middle, f"{before[-1]}", ha="center", va="center", size=10, color=INK)
    return before
