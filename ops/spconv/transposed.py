"""The kernel map of a transposed convolution: output = input * stride - padding + offset *
dilation."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import torch
from torch import Tensor

from ops.geometry import ConvGeometry
from ops.reference.coords import coords_of_keys
from ops.rulebook import KernelMap, Table

OUTSIDE = -(1 << 60)  # makes a sum of keys negative where one axis is outside


def transposed_shape(
    shape: Sequence[int], geometry: ConvGeometry, output_padding: Sequence[int]
) -> tuple[int, ...]:
    """(in - 1) * stride - 2 padding + kernel + output padding on each axis, as spconv 2 has it: the
    dilation does not enlarge the grid."""
    axes = zip(
        shape, geometry.kernel_size, geometry.stride, geometry.padding, output_padding, strict=True
    )
    found = tuple((n - 1) * s - 2 * p + k + more for n, k, s, p, more in axes)
    if min(found) < 1:
        raise ValueError(f"padding: {geometry.padding} leaves no grid of {tuple(shape)}")
    return found


def transposed_map(
    coords: Tensor,  # [N, 1 + D] int32, sorted
    shape: Sequence[int],
    geometry: ConvGeometry,
    output_padding: Sequence[int],
) -> tuple[Tensor, tuple[int, ...], KernelMap]:
    """Output coords [M, 1 + D] int32, sorted, their grid, and the map to them."""
    out_shape = transposed_shape(shape, geometry, output_padding)
    reached = _reached_outputs(coords, out_shape, geometry)
    offsets, rows = reached.shape
    pair = (reached >= 0).view(-1).nonzero().squeeze(1)  # sync: number of outputs
    keys, out_row = reached.view(-1).index_select(0, pair).unique(return_inverse=True)
    offset = pair // max(rows, 1)
    forward = coords.new_full((offsets, len(keys)), -1)
    forward.view(-1).scatter_(0, offset * len(keys) + out_row, (pair - offset * rows).int())
    backward = coords.new_full((offsets, rows), -1)
    backward.view(-1).scatter_(0, pair, out_row.int())
    return coords_of_keys(keys, out_shape), out_shape, KernelMap(Table(forward), Table(backward))


def _reached_outputs(coords: Tensor, out_shape: Sequence[int], geometry: ConvGeometry) -> Tensor:
    """[V, N] int64: linear key of the output that row n reaches by offset v, negative = none."""
    volume = prod(out_shape)
    reached = (coords[:, 0].long() * volume)[None]
    for axis, size in enumerate(out_shape):
        volume //= size
        kernel, stride, padding, dilation = (numbers[axis] for numbers in geometry)
        offset = torch.arange(kernel, device=coords.device)[:, None]
        out = coords[:, 1 + axis].long() * stride - padding + offset * dilation
        valid = (out >= 0) & (out < size)
        reached = (reached[:, None] + torch.where(valid, out * volume, OUTSIDE)).flatten(0, 1)
    return reached
