"""Features of points at their neighbours in plain torch: the definition, and the CPU path."""

from __future__ import annotations

import torch
from torch import Tensor


def group_points(features: Tensor, rows: Tensor) -> Tensor:
    """See ops.group_points."""
    return _gathered(features, rows).to(features.dtype)


def interpolate(features: Tensor, rows: Tensor, weights: Tensor) -> Tensor:
    """See ops.interpolate."""
    batch, queries, neighbours = rows.shape
    total = weights.new_zeros(batch, queries, features.shape[2])
    for k in range(neighbours):
        total = total + weights[..., k, None] * _gathered(features, rows[..., k])
    return total.to(features.dtype)


def _gathered(features: Tensor, rows: Tensor) -> Tensor:
    """[*rows.shape, C] float32 or float64, zero where the row is none."""
    batch, count, channels = features.shape
    exists = (rows >= 0) & (rows < count)
    first = torch.arange(batch, device=rows.device).view(-1, *[1] * (rows.ndim - 1)) * count
    wide = features if features.dtype == torch.float64 else features.float()
    # a zero row in front, which is none
    table = torch.cat([wide.new_zeros(1, channels), wide.reshape(-1, channels)])
    places = torch.where(exists, rows + first + 1, 0)
    return table.index_select(0, places.flatten()).view(*rows.shape, channels)
