"""The order of a table's rows by their offsets."""

from __future__ import annotations

import torch
from torch import Tensor

from ops.rulebook import Table

RUN, PASS = 4096, 128  # rows of a run, and that a kernel takes at a time


def row_order(table: Table, near: bool) -> Tensor:
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
    order = _near(place) if near else (-place).argsort(stable=True)
    offsets = torch.arange(volume, device=has.device)
    return torch.stack((order, (has << offsets[:, None]).sum(0))).int()


def _near(place: Tensor) -> Tensor:
    """Within runs; where all rows of one count, its passes in bit-reversed order, so that those of
    many offsets are spread over it."""
    orders = []
    for begin, run in enumerate(place.split(RUN)):
        order = begin * RUN + (-run).argsort(stable=True)
        if len(run) == RUN and (run >= 0).all():
            passes = RUN // PASS
            digits = passes.bit_length() - 1
            turned = [int(f"{i:0{digits}b}"[::-1], 2) for i in range(passes)]
            order = order.view(passes, PASS)[turned].flatten()
        orders.append(order)
    return torch.cat(orders) if orders else place
