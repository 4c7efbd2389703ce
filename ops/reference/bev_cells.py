"""Cells of a bird's-eye-view network in plain torch."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from ops.rulebook import BevCells, CellPlan, Level, Table


def bev_cells(level: Level, batch_size: int, plan: CellPlan) -> BevCells:
    """See ops.bev_cells.bev_cells."""
    device = level.coords.device
    row = torch.full((batch_size + 1, *level.spatial_shape), -1, dtype=torch.int32, device=device)
    coords = level.coords if level.count is None else level.coords[: int(level.count)]
    row[tuple(coords.long().T)] = torch.arange(len(coords), dtype=torch.int32, device=device)
    occupied = (row[:-1] >= 0).any(dim=1).float()  # [B, Y, X]
    lines = plan.alike[0].long().split([n for shape in plan.shapes for n in shape])
    tables, kept = [], []
    for layer, (window, shape) in enumerate(zip(plan.windows, plan.shapes, strict=True)):
        occupied = F.max_pool2d(F.pad(occupied, (window[2],) * 4), window[0], window[1])
        like_y, like_x = lines[2 * layer : 2 * layer + 2]
        first_y, first_x = (
            line == torch.arange(len(line), device=device) for line in (like_y, like_x)
        )
        computed = torch.cat((occupied > 0, (first_y[:, None] & first_x)[None]))
        read = _unfolded(row, window)  # [B + 1, V, *shape]
        tables.append(Table(read.movedim(1, 0)[:, computed].contiguous()))
        numbers = torch.full((batch_size + 1, *shape), -1, dtype=torch.int32, device=device)
        numbers[computed] = torch.arange(int(computed.sum()), dtype=torch.int32, device=device)
        empty = numbers[-1][like_y][:, like_x]
        row = torch.where(numbers >= 0, numbers, empty)[:, None]
        if layer in plan.kept:
            kept.append(row[:-1, 0].contiguous())
    return BevCells(tables, kept)


def bev_spread(
    values: Sequence[Tensor],
    rows: Sequence[Tensor],
    factors: Sequence[int],
    channels: Sequence[int],
) -> list[Tensor]:
    """See ops.bev_cells.bev_spread."""
    total: Tensor | None = None
    for value, row, factor in zip(values, rows, factors, strict=True):
        enlarged = row.long().repeat_interleave(factor, dim=1).repeat_interleave(factor, dim=2)
        y, x = (torch.arange(n, device=row.device) % factor for n in enlarged.shape[1:])
        part = value[enlarged * factor**2 + y[:, None] * factor + x].float()
        total = part if total is None else total + part
    assert total is not None
    parts = total[..., : sum(channels)].to(values[0].dtype).split(list(channels), dim=-1)
    return [part.contiguous() for part in parts]


def _unfolded(row: Tensor, window: Sequence[int]) -> Tensor:
    """[B, Z, Y, X] -> [B, size * size * Z, Y', X'], offsets in the order (y, x, z)."""
    size, stride, padding = window
    row = F.pad(row, (padding,) * 4, value=-1)
    parts = row.unfold(2, size, stride).unfold(3, size, stride)  # [B, Z, Y', X', size, size]
    return parts.permute(0, 4, 5, 1, 2, 3).flatten(1, 3)
