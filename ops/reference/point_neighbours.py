"""Neighbours of points in plain torch: the definition, and the CPU path."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

PAIRS = 1 << 18  # distances at a time: what the caches of a CPU hold


def ball_query(points: Tensor, centres: Tensor, radius: float, samples: int) -> Tensor:
    """See ops.ball_query."""
    count = points.shape[1]
    none = count  # behind every row
    every = torch.arange(count, device=points.device)
    limit = points.new_tensor(radius).square()
    rows = every.new_full((*centres.shape[:2], samples), none)
    for part, distances in _squared_distances(points, centres):
        inside = torch.where(distances < limit, every, none)
        first = inside.topk(min(samples, count), largest=False).values
        rows[:, part, : first.shape[2]] = first
    rows = torch.where(rows == none, rows[..., :1], rows)
    return torch.where(rows == none, -1, rows)


def three_nearest(points: Tensor, queries: Tensor) -> tuple[Tensor, Tensor]:
    """See ops.three_nearest."""
    count = points.shape[1]
    every = torch.arange(count, device=points.device)
    rows = every.new_full((*queries.shape[:2], 3), -1)
    nearest = queries.new_full(rows.shape, torch.inf)
    for part, distances in _squared_distances(points, queries):
        # bits of floats that are not negative are ordered as the floats are; ties by the row
        keys = distances.view(torch.int32).long() << 32 | every
        first = keys.topk(min(3, count), largest=False).values
        rows[:, part, : first.shape[2]] = first & 0xFFFFFFFF
        nearest[:, part, : first.shape[2]] = (first >> 32).int().view(torch.float32)
    return rows, nearest


def _squared_distances(points: Tensor, others: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """Slices of the others, and their squared distances [B, slice, P] from all points."""
    batch, count, _ = points.shape
    step = max(1, PAIRS // max(1, batch * count))
    for start in range(0, others.shape[1], step):
        part = slice(start, start + step)
        x, y, z = ((points[:, None, :, i] - others[:, part, None, i]).square() for i in range(3))
        yield part, x + y + z
