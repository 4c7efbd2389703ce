"""Cells of a bird's-eye-view network on the CUDA kernels, see csrc/bev/cells.h."""

from __future__ import annotations

import operator
from collections.abc import Sequence

import torch
from torch import Tensor

from ops.cuda.fakes import fake
from ops.cuda.library import extension
from ops.cuda.tracing import constant_when_traced
from ops.rulebook import BevCells, CellPlan, Level, Table


def bev_cells(level: Level, batch_size: int, plan: CellPlan) -> BevCells:
    """See ops.bev_cells.bev_cells."""
    extension()
    capacities = [
        batch_size * y * x + kinds for (y, x), kinds in zip(plan.shapes, plan.kinds, strict=True)
    ]
    neighbours, counts, rows, tiles = torch.ops.millisecond.bev_cells(
        level.coords,
        level.count,
        batch_size,
        level.spatial_shape,
        [number for window in plan.windows for number in window],
        plan.alike[1:],
        capacities,
        _tile_bytes(level, plan, capacities),
        plan.kept,
    )
    tables = [
        Table(part, counts[i : i + 1], tiles=tiles[i] if tiles else None)
        for i, part in enumerate(neighbours)
    ]
    return BevCells(tables, rows)


def _tile_bytes(level: Level, plan: CellPlan, capacities: Sequence[int]) -> list[int]:
    """Of the tables, for the kernels of wide layers; none for others."""
    if not plan.channels:
        return []
    depths = [level.spatial_shape[0]] + [1] * (len(capacities) - 1)
    volumes = [size**2 * z for (size, _, _), z in zip(plan.windows, depths, strict=True)]
    rows = [operator.index(capacity) for capacity in capacities]  # one graph per batch size
    return _tile_sizes(level.coords.device.index, rows, volumes, plan.channels)


@constant_when_traced
def _tile_sizes(
    device: int, rows: Sequence[int], volumes: Sequence[int], channels: Sequence[int]
) -> list[int]:
    return torch.ops.millisecond.tile_sizes(device, rows, volumes, channels)


def bev_spread(
    values: Sequence[Tensor],
    rows: Sequence[Tensor],
    factors: Sequence[int],
    channels: Sequence[int],
) -> list[Tensor]:
    """See ops.bev_cells.bev_spread."""
    extension()
    return torch.ops.millisecond.bev_spread(values, rows, factors, channels)


@fake("bev_cells")
def _fake_bev_cells(
    coords, count, batch_size, shape, windows, kinds, capacities, tile_bytes, kept
) -> tuple[list[Tensor], Tensor, list[Tensor], list[Tensor]]:
    depth, height, width = shape
    neighbours, shapes = [], []
    for layer, capacity in enumerate(capacities):
        size, stride, padding = windows[3 * layer : 3 * layer + 3]
        height, width = ((n + 2 * padding - size) // stride + 1 for n in (height, width))
        shapes.append((height, width))
        volume = size * size * (depth if layer == 0 else 1)
        neighbours.append(coords.new_empty(volume, capacity))
    rows = [coords.new_empty(batch_size, *shapes[layer]) for layer in kept]
    tiles = [coords.new_empty(size, dtype=torch.uint8) for size in tile_bytes]
    return neighbours, coords.new_empty(len(capacities)), rows, tiles


@fake("bev_spread")
def _fake_bev_spread(values, rows, factors, channels) -> list[Tensor]:
    batch_size, height, width = rows[0].shape
    shape = batch_size, height * factors[0], width * factors[0]
    return [values[0].new_empty(*shape, count) for count in channels]
