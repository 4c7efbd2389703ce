"""The rulebook of a sparse convolution as a value: which input row each output row reads.

For every offset of the kernel, a rulebook lists pairs of input and output rows (Graham and van der
Maaten 2017). Here it is a table with a row of the input, or none, for each offset and output row.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Table(NamedTuple):
    """One direction of a kernel map; V kernel offsets in C order (z, y, x)."""

    neighbours: Tensor  # [V, N] int32: row of the source that offset v of row n reads, -1 = none
    # [1] int32: rows from here on hold nothing; None: all rows count. (Hides tuple.count.)
    count: Tensor | None = None  # type: ignore[assignment]
    flipped: bool = False  # offset v is multiplied with weight[V - 1 - v]
    order: Tensor | None = None  # [2 P, N] int32 for wide layers on a GPU, see ops.row_order
    tiles: Tensor | None = None  # uint8: what a wide layer's kernel on a GPU finds out first

    def reversed(self) -> Table:
        """The other direction of a submanifold map."""
        return self._replace(flipped=not self.flipped)

    def filled(self) -> Tensor:
        """The neighbours, with none in rows that do not count."""
        if self.count is None:
            return self.neighbours
        row = torch.arange(self.neighbours.shape[1], device=self.neighbours.device)
        return torch.where(row < self.count, self.neighbours, -1)


class KernelMap(NamedTuple):
    """The rulebook of a convolution in both directions; inference alone needs no `backward`."""

    forward: Table  # N_out rows, entries are input rows
    backward: Table | None  # N_in rows, entries are output rows

    @classmethod
    def around(cls, table: Table) -> KernelMap:
        """The map of a submanifold convolution: its neighbours are symmetric."""
        return cls(table, table.reversed())

    def reversed(self) -> KernelMap:
        """The map of the inverse convolution: outputs on the inputs' sites."""
        if self.backward is None:
            raise ValueError("kernel_map: backward is None, build the map with both directions")
        return KernelMap(self.backward, self.forward)


class Level(NamedTuple):
    """One resolution of an encoder: its active sites and its maps."""

    coords: Tensor  # [N, 1 + D] int32, rows from `count` on are -1
    count: Tensor | None  # type: ignore[assignment]  # [1] int32 (hides tuple.count)
    spatial_shape: tuple[int, ...]
    submanifold: KernelMap | None
    down: KernelMap | None  # from the level above; None at level 0


class Pyramid(NamedTuple):
    """All levels of an encoder."""

    levels: tuple[Level, ...]
    overflow: Tensor | None  # [1] int32: bit l set where level l did not fit its capacity; on CUDA
    # bit 30 set where the coords were not sorted, not unique or not inside the grid
    batch_size: int
