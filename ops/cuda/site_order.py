"""The order of sites on the CUDA kernel, see csrc/index/lines.cu."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ops.cuda.bitmap import three_axes
from ops.cuda.fakes import fake
from ops.cuda.library import extension


def site_order(coords: Tensor, batch_size: int, shape: Sequence[int]) -> Tensor:
    """See ops.site_order.site_order."""
    extension()
    return torch.ops.millisecond.site_order(coords.contiguous(), batch_size, three_axes(shape, 1))


@fake("site_order")
def _fake_site_order(coords, batch_size, shape) -> Tensor:
    return coords.new_empty(1)
