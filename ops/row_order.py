"""An order of a table's rows that puts rows with the same offsets side by side.

The offsets of a large window are cut in pieces, and each piece has an order of its own.

A convolution computes tiles of rows, and a tile multiplies every offset that one of its rows has.
spconv 2 sorts rows by their masks for that reason. The kernels for tensor cores read such an order.
The results of wide layers are the same bits in any order; in others the last bit may differ. The
kernel is in csrc/index/row_order.cu.
"""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor

from millisecond.ops.dispatch import on_kernels
from millisecond.ops.library import fake
from millisecond.ops.rulebook import Table

MOST_OFFSETS = 27
ALL = 1 << 30  # rows: one segment
DECIDING = 4  # offsets of a row that decide on its place


def row_order(table: Table, segment: int = ALL) -> Tensor:
    """[2 P, N] int32, two lines for each of P pieces of at most 27 offsets: the rows in that order,
    those that the table does not count last; and by row the sum of 2^v of the piece's offsets v
    that it has. Where the table is flipped, its last offsets are the first piece.

    Each `segment` of rows, a multiple of 1024, is in order by itself: rows that lie near in a scan
    stay near, and what they read stays in the cache.

    The four rarest offsets of a row decide; rows with the same ones stay in their order. Offsets
    are the rarer the farther they are from the middle.
    """
    if not on_kernels(table.neighbours):
        return row_order_definition(table, segment)
    return torch.ops.millisecond.row_order(table.neighbours, table.count, segment, table.flipped)


@fake("row_order")
def _fake_row_order(neighbours, count, segment, flipped) -> Tensor:
    volume, rows = neighbours.shape
    return neighbours.new_empty(2 * len(pieces_of(volume, flipped)), rows)


def pieces_of(volume: int, flipped: bool) -> list[slice]:
    """The offsets of a table in pieces, in the order of their weights."""
    pieces = max(-(-volume // MOST_OFFSETS), 1)
    ends = [volume * piece // pieces for piece in range(pieces + 1)]
    if flipped:
        return [slice(volume - last, volume - first) for first, last in pairwise(ends)]
    return [slice(first, last) for first, last in pairwise(ends)]


def row_order_definition(table: Table, segment: int) -> Tensor:
    """`row_order` in plain torch."""
    pieces = pieces_of(len(table.neighbours), table.flipped)
    return torch.cat([_order(table.neighbours[piece], table.count, segment) for piece in pieces])


def _order(neighbours: Tensor, count: Tensor | None, segment: int) -> Tensor:
    volume = len(neighbours)
    has = (neighbours >= 0).long()
    place = _highest_bits((has << _ranks(volume).to(has.device)[:, None]).sum(0))
    for shift in (1, 2, 4, 8, 16):  # of this word in the reflected Gray code
        place ^= place >> shift
    if count is not None:
        place[int(count) :] = -1
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
    """The words with their highest set bits alone."""
    left, rest = torch.zeros_like(words), words
    for _ in range(DECIDING):
        highest = rest
        for shift in (1, 2, 4, 8, 16):  # all bits below the highest
            highest = highest | highest >> shift
        highest = highest - (highest >> 1)
        left, rest = left | highest, rest & ~highest
    return left
