"""Outputs of a strided convolution on the CUDA kernels, see csrc/index/reached.cu."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import torch
from torch import Tensor

from ops.cuda.bitmap import three_axes
from ops.cuda.fakes import fake
from ops.cuda.library import extension
from ops.geometry import ConvGeometry


def reached_sites(
    coords: Tensor, batch_size: int, shape: Sequence[int], window: ConvGeometry
) -> Tensor:
    """See ops.reached_sites.reached_sites."""
    extension()
    fillings = zip(window, (1, 1, 0, 1), strict=True)
    numbers = sum((three_axes(axis, filling) for axis, filling in fillings), ())
    grid = batch_size, three_axes(shape, 1)
    reached, count = torch.ops.millisecond.reached_sites(coords.contiguous(), *grid, numbers)
    return reached[: int(count)].clone()  # sync: number of outputs; the room goes back


@fake("reached_sites")
def _fake_reached_sites(coords, batch_size, shape, window) -> tuple[Tensor, Tensor]:
    kernels, strides, dilations = window[:3], window[3:6], window[9:]
    axes = zip(kernels, strides, dilations, strict=True)
    most = prod(-(-k // s) if d == 1 else (k - 1) * d // s + 1 for k, s, d in axes)
    return coords.new_empty(most * coords.shape[0], coords.shape[1]), coords.new_empty(1)
