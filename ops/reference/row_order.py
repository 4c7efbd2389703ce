"""The order of a table's rows by their offsets."""

from __future__ import annotations

import torch
from torch import Tensor

from ops.rulebook import Table


def row_order(table: Table) -> Tensor:
    """See ops.row_order.row_order."""
    volume = len(table.neighbours)
    has = (table.neighbours >= 0).long()
    # neighbours far from the middle are rare: they decide first
    middle = volume // 2
    ranks = torch.tensor([2 * abs(v - middle) - (v < middle) for v in range(volume)])
    place = (has << ranks.to(has.device)[:, None]).sum(0)
    for shift in (1, 2, 4, 8, 16):  # of this word in the reflected Gray code
        place ^= place >> shift
    if table.count is not None:
        place[int(table.count) :] = -1
    order = (-place).argsort(stable=True)
    offsets = torch.arange(volume, device=has.device)
    return torch.stack((order, (has << offsets[:, None]).sum(0))).int()
