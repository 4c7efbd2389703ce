"""Features on the active sites of a batch of grids."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor


@dataclass(frozen=True)
class SparseTensor:
    """Features of N active sites; coords are (b, z, y, x) or (b, y, x), sorted and unique."""

    features: Tensor  # [N, C]
    coords: Tensor  # [N, 1 + D] int32
    spatial_shape: tuple[int, ...]  # D cells, in the order of coords
    batch_size: int

    def __post_init__(self) -> None:
        if self.features.ndim != 2 or len(self.features) != len(self.coords):
            raise ValueError(
                f"features: expected [{len(self.coords)}, C], one row for each of coords, "
                f"got {list(self.features.shape)}"
            )

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
    cells = coords.long()
    index = cells[:, 0]
    for axis, size in enumerate(spatial_shape):
        index = index * size + cells[:, 1 + axis]
    volume = batch_size
    for size in spatial_shape:
        volume *= size
    if count is not None:
        # One spare row takes what lies beyond the count, so that nothing is read back to the host.
        row = torch.arange(len(coords), device=coords.device)
        index = torch.where(row < count, index, volume)
    grid = features.new_zeros(volume + 1, features.shape[1]).index_copy(0, index, features)[:-1]
    return grid.view(batch_size, *spatial_shape, -1).movedim(-1, 1).contiguous()
