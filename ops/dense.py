"""Rows of active sites scattered to dense grids: 3-D, or seen from above (bird's-eye view)."""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType

import torch
from torch import Tensor

from ops.cuda import dense as cuda
from ops.reference import dense as reference


def dense(
    features: Tensor,  # [N, C]
    coords: Tensor,  # [N, 1 + D] int32
    spatial_shape: Sequence[int],
    batch_size: int,
    count: Tensor | None = None,  # [1] int32
) -> Tensor:
    """Scatter rows to [B, C, *spatial_shape]; rows from `count` on are left out. Differentiable."""
    check_rows(features, coords, spatial_shape)
    return _backend(coords).dense(features, coords, spatial_shape, batch_size, count)


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
    check_rows(features, coords, spatial_shape)
    return _backend(coords).bev_map(features, coords, spatial_shape, batch_size, count)


def _backend(coords: Tensor) -> ModuleType:
    return cuda if coords.is_cuda else reference  # the kernel moves bytes of any type


def check_rows(features: Tensor, coords: Tensor, spatial_shape: Sequence[int]) -> None:
    """ValueError unless there is one row of features for each of the coords."""
    if coords.dtype != torch.int32:
        raise ValueError(f"coords: expected int32, got {coords.dtype}")
    if coords.ndim != 2 or coords.shape[1] != 1 + len(spatial_shape):
        raise ValueError(
            f"coords: expected [N, {1 + len(spatial_shape)}] for a grid of "
            f"{tuple(spatial_shape)}, got {list(coords.shape)}"
        )
    if features.ndim != 2 or len(features) != len(coords):
        raise ValueError(
            f"features: expected [{len(coords)}, C], one row for each of coords, "
            f"got {list(features.shape)}"
        )
    if features.device != coords.device:
        raise ValueError(f"coords: on {coords.device}, features on {features.device}")
