"""Outputs of a strided convolution by sorting."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import torch
from torch import Tensor

from ops.geometry import ConvGeometry
from ops.reference.coords import coords_of_keys, linear_keys


def reached_sites(
    coords: Tensor, batch_size: int, shape: Sequence[int], window: ConvGeometry
) -> Tensor:
    """See ops.reached_sites.reached_sites."""
    stride, padding, dilation = (coords.new_tensor(numbers) for numbers in window[1:])
    size, found = coords.new_tensor(shape), []
    for offset in product(*(range(k) for k in window.kernel_size)):
        at = coords[:, 1:] + padding - coords.new_tensor(offset) * dilation
        out = torch.div(at, stride, rounding_mode="floor")
        there = ((at % stride == 0) & (out >= 0) & (out < size)).all(1)
        found.append(linear_keys(torch.cat((coords[:, :1], out), 1)[there], shape))
    return coords_of_keys(torch.cat(found).unique(), shape)
