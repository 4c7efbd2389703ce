"""Rows of active sites to dense grids."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from torch import Tensor

from ops.reference.coords import check_coords, linear_keys


def dense(
    features: Tensor,
    coords: Tensor,
    spatial_shape: Sequence[int],
    batch_size: int,
    count: Tensor | None,
) -> Tensor:
    """See ops.dense.dense."""
    features, coords = _counted(features, coords, spatial_shape, batch_size, count)
    volume = prod(spatial_shape)
    frame = coords[:, 0].long()
    cell = linear_keys(coords, spatial_shape) - frame * volume
    grid = features.new_zeros(batch_size, features.shape[1], volume)
    grid[frame, :, cell] = features
    return grid.view(batch_size, -1, *spatial_shape)


def bev_map(
    features: Tensor,
    coords: Tensor,
    spatial_shape: Sequence[int],
    batch_size: int,
    count: Tensor | None,
) -> Tensor:
    """See ops.dense.bev_map."""
    features, coords = _counted(features, coords, spatial_shape, batch_size, count)
    depth, height, width = spatial_shape
    frame, z, y, x = coords.long().unbind(dim=1)
    grid = features.new_zeros(batch_size, height, width, depth, features.shape[1])
    grid[frame, y, x, z] = features
    return grid.flatten(3).permute(0, 3, 1, 2)


def _counted(
    features: Tensor,
    coords: Tensor,
    spatial_shape: Sequence[int],
    batch_size: int,
    count: Tensor | None,
) -> tuple[Tensor, Tensor]:
    if count is not None:
        features, coords = features[: int(count)], coords[: int(count)]  # sync: rows that count
    check_coords(coords, spatial_shape, batch_size)
    return features, coords
