"""Maps of sorted rows as maps of rows in the caller's order."""

from __future__ import annotations

import torch
from torch import Tensor

from ops.rulebook import KernelMap, Table


def submanifold_in(order: Tensor | None, kernel_map: KernelMap) -> KernelMap:
    """A map of sorted rows as one of the caller's rows."""
    if order is None:
        return kernel_map
    columns = kernel_map.forward.neighbours.index_select(1, _inverse(order))
    table = Table(_renumbered(columns, order))
    return KernelMap(table, table.reversed())


def strided_in(order: Tensor | None, kernel_map: KernelMap) -> KernelMap:
    """The same for a map whose inputs alone are in the caller's order."""
    if order is None:
        return kernel_map
    forward, backward = kernel_map
    if backward is not None:
        backward = outputs_in(order, backward)
    return KernelMap(Table(_renumbered(forward.neighbours, order)), backward)


def outputs_in(order: Tensor | None, table: Table) -> Table:
    """The same for a table whose outputs alone are in the caller's order."""
    return table if order is None else Table(table.neighbours.index_select(1, _inverse(order)))


def _renumbered(neighbours: Tensor, order: Tensor) -> Tensor:
    """Entries that are sorted rows as the caller's rows; -1 stays."""
    rows = torch.cat((order.int(), order.new_full((1,), -1, dtype=torch.int32)))
    return rows[neighbours]


def _inverse(order: Tensor) -> Tensor:
    rank = torch.empty_like(order)
    rank[order] = torch.arange(len(order), device=order.device)
    return rank
