"""Kernel maps by search in sorted linear keys."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from math import prod

import torch
from torch import Tensor

# Makes a sum of per-axis keys negative where one axis has no output.
NO_OUTPUT = -(1 << 60)


def linear_keys(coords: Tensor, shape: Sequence[int]) -> Tensor:
    """[N] int64 keys in the order of the rows; 32 KITTI grids need more than 31 bits."""
    key = coords[:, 0].long()
    for axis, size in enumerate(shape):
        key = key * size + coords[:, 1 + axis]
    return key


def coords_of_keys(keys: Tensor, shape: Sequence[int]) -> Tensor:
    """The inverse of `linear_keys`: [N, 1 + D] int32."""
    coords = torch.empty(len(keys), 1 + len(shape), dtype=torch.int32, device=keys.device)
    for axis in range(len(shape), 0, -1):
        above = torch.div(keys, shape[axis - 1], rounding_mode="floor")
        coords[:, axis] = keys - above * shape[axis - 1]
        keys = above
    coords[:, 0] = keys
    return coords


def check_coords(coords: Tensor, shape: Sequence[int], batch_size: int) -> None:
    """ValueError for the first row that is out of the grid, out of order or there twice."""
    limit = torch.tensor([batch_size, *shape], dtype=coords.dtype, device=coords.device)
    outside = ((coords < 0) | (coords >= limit)).any(dim=1)
    if outside.any():
        row = int(outside.nonzero()[0])
        raise ValueError(
            f"coords: row {row} is {coords[row].tolist()}, "
            f"outside of {batch_size} grids of {tuple(shape)}"
        )
    key = linear_keys(coords, shape)
    wrong = key[1:] <= key[:-1]
    if wrong.any():
        row = int(wrong.nonzero()[0]) + 1
        fault = "a duplicate of" if key[row] == key[row - 1] else "not sorted after"
        raise ValueError(
            f"coords: row {row} {coords[row].tolist()} is {fault} "
            f"row {row - 1} {coords[row - 1].tolist()}"
        )


def submanifold_neighbours(
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
    for index, offset in enumerate(product(*(range(k) for k in kernel[:-1]), [0])):
        if index * line >= offsets // 2:
            break
        shift = 0
        for o, k, d, n in zip(offset, kernel, dilation, padded, strict=True):
            shift = shift * n + (o - k // 2) * d
        wanted = keys + shift
        position = torch.searchsorted(keys, wanted)
        for step in range((line - 1) * dilation[-1] + 1):
            found = bounded.index_select(0, position) == wanted + step
            v = index * line + step // dilation[-1]
            if step % dilation[-1] == 0 and v < offsets // 2:
                neighbours[v] = torch.where(found, position, -1)
                mirrored = position + (offsets - 1 - v) * length
                neighbours.view(-1).scatter_(0, torch.where(found, mirrored, own), row)
            position += found
    return neighbours


def strided_neighbours(
    coords: Tensor, out_shape: tuple[int, ...], geometry, transposed: bool
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


def _reached_outputs(coords: Tensor, out_shape: tuple[int, ...], geometry) -> Tensor:
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
