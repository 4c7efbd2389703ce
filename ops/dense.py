"""Rows of active sites scattered to dense grids: 3-D, or seen from above (bird's-eye view).

The kernels are in csrc/bev/dense.cu. The gradient of a row is gathered from its site in the grid.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import torch
from torch import Tensor

from millisecond.ops.geometry import (
    check_axes,
    check_cells,
    check_coords,
    grid_of,
    linear_keys,
    same_device,
)
from millisecond.ops.library import extension, fake


def dense(
    features: Tensor,  # [N, C]
    coords: Tensor,  # [N, 1 + D] int32
    spatial_shape: Sequence[int],
    batch_size: int,
    count: Tensor | None = None,  # [1] int32
) -> Tensor:
    """Scatter rows to [B, C, *spatial_shape]; rows from `count` on are left out. Differentiable."""
    shape = _checked_grid(features, coords, spatial_shape, batch_size)
    if not coords.is_cuda:
        return dense_definition(features, coords, shape, batch_size, count)
    return _scatter(features, coords, shape, batch_size, count, from_above=False)


def dense_definition(
    features: Tensor,
    coords: Tensor,
    spatial_shape: Sequence[int],
    batch_size: int,
    count: Tensor | None,
) -> Tensor:
    """`dense` in plain torch."""
    features, coords = _counted(features, coords, count)
    check_coords(coords, spatial_shape, batch_size)
    volume = prod(spatial_shape)
    frame = coords[:, 0].long()
    cell = linear_keys(coords, spatial_shape) - frame * volume
    grid = features.new_zeros(batch_size, features.shape[1], volume)
    grid[frame, :, cell] = features
    return grid.view(batch_size, -1, *spatial_shape)


def bev_map(
    features: Tensor,  # [N, C]
    coords: Tensor,  # [N, 4] int32
    spatial_shape: Sequence[int],  # (z, y, x)
    batch_size: int,
    count: Tensor | None = None,  # [1] int32
) -> Tensor:
    """Scatter rows to [B, Z * C, Y, X], channel z * C + c, channels last. As `dense`.

    In this order a row stays in one piece; OpenPCDet's map has channel c * Z + z.
    """
    shape = _checked_grid(features, coords, spatial_shape, batch_size)
    if len(shape) != 3:
        raise ValueError(f"spatial_shape: expected (z, y, x), got {shape}")
    if not coords.is_cuda:
        return bev_map_definition(features, coords, shape, batch_size, count)
    return _scatter(features, coords, shape, batch_size, count, from_above=True)


def bev_map_definition(
    features: Tensor,
    coords: Tensor,
    spatial_shape: Sequence[int],
    batch_size: int,
    count: Tensor | None,
) -> Tensor:
    """`bev_map` in plain torch."""
    features, coords = _counted(features, coords, count)
    check_coords(coords, spatial_shape, batch_size)
    depth, height, width = spatial_shape
    frame, z, y, x = coords.long().unbind(dim=1)
    grid = features.new_zeros(batch_size, height, width, depth, features.shape[1])
    grid[frame, y, x, z] = features
    return grid.flatten(3).permute(0, 3, 1, 2)


def _counted(features: Tensor, coords: Tensor, count: Tensor | None) -> tuple[Tensor, Tensor]:
    rows = None if count is None else int(count)  # sync: rows that count
    return features[:rows], coords[:rows]


def _scatter(features, coords, spatial_shape, batch_size, count, from_above) -> Tensor:
    """By millisecond.dense, whose gradient is millisecond.dense_backward."""
    extension()
    features = features.contiguous()
    return torch.ops.millisecond.dense(
        features, coords, count, batch_size, spatial_shape, from_above
    )


@fake("dense")
def _fake_dense(features, coords, count, batch_size, spatial_shape, from_above) -> Tensor:
    channels = features.shape[1]
    if not from_above:
        return features.new_empty(batch_size, channels, *spatial_shape)
    depth, height, width = spatial_shape
    shape = batch_size, channels * depth, height, width
    options = {"dtype": features.dtype, "device": features.device}
    return torch.empty(shape, **options, memory_format=torch.channels_last)


@fake("dense_backward")
def _fake_dense_backward(gradient, coords, count, spatial_shape, from_above) -> Tensor:
    channels = gradient.shape[1] // (spatial_shape[0] if from_above else 1)
    return gradient.new_empty(coords.shape[0], channels)


def _checked_grid(
    features: Tensor, coords: Tensor, spatial_shape: Sequence[int], batch_size: int
) -> tuple[int, ...]:
    shape = grid_of(spatial_shape)
    check_rows(features, coords, shape)
    check_cells(batch_size, [(*shape, max(features.shape[1], 1))])
    return shape


def check_rows(features: Tensor, coords: Tensor, spatial_shape: Sequence[int]) -> None:
    """ValueError unless there is one row of features for each of the coords."""
    same_device(features=features, coords=coords)
    check_axes(coords, spatial_shape)
    if features.ndim != 2 or features.shape[0] != coords.shape[0]:
        raise ValueError(
            f"features: expected [{len(coords)}, C], one row for each of coords, "
            f"got {list(features.shape)}"
        )
