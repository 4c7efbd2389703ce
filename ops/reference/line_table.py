"""Tables of neighbours by search in the keys of sorted sites."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import torch
from torch import Tensor

from ops.geometry import ConvGeometry
from ops.reference.coords import linear_keys
from ops.reference.site_order import site_order


def line_table(
    coords: Tensor,
    source: Tensor,
    batch_size: int,
    shape: Sequence[int],
    window: ConvGeometry,
    transposed: bool,
) -> Tensor:
    """See ops.line_table.line_table."""
    stride, padding, dilation = (coords.new_tensor(n) for n in window[1:])
    size, keys = coords.new_tensor(shape), linear_keys(source, shape)
    bounded = torch.cat((keys, keys.new_tensor([torch.iinfo(keys.dtype).max])))
    table = []
    for offset in product(*(range(k) for k in window.kernel_size)):
        step = coords.new_tensor(offset) * dilation
        if transposed:
            at = coords[:, 1:] + padding - step
            there = at % stride == 0
            at = torch.div(at, stride, rounding_mode="floor")
        else:
            at = coords[:, 1:] * stride - padding + step
            there = torch.ones_like(at, dtype=torch.bool)
        there = (there & (at >= 0) & (at < size)).all(1)
        wanted = linear_keys(torch.cat((coords[:, :1], at), 1), shape)
        place = torch.searchsorted(keys, wanted)
        table.append(torch.where(there & (bounded[place] == wanted), place, -1).int())
    return torch.stack(table)


def site_table(
    coords: Tensor, batch_size: int, shape: Sequence[int], window: ConvGeometry
) -> tuple[Tensor, int]:
    """See ops.line_table.site_table."""
    fault = int(site_order(coords, batch_size, shape))
    return line_table(coords, coords, batch_size, shape, window, False), fault
