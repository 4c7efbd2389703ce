"""Drawings of points_to_boxes.md: what every stage makes of one street, seen from above.

All places are metres in the LiDAR frame: x forward is to the right, y left is up.
"""

from __future__ import annotations

from collections.abc import Sequence

import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from torch import Tensor

from docs.drawings.pieces import ACCENT, ACTIVE, FAINT, FIRST, INK
from millisecond.data.boxes import box_corners
from millisecond.detector.config import Config, GridConfig
from millisecond.detector.models.second import Predictions
from millisecond.ops import Pyramid
from millisecond.ops.voxelize import Voxels

Area = tuple[float, float, float, float]  # lower and upper x, lower and upper y

STREET: Area = (0, 70.4, -20, 20)
CORNER: Area = (14, 25, -6, 2)  # two cars and two pedestrians
CAR: Area = (14, 19, -3.6, 0.4)
# By label - 1, in turn: as in all pictures green, pink, yellow, violet, but seen on white.
CLASS_COLOURS = ("#2f6f10", "#c2417a", "#d4b000", "#5b1fd0")
HEAT = "Blues"


def draw_points(points: Tensor) -> Figure:
    """The scan, and the part of it that the next drawings show."""
    figure, axes = _row(2, (1.35, 1))
    colours = {"c": points[:, 2], "cmap": "viridis", "vmin": -2, "vmax": 1.5, "linewidths": 0}
    for axis, area, size in zip(axes, (STREET, CORNER), (0.7, 3), strict=True):
        shown = axis.scatter(points[:, 0], points[:, 1], s=size, **colours)
        _above(axis, area)
    axes[0].set_title(f"a scan: {len(points):,} points", size=11)
    _framed(axes[0], CORNER)
    axes[1].set_title("the framed part: two cars, two pedestrians", size=11)
    figure.colorbar(shown, ax=axes[1], label="z, metres", shrink=0.8)
    return figure


def draw_voxels(points: Tensor, voxels: Voxels, grid: GridConfig) -> Figure:
    """The cells that hold points, around one car, from above and from the side."""
    figure, axes = _row(2, (1, 1))
    low, size = np.array(grid.range[:3]), np.array(grid.voxel_size)
    corners = low + voxels.coords[:, [3, 2, 1]].numpy() * size  # x, y, z
    near = _inside(corners, CAR)
    for axis, down in zip(axes, (1, 2), strict=True):
        start, side = corners[near][:, [0, down]], size[[0, down]]
        cells = start[:, None] + np.array([(0, 0), (0, 1), (1, 1), (1, 0)]) * side
        axis.add_collection(PolyCollection(cells, fc=FIRST, ec=FAINT, lw=0.3))
        dots = points[_inside(points.numpy(), CAR)]
        axis.scatter(dots[:, 0], dots[:, down], s=1.5, c=INK, linewidths=0, zorder=3)
    _above(axes[0], CAR)
    axes[0].set_title("voxels (blue) and points (black) from above", size=11)
    axes[1].set(xlim=CAR[:2], ylim=(-2, 2), aspect="equal", xlabel="x, metres")
    axes[1].set_ylabel("z, metres")
    axes[1].set_title(f"from the side; {len(voxels.coords):,} voxels in the scan", size=11)
    return figure


def draw_levels(pyramid: Pyramid, grid: GridConfig) -> Figure:
    """The active sites of every level of the encoder, around one car."""
    figure, axes = _row(len(pyramid.levels), (1,) * len(pyramid.levels), 2.9)
    for number, (axis, level) in enumerate(zip(axes, pyramid.levels, strict=True)):
        z, y, x = level.spatial_shape
        sites = torch.zeros(y, x)
        rows, columns = level.coords[:, 2].long(), level.coords[:, 3].long()
        sites.index_put_((rows, columns), torch.ones(len(rows)), accumulate=True)
        _image(axis, sites.where(sites > 0, torch.nan), grid, CAR, cmap="Blues", vmin=-2)
        size = (grid.range[3] - grid.range[0]) / x
        title = f"level {number}: {len(rows):,} sites\ncells of {size:.2g} m, {z} along z"
        axis.set_title(title, size=9)
        if number:
            axis.set(ylabel="", yticklabels=[])
    return figure


def draw_map(bev: Tensor, grid: GridConfig) -> Figure:
    """Three channels of the map [1, C, Y, X]: those that differ most from cell to cell."""
    strongest = bev[0].flatten(1).std(1).topk(3).indices.tolist()
    figure, axes = _row(3, (1, 1, 1), 2.6)
    for axis, channel in zip(axes, strongest, strict=True):
        values = bev[0, channel]
        most = float(values[values > 0].quantile(0.9))
        _image(axis, values, grid, STREET, cmap=HEAT, vmin=0, vmax=most)
        axis.set_title(f"channel {channel} of {bev.shape[1]}", size=10)
    return figure


def draw_scores(points: Tensor, predictions: Predictions, config: Config) -> Figure:
    """The score of each class at every cell, the better one of the two anchors, on the points."""
    names = config.class_names
    _, y, x = config.bev_cells
    scores = predictions.class_logits[0].sigmoid().view(y, x, len(names), 2, -1)
    figure, axes = _row(len(names), (1,) * len(names), 2.7)
    for k, (axis, name) in enumerate(zip(axes, names, strict=True)):
        values = scores[:, :, k, :, k].amax(2)
        axis.scatter(points[:, 0], points[:, 1], s=0.3, c=ACTIVE, linewidths=0)
        seen = values.where(values >= 0.02, torch.nan)
        shown = _image(axis, seen, config.grid, STREET, cmap="plasma_r", vmin=0, vmax=1, zorder=2)
        axis.set_title(f"{name}: {float(values.max()):.2f} at most", size=10)
    figure.colorbar(shown, ax=axes, label="score", shrink=0.8)
    return figure


