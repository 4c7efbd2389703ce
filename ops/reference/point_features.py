"""Features of points at their neighbours in plain torch: the definition, and the CPU path."""

from __future__ import annotations

import torch
from torch import Tensor


def group_points(features: Tensor, rows: Tensor) -> Tensor:
    """See ops.group_points."""
    return _taken(_table(features), rows).to(features.dtype)


def interpolate(features: Tensor, rows: Tensor, weights: Tensor) -> Tensor:
    """See ops.interpolate."""
    batch, queries, neighbours = rows.shape
    table = _table(features)  # once, so that the gradient is rounded once
    total = weights.new_zeros(batch, queries, features.shape[2])
    for k in range(neighbours):
        total = total + weights[..., k, None] * _taken(table, rows[..., k])
    return total.to(features.dtype)


def _table(features: Tensor) -> Tensor:
    """[B, 1 + P, C] float32 or float64: a zero row, which stands for none, then the points."""
    wide = features if features.dtype == torch.float64 else features.float()
    return torch.nn.functional.pad(wide, (0, 0, 1, 0))


def _taken(table: Tensor, rows: Tensor) -> Tensor:
    """[*rows.shape, C], zero where the row is none."""
    batch, size, channels = table.shape
    exists = (rows >= 0) & (rows < size - 1)
    first = torch.arange(batch, device=rows.device).view(-1, *[1] * (rows.ndim - 1)) * size
    places = torch.where(exists, rows + 1, 0) + first
    return table.view(-1, channels).index_select(0, places.flatten()).view(*rows.shape, channels)
