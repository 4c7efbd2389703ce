"""Kernel maps by search in sorted linear keys."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from math import prod

import torch
from torch import Tensor


def linear_keys(coords: Tensor, shape: Sequence[int]) -> Tensor:
    """[N] int64 keys in the order of the rows; 32 KITTI grids need more than 31 bits."""
    key = coords[:, 0].long()
    for axis, size in enumerate(shape):
        key = key * size + coords[:, 1 + axis]
    return key


def check_coords(coords: Tensor, shape: tuple[int, ...], batch_size: int) -> None:
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


def find_rows(keys: Tensor, wanted: Tensor) -> Tensor:
    """Row of each wanted key among sorted `keys`, -1 where it is not there."""
    row = torch.searchsorted(keys, wanted).clamp_(max=len(keys) - 1)
    return torch.where(keys[row] == wanted, row, -1)


def submanifold_neighbours(
    coords: Tensor, shape: tuple[int, ...], kernel: tuple[int, ...], dilation: tuple[int, ...]
) -> Tensor:
    """[V, N] int32: the row at coords + (offset - kernel // 2) * dilation."""
    margin = [k // 2 * d for k, d in zip(kernel, dilation, strict=True)]
    padded = [n + 2 * m for n, m in zip(shape, margin, strict=True)]
    keys = linear_keys(coords, padded)
    neighbours = coords.new_full((prod(kernel), len(coords)), -1)
    if not len(coords):
        return neighbours
    for index, offset in enumerate(product(*(range(k) for k in kernel))):
        shift = 0
        for o, k, d, n in zip(offset, kernel, dilation, padded, strict=True):
            shift = shift * n + (o - k // 2) * d
        neighbours[index] = find_rows(keys, keys + shift)
    return neighbours


def strided_neighbours(coords, out_shape, geometry) -> tuple[Tensor, Tensor, Tensor]:
    """Output coords [M, 1 + D], forward [V, M] and backward [V, N] neighbours, all int32."""
    offsets = list(product(*(range(k) for k in geometry.kernel_size)))
    reached = []
    for offset in offsets:
        key = coords[:, 0].long()
        valid = torch.ones_like(key, dtype=torch.bool)
        for axis, (o, s, p, d) in enumerate(zip(offset, *geometry[1:], strict=True)):
            start = coords[:, 1 + axis].long() + (p - o * d)
            out = torch.div(start, s, rounding_mode="floor")
            valid &= (start % s == 0) & (out >= 0) & (out < out_shape[axis])
            key = key * out_shape[axis] + out
        reached.append(torch.where(valid, key, -1))
    reached = torch.stack(reached)
    out_keys = reached[reached >= 0].unique()
    backward = coords.new_full(reached.shape, -1)
    forward = coords.new_full((len(offsets), len(out_keys)), -1)
    if len(out_keys):
        offset, row = (reached >= 0).nonzero(as_tuple=True)
        out_row = torch.searchsorted(out_keys, reached[offset, row])
        backward[offset, row] = out_row.int()
        forward[offset, out_row] = row.int()
    return coords_of_keys(out_keys, out_shape), forward, backward


def coords_of_keys(keys: Tensor, shape: Sequence[int]) -> Tensor:
    """The inverse of `linear_keys`: [N, 1 + D] int32."""
    columns = []
    for size in reversed(shape):
        columns.append(keys % size)
        keys = torch.div(keys, size, rounding_mode="floor")
    return torch.stack([keys, *reversed(columns)], dim=1).int()
