"""Drawings of a simulated street: its points in cells, and the tiles of its rulebook."""

from __future__ import annotations

import matplotlib.pyplot as plt
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from docs.drawings.pieces import ACCENT, ACTIVE, EMPTY, FAINT, FIRST, INK, SKIPPED, frame
from millisecond.data.simulator import simulate
from millisecond.ops import VoxelGrid, submanifold_map, voxelize


def draw_cloud() -> Figure:
    """A scan from above, and a piece of it in cells."""
    low, size, cell = (16.2, 0.2), 6.0, 0.2
    points = torch.from_numpy(simulate(3).points)
    grid = VoxelGrid((0, -20, -3, 40, 20, 1), (cell, cell, 4))
    offsets = torch.tensor([0, len(points)], dtype=torch.int32)
    voxels = voxelize(points, offsets, grid, max_voxels=len(points))
    _, height, width = grid.shape
    share = len(voxels.coords) / height / width
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 5.2), layout="constrained")
    left.scatter(points[:, 0], points[:, 1], s=0.4, c=INK, linewidths=0)
    left.add_patch(Rectangle(low, size, size, fill=False, ec=ACCENT, lw=1.8))
    left.set(xlim=(0, 40), ylim=(-20, 20))
    left.set_title(f"a scan from above: {len(points):,} points", size=11)
    right.set_title(
        f"cells of {cell} m: {len(voxels.coords):,} of {height * width:,} hold points, {share:.0%}",
        size=11,
    )
    for _, _, y, x in voxels.coords.tolist():
        corner = x * cell, -20 + y * cell
        if all(-cell < c - start < size for c, start in zip(corner, low, strict=True)):
            right.add_patch(Rectangle(corner, cell, cell, fc=FIRST, ec=FAINT, lw=0.6))
    right.scatter(points[:, 0], points[:, 1], s=5, c=INK, linewidths=0, zorder=3)
    right.set(xlim=(low[0], low[0] + size), ylim=(low[1], low[1] + size))
    lines = torch.arange(0, size, cell).tolist()
    right.set_xticks([low[0] + line for line in lines], minor=True)
    right.set_yticks([low[1] + line for line in lines], minor=True)
    right.tick_params(which="minor", length=0)
    right.grid(which="minor", color="#eaeef2", lw=0.6)
    for spine in right.spines.values():
        spine.set(color=ACCENT, linewidth=1.8)
    for axis in (left, right):
        axis.set(aspect="equal", xlabel="x, metres", ylabel="y, metres")
        axis.set_axisbelow(True)
    return figure


def draw_tiles(tiles: int = 2, rows_per_tile: int = 32) -> Figure:
    """The table of a piece of a street, and what warps of 32 rows skip of it."""
    points = torch.from_numpy(simulate(3).points)
    grid = VoxelGrid((0, -40, -3, 70.4, 40, 1), (0.1, 0.1, 0.1))
    offsets = torch.tensor([0, len(points)], dtype=torch.int32)
    coords = voxelize(points, offsets, grid, max_voxels=len(points)).coords
    table = submanifold_map(coords, grid.shape, 1, 3).forward.neighbours
    start = rows_per_tile * 40
    exists = table[:, start : start + tiles * rows_per_tile] >= 0
    figure, (left, right) = plt.subplots(
        1, 2, figsize=(11, 4.8), width_ratios=(3, 1), layout="constrained"
    )
    volume, rows = exists.shape
    left.set(xlim=(-0.5, rows + 0.5), ylim=(volume + 0.5, -0.5), aspect="equal")
    for tile in range(tiles):
        columns = slice(tile * rows_per_tile, (tile + 1) * rows_per_tile)
        used = exists[:, columns].any(1)
        for v in range(volume):
            for n in range(columns.start, columns.stop):
                colour = SKIPPED if not used[v] else FIRST if exists[v, n] else EMPTY
                left.add_patch(Rectangle((n, v), 1, 1, fc=colour, ec=ACTIVE, lw=0.4))
        frame(left, columns.start, 0, rows_per_tile, volume)
        text = f"warp {tile}: {int(used.sum())} of {volume} offsets"
        left.text(columns.start + 0.3, -0.8, text, size=10, color=ACCENT)
    _legend(left)
    left.set_xticks(range(0, rows + 1, 8))
    left.set_xlabel("output rows, in the order of their sites")
    left.set_ylabel("offsets v")
    for spine in left.spines.values():
        spine.set_visible(False)
    _fragment(right)
    return figure


def _legend(axis: Axes) -> None:
    colours = {
        "a pair": FIRST,
        "no pair: times zero": EMPTY,
        "no pair in the tile: skipped": SKIPPED,
    }
    axis.legend(
        [Rectangle((0, 0), 1, 1, fc=colour, ec=FAINT) for colour in colours.values()],
        colours,
        loc="upper center",
        bbox_to_anchor=(0.5, -0.14),
        ncols=3,
        frameon=False,
        fontsize=9,
    )


def _fragment(axis: Axes) -> None:
    """Which lane reads which bytes of eight source rows."""
    shades = ("#ddf4ff", "#9ecbff", "#54aeff", "#218bff")
    axis.set(xlim=(-0.8, 4.3), ylim=(9.8, -0.6), aspect="equal")
    axis.axis("off")
    axis.set_title("which lane reads what", size=11, color=INK)
    for g in range(8):
        axis.text(-0.15, g + 0.5, f"row {g}", ha="right", va="center", size=8, color=FAINT)
        for j in range(4):
            axis.add_patch(Rectangle((j, g), 1, 1, fc=shades[j], ec=FAINT, lw=0.7))
            text = f"{4 * g + j}"
            axis.text(j + 0.5, g + 0.5, text, ha="center", va="center", size=9, color=INK)
    for j in range(4):
        axis.text(j + 0.5, 8.35, f"{16 * j}-{16 * j + 15}", ha="center", size=7.5, color=FAINT)
    axis.text(2, 9, "bytes of a source row", ha="center", size=8, color=FAINT)
