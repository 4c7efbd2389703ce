"""Features on the active sites of a batch of grids."""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import Tensor

from ops.dense import check_rows, dense


@dataclass(frozen=True)
class SparseTensor:
    """Features of N active sites; coords are (b, z, y, x) or (b, y, x), sorted and unique."""

    features: Tensor  # [N, C]
    coords: Tensor  # [N, 1 + D] int32
    spatial_shape: tuple[int, ...]  # D cells, in the order of coords
    batch_size: int

    def __post_init__(self) -> None:
        check_rows(self.features, self.coords, self.spatial_shape)

    def replace(self, features: Tensor) -> SparseTensor:
        """Other features [N, C'] on the same sites."""
        return replace(self, features=features)

    def dense(self) -> Tensor:
        """[B, C, *spatial_shape], zero where no site is active."""
        return dense(self.features, self.coords, self.spatial_shape, self.batch_size)
