"""Tables of neighbours from lines of sites on the CUDA kernel, see csrc/index/lines.cu."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import torch
from torch import Tensor

from ops.cuda.bitmap import three_axes
from ops.cuda.fakes import fake
from ops.cuda.library import extension
from ops.geometry import ConvGeometry


def line_table(
    coords: Tensor,
    source: Tensor,
    batch_size: int,
    shape: Sequence[int],
    window: ConvGeometry,
    transposed: bool,
) -> Tensor:
    """See ops.line_table.line_table."""
    extension()
    grid = batch_size, three_axes(shape, 1), _numbers(window)
    return torch.ops.millisecond.line_table(
        coords.contiguous(), source.contiguous(), *grid, transposed
    )


def site_table(
    coords: Tensor, batch_size: int, shape: Sequence[int], window: ConvGeometry
) -> tuple[Tensor, int]:
    """See ops.line_table.site_table."""
    extension()
    grid = batch_size, three_axes(shape, 1), _numbers(window)
    return torch.ops.millisecond.site_table(coords.contiguous(), *grid)


def _numbers(window: ConvGeometry) -> tuple[int, ...]:
    fillings = zip(window, (1, 1, 0, 1), strict=True)
    return sum((three_axes(axis, filling) for axis, filling in fillings), ())


@fake("line_table")
def _fake_line_table(coords, source, batch_size, shape, window, transposed) -> Tensor:
    return coords.new_empty(prod(window[:3]), coords.shape[0])


@fake("site_table")
def _fake_site_table(coords, batch_size, shape, window) -> tuple[Tensor, int]:
    return coords.new_empty(prod(window[:3]), coords.shape[0]), 0
