"""Kernel maps of large grids with few sites, in whose memory the cells do not count.

They come from the lines of sorted sites, which take 8 bytes each (csrc/index/lines.cu, reached.cu),
a submanifold map of sites in any order from a table of their locations (locations.cu). The bitmap
of `ops.kernel_map` takes a bit for each cell.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import product
from math import prod

import torch
from torch import Tensor

from millisecond.ops.dispatch import on_kernels
from millisecond.ops.geometry import (
    ConvGeometry,
    coords_of_keys,
    linear_keys,
    submanifold_window,
    three_axes,
)
from millisecond.ops.kernel_map import reached_outputs, workspace_words
from millisecond.ops.library import fake
from millisecond.ops.rulebook import KernelMap, Table

MOST_BYTES = 1 << 27  # of a bitmap


def too_large(coords: Tensor, batch_size: int, shapes: Sequence[tuple[int, ...]]) -> bool:
    """Whether the bitmap of levels of these shapes takes more memory than it saves time."""
    if not coords.is_cuda:
        return False
    return 4 * workspace_words(batch_size, shapes) > MOST_BYTES


def strided_map(
    coords: Tensor,  # [N, 1 + D] int32, sorted
    shape: tuple[int, ...],
    batch_size: int,
    geometry: ConvGeometry,
    both_ways: bool = True,
) -> tuple[Tensor, tuple[int, ...], KernelMap]:
    """See ops.kernel_map.strided_map; without `both_ways` there is no way back."""
    out_shape = geometry.output_shape(shape)
    outputs = reached_sites(coords, batch_size, out_shape, geometry)
    forward = Table(line_table(outputs, coords, batch_size, shape, geometry))
    backward = None
    if both_ways:
        backward = Table(line_table(coords, outputs, batch_size, out_shape, geometry, True))
    return outputs, out_shape, KernelMap(forward, backward)


# ---- whether sites are sorted, unique and inside of their grid ----------------------------------


NOT_INCREASING, OUTSIDE, TWICE = 1, 2, 4


def site_order(coords: Tensor, batch_size: int, shape: Sequence[int]) -> Tensor:
    """[1] int32 of coords [N, 1 + D] int32: 0, or the sum of NOT_INCREASING where a row does not
    come after the one before it by (b, z, y, x), and OUTSIDE where one is out of the grid."""
    if not on_kernels(coords):
        return site_order_definition(coords, batch_size, shape)
    return torch.ops.millisecond.site_order(coords.contiguous(), batch_size, three_axes(shape, 1))


@fake("site_order")
def _fake_site_order(coords, batch_size, shape) -> Tensor:
    return coords.new_empty(1)


def site_order_definition(coords: Tensor, batch_size: int, shape: Sequence[int]) -> Tensor:
    """`site_order` in plain torch."""
    limit = torch.tensor([batch_size, *shape], device=coords.device)
    outside = ((coords < 0) | (coords >= limit)).any()
    step = coords[1:].long() - coords[:-1]
    first = (step != 0).int().argmax(dim=1, keepdim=True)  # the first axis in which rows differ
    stays = (step.gather(1, first) <= 0).any()
    return (stays + 2 * outside).int().view(1)


# ---- tables of neighbours -----------------------------------------------------------------------


def line_table(
    coords: Tensor,  # [N, 1 + D] int32
    source: Tensor,  # [M, 1 + D] int32, sorted and unique
    batch_size: int,
    shape: Sequence[int],
    window: ConvGeometry,
    transposed: bool = False,
) -> Tensor:  # [V, N] int32
    """The row of the sources that each offset of the window reads for each row, -1 = none.

    The coords are the outputs of the window's convolution and the sources its inputs on a grid of
    this shape; `transposed`: the other way round.
    """
    if not on_kernels(coords):
        return line_table_definition(coords, source, batch_size, shape, window, transposed)
    grid = batch_size, three_axes(shape, 1), window.numbers()
    return torch.ops.millisecond.line_table(
        coords.contiguous(), source.contiguous(), *grid, transposed
    )


def site_table(
    coords: Tensor,  # [N, 1 + D] int32, in any order
    batch_size: int,
    shape: Sequence[int],
    kernel: tuple[int, ...],
    dilation: tuple[int, ...],
    likely_sorted: bool = True,
    right: bool = False,
) -> tuple[Tensor, int]:  # [V, N] int32
    """The table of a submanifold convolution, and a question for `site_faults`, which tells whether
    the table counts: nothing waits here.

    right: the sites have no fault, and they are sorted if `likely_sorted`; there is no question.
    """
    if not on_kernels(coords):
        return site_table_definition(coords, batch_size, shape, kernel, dilation)
    grid = batch_size, three_axes(shape, 1)
    window = _numbers_around(kernel, dilation, len(shape))
    coords = coords.contiguous()
    return torch.ops.millisecond.site_table.default(coords, *grid, window, likely_sorted, right)


def site_faults(neighbours: Tensor, question: int) -> int:
    """0, or the sum of the faults of the sites of a `site_table`: NOT_INCREASING, OUTSIDE, TWICE
    where a site is there twice. With one of the latter two the table holds anything. If the sites
    were likely sorted, it may hold anything with the first one, too, and TWICE may be missing.

    Waits for a GPU. To be asked soon: after 1,024 further questions an answer may be another's."""
    if not on_kernels(neighbours):
        return question
    return torch.ops.millisecond.site_faults.default(neighbours, question)


