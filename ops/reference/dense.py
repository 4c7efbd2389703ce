"""Rows of active sites to a dense grid."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from torch import Tensor

from ops.reference.kernel_map import linear_keys


def dense(
    features: Tensor, coords: Tensor, spatial_shape: Sequence[int], batch_size: int
) -> Tensor:
    """See ops.sparse_tensor.dense."""
    volume = prod(spatial_shape)
    frame = coords[:, 0].long()
    cell = linear_keys(coords, spatial_shape) - frame * volume
    grid = features.new_zeros(batch_size, features.shape[1], volume)
    grid[frame, :, cell] = features
    return grid.view(batch_size, -1, *spatial_shape)


def bev_map(
    features: Tensor, coords: Tensor, spatial_shape: Sequence[int], batch_size: int
) -> Tensor:
    """See ops.sparse_tensor.bev_map."""
    depth, height, width = spatial_shape
    frame, z, y, x = coords.long().unbind(dim=1)
    grid = features.new_zeros(batch_size, height, width, features.shape[1], depth)
    grid[frame, y, x, :, z] = features
    return grid.flatten(3).permute(0, 3, 1, 2)


def row_map(
    features: Tensor, coords: Tensor, spatial_shape: Sequence[int], batch_size: int
) -> Tensor:
    """See ops.conv_chain.ConvChain.bev_map: [B, Z * C, Y, X], channel z * C + c, channels last."""
    depth, height, width = spatial_shape
    frame, z, y, x = coords.long().unbind(dim=1)
    grid = features.new_zeros(batch_size, height, width, depth, features.shape[1])
    grid[frame, y, x, z] = features
    return grid.flatten(3).permute(0, 3, 1, 2)
