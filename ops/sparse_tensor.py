"""Features on the active sites of a batch of grids."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ops.cuda.library import extension
from ops.reference import dense as reference
from ops.reference.kernel_map import check_coords


@dataclass(frozen=True)
class SparseTensor:
    """Features of N active sites; coords are (b, z, y, x) or (b, y, x), sorted and unique."""

    features: Tensor  # [N, C]
    coords: Tensor  # [N, 1 + D] int32
    spatial_shape: tuple[int, ...]  # D cells, in the order of coords
    batch_size: int

    def __post_init__(self) -> None:
        _check_rows(self.features, self.coords, self.spatial_shape)

    def replace(self, features: Tensor) -> SparseTensor:
        """Other features [N, C'] on the same sites."""
        return replace(self, features=features)

    def dense(self) -> Tensor:
        """[B, C, *spatial_shape], zero where no site is active."""
        return dense(self.features, self.coords, self.spatial_shape, self.batch_size)


def dense(
    features: Tensor,  # [N, C]
    coords: Tensor,  # [N, 1 + D] int32
    spatial_shape: Sequence[int],
    batch_size: int,
    count: Tensor | None = None,  # [1] int32
) -> Tensor:
    """Scatter rows to [B, C, *spatial_shape]; rows from `count` on are left out. Differentiable."""
    _check_rows(features, coords, spatial_shape)
    if coords.is_cuda:
        return _cuda_dense(features, coords, spatial_shape, batch_size, count, from_above=False)
    features, coords = _counted(features, coords, spatial_shape, batch_size, count)
    return reference.dense(features, coords, spatial_shape, batch_size)


def bev_map(
    features: Tensor,  # [N, C]
    coords: Tensor,  # [N, 4] int32
    spatial_shape: Sequence[int],  # (z, y, x)
    batch_size: int,
    count: Tensor | None = None,  # [1] int32
) -> Tensor:
    """Scatter rows to [B, C * Z, Y, X], channel c * Z + z, channels last. As `dense`."""
    _check_rows(features, coords, spatial_shape)
    if coords.is_cuda:
        return _cuda_dense(features, coords, spatial_shape, batch_size, count, from_above=True)
    features, coords = _counted(features, coords, spatial_shape, batch_size, count)
    return reference.bev_map(features, coords, spatial_shape, batch_size)


def _counted(features, coords, spatial_shape, batch_size, count) -> tuple[Tensor, Tensor]:
    if count is not None:
        features, coords = features[: int(count)], coords[: int(count)]
    check_coords(coords, spatial_shape, batch_size)
    return features, coords


def _cuda_dense(features, coords, spatial_shape, batch_size, count, from_above) -> Tensor:
    extension()
    return torch.ops.millisecond.dense(
        features.contiguous(), coords, count, batch_size, spatial_shape, from_above
    )


def _check_rows(features: Tensor, coords: Tensor, spatial_shape: Sequence[int]) -> None:
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