def draw_anchors(anchors: Tensor, sure: Tensor, names: Sequence[str]) -> Figure:
    """The anchors of one cell, and those that score enough.

    anchors: [Y, X, K, R, 7]. sure: [n] numbers of anchors.
    """
    figure, axes = _row(2, (1, 1))
    centres = anchors[:, :, 0, 0, :2].reshape(-1, 2)
    near = centres[_inside(centres.numpy(), CORNER)]
    for axis in axes:
        axis.scatter(near[:, 0], near[:, 1], s=2, c=ACTIVE)
        _above(axis, CORNER)
    place = (anchors[:, :, 0, 0, :2] - torch.tensor([27.5, 7.0])).square().sum(2).argmin()
    of_cell = anchors.flatten(0, 1)[place]
    for k, name in enumerate(names):
        _boxes(axes[0], of_cell[k], [k] * len(of_cell[k]), name=name)
    axes[0].set_title(f"the {of_cell[..., 0].numel()} anchors of a cell; dots: all cells", size=11)
    axes[0].legend(fontsize=9, loc="upper right")
    flat = anchors.view(-1, 7)
    labels = (sure // anchors.shape[3] % anchors.shape[2]).tolist()
    _boxes(axes[1], flat[sure], labels)
    axes[1].set_title(
        f"anchors that score enough: {len(sure)} of {len(flat):,} in the scan", size=11
    )
    return figure


def draw_boxes(points: Tensor, boxes: Tensor, labels: Tensor, kept: Tensor) -> Figure:
    """The decoded boxes [n, 7] of a part, and those that NMS keeps, by their rows `kept`."""
    figure, axes = _row(2, (1, 1))
    chosen = (torch.arange(len(boxes)), kept)
    for axis, rows in zip(axes, chosen, strict=True):
        axis.scatter(points[:, 0], points[:, 1], s=1, c=FAINT, linewidths=0)
        _above(axis, CORNER)
        _boxes(axis, boxes[rows], (labels[rows] - 1).tolist())
    axes[0].set_title(f"decoded: {len(boxes)} boxes in the scan", size=11)
    axes[1].set_title(f"after NMS: {len(kept)}", size=11)
    return figure


def draw_result(points: Tensor, boxes: Tensor, labels: Tensor, truth: Tensor) -> Figure:
    """What is found [n, 7] in the whole street, and the ground truth [M, 7]."""
    figure, (axis,) = _row(1, (1,), 5.6)
    axis.scatter(points[:, 0], points[:, 1], s=0.7, c=FAINT, linewidths=0)
    _boxes(axis, truth, [None] * len(truth), name="ground truth")
    _boxes(axis, boxes, (labels - 1).tolist())
    _above(axis, STREET)
    axis.set_title(f"{len(boxes)} boxes; dashed: the {len(truth)} of the ground truth", size=11)
    return figure


# ---- pieces --------------------------------------------------------------------------------------


def _row(count: int, widths: Sequence[float], height: float = 4.3) -> tuple[Figure, list[Axes]]:
    figure, axes = plt.subplots(
        1, count, figsize=(11, height), width_ratios=widths, layout="constrained", squeeze=False
    )
    return figure, list(axes[0])


def _above(axis: Axes, area: Area) -> None:
    axis.set(xlim=area[:2], ylim=area[2:], aspect="equal", xlabel="x, metres", ylabel="y, metres")


def _framed(axis: Axes, area: Area) -> None:
    x, y = area[0], area[2]
    axis.add_patch(Rectangle((x, y), area[1] - x, area[3] - y, fill=False, ec=ACCENT, lw=1.5))


def _inside(places: np.ndarray, area: Area) -> np.ndarray:
    """[N] bool: which of [N, 2 or more] lie in the area."""
    x, y = places[:, 0], places[:, 1]
    return (x >= area[0]) & (x < area[1]) & (y >= area[2]) & (y < area[3])


def _image(axis: Axes, values: Tensor, grid: GridConfig, area: Area, **colours):
    """A value per cell [Y, X]."""
    x0, y0, _, x1, y1, _ = grid.range
    shown = axis.imshow(
        values.numpy(), origin="lower", extent=(x0, x1, y0, y1), interpolation="nearest", **colours
    )
    _above(axis, area)
    return shown


def _boxes(axis: Axes, boxes: Tensor, labels: Sequence[int | None], name: str = "") -> None:
    """Outlines of boxes [n, 7] with a line from the middle to the front; dashed without a label."""
    corners = box_corners(boxes.numpy())[:, :4, :2]
    for box, outline, label in zip(boxes.tolist(), corners, labels, strict=True):
        colour = INK if label is None else CLASS_COLOURS[label % len(CLASS_COLOURS)]
        style = {"color": colour, "lw": 1.3, "ls": "--" if label is None else "-"}
        axis.plot(*np.vstack([outline, outline[:1]]).T, label=name or None, **style)
        x, y, length, yaw = box[0], box[1], box[3], box[6]
        ahead = x + np.cos(yaw) * length / 2, y + np.sin(yaw) * length / 2
        axis.plot([x, ahead[0]], [y, ahead[1]], **style | {"ls": "-"})
        name = ""
