"""The order of a table's rows by their offsets on the CUDA kernels, see csrc/index/row_order.cu."""

from __future__ import annotations

import torch
from torch import Tensor

from ops.cuda.fakes import fake
from ops.cuda.library import extension
from ops.rulebook import Table


def row_order(table: Table, segment: int) -> Tensor:
    """See ops.row_order.row_order."""
    extension()
    return torch.ops.millisecond.row_order(table.neighbours, table.count, segment)


@fake("row_order")
def _fake_row_order(neighbours, count, segment) -> Tensor:
    return neighbours.new_empty(2, neighbours.shape[1])
