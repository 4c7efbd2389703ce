"""Anchors: the fixed boxes that every prediction is relative to."""

from collections.abc import Sequence

import torch
from torch import Tensor

from millisecond.detector.config import Config

ROTATIONS = (0.0, 1.57)  # radians


def make_anchors(
    point_range: Sequence[float],
    bev_cells: tuple[int, int],  # (y, x)
    sizes: Sequence[Sequence[float]],
    bottoms: Sequence[float],
) -> Tensor:  # [Y, X, K, R, 7]
    """Two boxes per class, turned by 0 and 1.57, at every cell of the bird's-eye-view map.

    The first and the last centre lie on the borders of the range, so anchors are not at the centres
    of the cells: published weights were trained so. Sizes are (l, w, h), bottoms the heights of the
    lower faces, metres.
    """
    y_cells, x_cells = bev_cells
    x = torch.linspace(point_range[0], point_range[3], x_cells, dtype=torch.float64)
    y = torch.linspace(point_range[1], point_range[4], y_cells, dtype=torch.float64)
    size = torch.tensor(sizes, dtype=torch.float64)
    z = torch.tensor(bottoms, dtype=torch.float64) + size[:, 2] / 2
    anchors = torch.empty(y_cells, x_cells, len(sizes), len(ROTATIONS), 7, dtype=torch.float64)
    anchors[..., 0] = x[None, :, None, None]
    anchors[..., 1] = y[:, None, None, None]
    anchors[..., 2] = z[:, None]
    anchors[..., 3:6] = size[:, None]
    anchors[..., 6] = torch.tensor(ROTATIONS, dtype=torch.float64)
    return anchors.float()


def build_anchors(config: Config) -> Tensor:  # [Y, X, K, R, 7]
    """The anchors of a configuration."""
    sizes, bottoms = zip(*((c.size, c.bottom) for c in config.classes), strict=True)
    return make_anchors(config.grid.range, config.bev_cells[1:], sizes, bottoms)
