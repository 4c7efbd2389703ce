"""An order of a table's rows that puts rows with the same offsets side by side.

A convolution computes tiles of rows, and a tile multiplies every offset that one of its rows has.
spconv 2 sorts rows by their masks for that reason. The kernels for tensor cores read such an order.
The results of wide layers are the same bits in any order; in others the last bit may differ.
"""

from __future__ import annotations

from torch import Tensor

from ops.cuda import row_order as cuda
from ops.dispatch import on_kernels
from ops.reference import row_order as reference
from ops.rulebook import Table

MOST_OFFSETS = 31
ALL = 1 << 30  # rows: one segment


def row_order(table: Table, segment: int = ALL) -> Tensor:
    """[2, N] int32: the rows in that order, those that the table does not count last; and by row
    the sum of 2^v of the offsets v that it has.

    Each `segment` of rows, a multiple of 1024, is in order by itself: rows that lie near in a scan
    stay near, and what they read stays in the cache.

    The four rarest offsets of a row decide; rows with the same ones stay in their order. Offsets
    are the rarer the farther they are from the middle.
    """
    if len(table.neighbours) > MOST_OFFSETS:
        raise ValueError(
            f"table: {len(table.neighbours)} offsets, an order takes at most {MOST_OFFSETS}"
        )
    backend = cuda if on_kernels(table.neighbours) else reference
    return backend.row_order(table, segment)
