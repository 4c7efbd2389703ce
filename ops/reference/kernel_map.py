"""Kernel maps by binary search in the sorted linear keys of the sites."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from math import prod

import torch
from torch import Tensor

from ops.geometry import ConvGeometry
from ops.reference.coords import check_coords, coords_of_keys, linear_keys
from ops.rulebook import KernelMap, Level, Pyramid, Table

# Makes a sum of per-axis keys negative where one axis has no output.
NO_OUTPUT = -(1 << 60)


def submanifold_map(
    coords: Tensor,
    spatial_shape: tuple[int, ...],
    batch_size: int,
    kernel_size: tuple[int, ...],
    dilation: tuple[int, ...],
) -> KernelMap:
    """See ops.kernel_map.submanifold_map."""
    check_coords(coords, spatial_shape, batch_size)
    return _submanifold_map(coords, spatial_shape, kernel_size, dilation)


def strided_map(
    coords: Tensor, spatial_shape: tuple[int, ...], batch_size: int, geometry: ConvGeometry
) -> tuple[Tensor, tuple[int, ...], KernelMap]:
    """See ops.kernel_map.strided_map."""
    check_coords(coords, spatial_shape, batch_size)
    return _strided_map(coords, spatial_shape, geometry, transposed=True)


def index_pyramid(
    coords: Tensor,
    spatial_shape: tuple[int, ...],
    batch_size: int,
    downs: Sequence[ConvGeometry],
    submanifold_kernel: tuple[int, ...],
    last_submanifold: bool,
    capacities: Sequence[int] | None,
    count: Tensor | None,
    transposed: bool,
    workspace: Tensor | None,  # not needed here
    clear_on: torch.cuda.Stream | None,  # nor that
) -> Pyramid:
    """See ops.kernel_map.index_pyramid."""
    coords = coords if count is None else coords[: int(count)]  # sync: exact sizes
    check_coords(coords, spatial_shape, batch_size)
    shape, down = spatial_shape, None
    levels = []
    for depth in range(len(downs) + 1):
        submanifold = None
        if depth < len(downs) or last_submanifold:
            dilation = (1,) * len(shape)
            submanifold = _submanifold_map(coords, shape, submanifold_kernel, dilation)
        levels.append(Level(coords, None, shape, submanifold, down))
        if depth < len(downs):
            coords, shape, down = _strided_map(coords, shape, downs[depth], transposed)
    if capacities is None:
        return Pyramid(tuple(levels), None, batch_size)
    return Pyramid(*with_capacities(levels, capacities), batch_size)


def _submanifold_map(
    coords: Tensor, shape: tuple[int, ...], kernel: tuple[int, ...], dilation: tuple[int, ...]
) -> KernelMap:
    table = Table(_submanifold_neighbours(coords, shape, kernel, dilation))
    return KernelMap(table, table.reversed())


def _strided_map(
    coords: Tensor, shape: tuple[int, ...], geometry: ConvGeometry, transposed: bool
) -> tuple[Tensor, tuple[int, ...], KernelMap]:
    out_shape = geometry.output_shape(shape)
    out_coords, forward, backward = _strided_neighbours(coords, out_shape, geometry, transposed)
    back = None if backward is None else Table(backward)
    return out_coords, out_shape, KernelMap(Table(forward), back)


def with_capacities(
    levels: Sequence[Level], capacities: Sequence[int]
) -> tuple[tuple[Level, ...], Tensor]:
    """The levels cut off or filled up, each at its capacity, and which of them were cut off."""
    device = levels[0].coords.device
    counts = [
        torch.tensor([min(len(level.coords), rows)], dtype=torch.int32, device=device)
        for level, rows in zip(levels, capacities, strict=True)
    ]
    overflow = sum(
        (len(level.coords) > rows) << depth
        for depth, (level, rows) in enumerate(zip(levels, capacities, strict=True))
    )
    padded = []
    for depth, level in enumerate(levels):
        rows = capacities[depth]
        submanifold = down = None
        if level.submanifold is not None:
            table = _with_capacity(level.submanifold.forward, rows, rows, counts[depth])
            submanifold = KernelMap(table, table.reversed())
        if level.down is not None:
            above = capacities[depth - 1]
            forward, backward = level.down
            forward = _with_capacity(forward, rows, above, counts[depth])
            if backward is not None:
                backward = _with_capacity(backward, above, rows, counts[depth - 1])
            down = KernelMap(forward, backward)
        coords = level.coords.new_full((rows, level.coords.shape[1]), -1)
        kept = min(len(level.coords), rows)
        coords[:kept] = level.coords[:kept]
        padded.append(Level(coords, counts[depth], level.spatial_shape, submanifold, down))
    return tuple(padded), torch.tensor([overflow], dtype=torch.int32, device=device)


def _with_capacity(table: Table, rows: int, source_rows: int, count: Tensor) -> Table:
    offsets, length = table.neighbours.shape
    neighbours = table.neighbours.new_full((offsets, rows), -1)
    kept = table.neighbours[:, : min(length, rows)]
    neighbours[:, : kept.shape[1]] = torch.where(kept < source_rows, kept, -1)
    return Table(neighbours, count, table.flipped)


def _submanifold_neighbours(
    coords: Tensor, shape: tuple[int, ...], kernel: tuple[int, ...], dilation: tuple[int, ...]
) -> Tensor:
    """[V, N] int32: the row at coords + (offset - kernel // 2) * dilation, -1 = none.

    Rows that follow each other in x are neighbours in the sorted keys, so one search finds the
    start of a whole line of offsets. The map is symmetric: half of the lines give the rest.
    """
    # A margin around the grid keeps a window from running into the next row of cells.
    padded = [n + k // 2 * d for n, k, d in zip(shape, kernel, dilation, strict=True)]
    keys = linear_keys(coords, padded)
    bounded = torch.cat([keys, keys.new_tensor([torch.iinfo(keys.dtype).max])])
    offsets, line, length = prod(kernel), kernel[-1], len(coords)
    neighbours = coords.new_full((offsets, length), -1)
    row = torch.arange(length, dtype=coords.dtype, device=coords.device)
    neighbours[offsets // 2] = row
    own = row.long() + offsets // 2 * length  # where each row has itself as its neighbour
    for first, offset in enumerate(product(*(range(k) for k in kernel[:-1]), [0])):
        if first * line >= offsets // 2:
            break
        shift = 0
        for o, k, d, n in zip(offset, kernel, dilation, padded, strict=True):
            shift = shift * n + (o - k // 2) * d
        wanted = keys + shift
        position = torch.searchsorted(keys, wanted)
        for step in range((line - 1) * dilation[-1] + 1):
            found = bounded.index_select(0, position) == wanted + step
            v = first * line + step // dilation[-1]
            if step % dilation[-1] == 0 and v < offsets // 2:
                neighbours[v] = torch.where(found, position, -1)
                mirrored = position + (offsets - 1 - v) * length
                neighbours.view(-1).scatter_(0, torch.where(found, mirrored, own), row)
            position += found
    return neighbours


def _strided_neighbours(
    coords: Tensor, out_shape: tuple[int, ...], geometry: ConvGeometry, transposed: bool
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Output coords [M, 1 + D], forward [V, M] and backward [V, N] neighbours, all int32.

    Without `transposed` there is no backward.
    """
    reached = _reached_outputs(coords, out_shape, geometry)
    pair = (reached >= 0).view(-1).nonzero().squeeze(1)
    out_keys, out_row = reached.view(-1).index_select(0, pair).unique(return_inverse=True)
    offset = pair // max(len(coords), 1)
    row = pair - offset * len(coords)
    forward = coords.new_full((len(reached), len(out_keys)), -1)
    forward.view(-1).scatter_(0, offset * len(out_keys) + out_row, row.int())
    backward = None
    if transposed:
        backward = coords.new_full(reached.shape, -1)
        backward.view(-1).scatter_(0, pair, out_row.int())
    return coords_of_keys(out_keys, out_shape), forward, backward


def _reached_outputs(coords: Tensor, out_shape: tuple[int, ...], geometry: ConvGeometry) -> Tensor:
    """[V, N] int64: linear key of the output that reads row n with offset v, negative = none."""
    volume = prod(out_shape)
    reached = (coords[:, 0].long() * volume)[None]
    for axis, size in enumerate(out_shape):
        volume //= size
        kernel, stride, padding, dilation = (numbers[axis] for numbers in geometry)
        offset = torch.arange(kernel, device=coords.device)[:, None]
        start = coords[:, 1 + axis] + padding - offset * dilation
        out = torch.div(start, stride, rounding_mode="floor")
        valid = (start == out * stride) & (out >= 0) & (out < size)
        reached = (reached[:, None] + torch.where(valid, out * volume, NO_OUTPUT)).flatten(0, 1)
    return reached
