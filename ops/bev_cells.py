"""Cells of a bird's-eye-view network: those that differ from an empty map, as rows."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from ops.cuda import bev_cells as cuda
from ops.dispatch import on_kernels
from ops.reference import bev_cells as reference
from ops.rulebook import BevCells, CellPlan, Level


def bev_cells(level: Level, batch_size: int, plan: CellPlan) -> BevCells:
    """The cells of each convolution that differ from an empty map, and the rows that they read.

    level: sites (b, z, y, x), sorted, which are the rows that the first convolution reads.
    Rows of a result are in the order (frame, y, x). The last frame is an empty one, of which one
    cell per kind is computed. On CUDA every table has room for all cells, and a count.
    """
    backend = cuda if on_kernels(level.coords) else reference
    return backend.bev_cells(level, batch_size, plan)


def bev_spread(
    values: Sequence[Tensor],
    rows: Sequence[Tensor],
    factors: Sequence[int],
    channels: Sequence[int],
) -> list[Tensor]:
    """The sum of several maps' values for every cell, in groups of channels: [B, Y, X, c] each.

    values: [N * factor * factor, C] of each map, whose cells are enlarged by its factor: the parts
    of a row side by side, in the order (y, x). rows: [B, Y / factor, X / factor] int32. channels
    beyond those of the groups are left out.
    """
    backend = cuda if on_kernels(rows[0]) else reference
    return backend.bev_spread(values, rows, factors, channels)
