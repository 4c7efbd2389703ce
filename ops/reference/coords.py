"""Sites as linear keys, ((b * Z + z) * Y + y) * X + x, in the order of their rows."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


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
