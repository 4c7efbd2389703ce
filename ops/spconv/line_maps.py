"""Kernel maps of sorted sites where a bitmap of the grid would be too large: by its lines."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import product
from math import prod

import torch
from torch import Tensor

from ops.cuda.bitmap import workspace_words
from ops.geometry import ConvGeometry
from ops.line_table import line_table
from ops.reference.coords import coords_of_keys
from ops.rulebook import KernelMap, Table

MOST_BYTES = 1 << 27  # of a bitmap
MOST_BYTES_A_SITE = 100  # of a bitmap of one level, as many as the site's row in a table has
LAST = 1 << 62  # a key behind all others, that is no output's


def too_large(coords: Tensor, batch_size: int, shapes: Sequence[tuple[int, ...]]) -> bool:
    """Whether the bitmap of levels of these shapes takes more memory than it saves time."""
    if not coords.is_cuda:
        return False
    limit = MOST_BYTES if len(shapes) > 1 else min(MOST_BYTES, MOST_BYTES_A_SITE * len(coords))
    return 4 * workspace_words(batch_size, shapes) > limit


def submanifold_map(
    coords: Tensor,  # [N, 1 + D] int32, sorted
    shape: tuple[int, ...],
    batch_size: int,
    kernel: tuple[int, ...],
    dilation: tuple[int, ...],
) -> KernelMap:
    """See ops.kernel_map.submanifold_map."""
    centre = tuple(k // 2 * d for k, d in zip(kernel, dilation, strict=True))
    window = ConvGeometry(kernel, (1,) * len(kernel), centre, dilation)
    table = Table(line_table(coords, coords, batch_size, shape, window))
    return KernelMap(table, table.reversed())


def strided_map(
    coords: Tensor,  # [N, 1 + D] int32, sorted
    shape: tuple[int, ...],
    batch_size: int,
    geometry: ConvGeometry,
    both_ways: bool = True,
) -> tuple[Tensor, tuple[int, ...], KernelMap]:
    """See ops.kernel_map.strided_map; without `both_ways` there is no way back."""
    out_shape = geometry.output_shape(shape)
    keys = torch.nn.functional.pad(
        _reached(coords, out_shape, geometry).flatten(), (0, 1), value=LAST
    )
    outputs = coords_of_keys(keys.unique()[:-1], out_shape)  # sync: number of outputs
    forward = Table(line_table(outputs, coords, batch_size, shape, geometry))
    backward = None
    if both_ways:
        backward = Table(line_table(coords, outputs, batch_size, out_shape, geometry, True))
    return outputs, out_shape, KernelMap(forward, backward)


def _reached(coords: Tensor, out_shape: tuple[int, ...], geometry: ConvGeometry) -> Tensor:
    """[combinations, N] int64: linear keys of the outputs that each site reaches, in any order and
    some of them several times; LAST = none."""
    kernel, stride, padding, dilation = geometry
    # in one dimension a site reaches outputs one after another, if the window has no gaps
    several = (
        range(-(-k // s)) if d == 1 else range((k - 1) * d // s + 1)
        for k, s, d in zip(kernel, stride, dilation, strict=True)
    )
    step = _constant(tuple(product(*several)), coords.device)  # [combinations, D]
    rows = (kernel, stride, padding, dilation, out_shape)
    kernels, strides, paddings, dilations, sizes = _constant(rows, coords.device)
    at = coords[:, 1:] + paddings
    out = torch.div(at, strides, rounding_mode="floor") - step[:, None]
    offset = at - out * strides  # of the window, times the dilation
    there = (offset < kernels * dilations) & (out >= 0) & (out < sizes)
    if any(d > 1 for d in dilation):
        there &= offset % dilations == 0
    volumes = tuple(prod(out_shape[axis:]) for axis in range(len(out_shape) + 1))
    key = (out * _constant(volumes[1:], coords.device, torch.int64)).sum(-1)
    key += coords[:, 0].long() * volumes[0]
    return torch.where(there.all(-1), key, LAST)


@lru_cache(maxsize=256)
def _constant(numbers: tuple, device: torch.device, dtype: torch.dtype = torch.int32) -> Tensor:
    """They on the device, where they stay: a copy from the host would wait."""
    return torch.tensor(numbers, dtype=dtype, device=device)
