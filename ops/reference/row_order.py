"""The order of a table's rows by their offsets."""

from __future__ import annotations

import torch
from torch import Tensor

from ops.rulebook import Table

DECIDING = 4  # offsets of a row that decide on its place


def row_order(table: Table, segment: int) -> Tensor:
    """See ops.row_order.row_order."""
    volume = len(table.neighbours)
    has = (table.neighbours >= 0).long()
    place = _highest_bits((has << _ranks(volume).to(has.device)[:, None]).sum(0))
    for shift in (1, 2, 4, 8, 16):  # of this word in the reflected Gray code
        place ^= place >> shift
    if table.count is not None:
        place[int(table.count) :] = -1
    segments = torch.arange(len(place), device=has.device) // segment
    order = ((segments << 32) - place).argsort(stable=True)
    offsets = torch.arange(volume, device=has.device)
    return torch.stack((order, (has << offsets[:, None]).sum(0))).int()


def _ranks(volume: int) -> Tensor:
    """[V]: how rare each offset is. The more steps from the middle, the rarer in a scan."""
    middle = volume // 2

    def distance(v: int) -> tuple[int, int, int]:
        steps, digits, rest = 0, volume, v  # along the axes, for kernels of 3 in each dimension
        while digits % 3 == 0:
            steps, digits, rest = steps + (rest % 3 != 1), digits // 3, rest // 3
        return (steps if digits == 1 else 0), abs(v - middle), v

    ranks = torch.empty(volume, dtype=torch.long)
    ranks[sorted(range(volume), key=distance)] = torch.arange(volume)
    return ranks


def _highest_bits(words: Tensor) -> Tensor:
    """Words of which only the highest set bits are left."""
    left, rest = torch.zeros_like(words), words
    for _ in range(DECIDING):
        highest = rest
        for shift in (1, 2, 4, 8, 16):  # all bits below the highest
            highest = highest | highest >> shift
        highest = highest - (highest >> 1)
        left, rest = left | highest, rest & ~highest
    return left