@lru_cache(maxsize=256)
def _numbers_around(
    kernel: tuple[int, ...], dilation: tuple[int, ...], dims: int
) -> tuple[int, ...]:
    return ConvGeometry.around(*submanifold_window(kernel, dilation, dims)).numbers()


@fake("line_table")
def _fake_line_table(coords, source, batch_size, shape, window, transposed) -> Tensor:
    return coords.new_empty(prod(window[:3]), coords.shape[0])


@fake("site_table")
def _fake_site_table(coords, batch_size, shape, window, *_) -> tuple[Tensor, int]:
    return coords.new_empty(prod(window[:3]), coords.shape[0]), -1


@fake("site_faults")
def _fake_site_faults(neighbours, question) -> int:
    return 0


def line_table_definition(
    coords: Tensor,
    source: Tensor,
    batch_size: int,
    shape: Sequence[int],
    window: ConvGeometry,
    transposed: bool,
) -> Tensor:
    """`line_table` in plain torch: by search in the keys of the sources."""
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


def site_table_definition(
    coords: Tensor,
    batch_size: int,
    shape: Sequence[int],
    kernel: tuple[int, ...],
    dilation: tuple[int, ...],
) -> tuple[Tensor, int]:
    """`site_table` in plain torch; the question is the answer."""
    window = ConvGeometry.around(*submanifold_window(kernel, dilation, len(shape)))
    fault = int(site_order_definition(coords, batch_size, shape))
    keys, order = linear_keys(coords, shape).sort()
    if (keys[1:] == keys[:-1]).any():
        fault |= TWICE
    rows = torch.cat((order.int(), order.new_full((1,), -1, dtype=torch.int32)))
    table = line_table_definition(coords, coords[order], batch_size, shape, window, False)
    return rows[table], fault


# ---- outputs of a strided convolution -----------------------------------------------------------


def reached_sites(
    coords: Tensor,  # [N, 1 + D] int32, unique
    batch_size: int,
    shape: Sequence[int],
    window: ConvGeometry,
) -> Tensor:  # [M, 1 + D] int32, sorted
    """The outputs on a grid of this shape that some window with a site has; waits for the GPU."""
    if not on_kernels(coords):
        return reached_sites_definition(coords, batch_size, shape, window)
    grid = batch_size, three_axes(shape, 1), window.numbers()
    reached, count = torch.ops.millisecond.reached_sites(coords.contiguous(), *grid)
    return reached[: int(count)].clone()  # sync: number of outputs; the room goes back


@fake("reached_sites")
def _fake_reached_sites(coords, batch_size, shape, window) -> tuple[Tensor, Tensor]:
    kernels, strides, dilations = window[:3], window[3:6], window[9:]
    axes = zip(kernels, strides, dilations, strict=True)
    most = prod(-(-k // s) if 1 in (s, d) else (k - 1) * d // s + 1 for k, s, d in axes)
    return coords.new_empty(most * coords.shape[0], coords.shape[1]), coords.new_empty(1)


def reached_sites_definition(
    coords: Tensor, batch_size: int, shape: Sequence[int], window: ConvGeometry
) -> Tensor:
    """`reached_sites` in plain torch: by sorting."""
    reached = reached_outputs(coords, shape, window)
    return coords_of_keys(reached[reached >= 0].unique(), shape)
