"""Tables of neighbours from the lines of sorted sites.

They take memory for the lines of the grid, 4 bytes each, not for its cells as the bitmap of
`ops.kernel_map` does: for large grids with few sites.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from ops.cuda import line_table as cuda
from ops.dispatch import on_kernels
from ops.geometry import ConvGeometry
from ops.reference import line_table as reference


def line_table(
    coords: Tensor,  # [N, 1 + D] int32
    source: Tensor,  # [M, 1 + D] int32, sorted and unique
    batch_size: int,
    shape: Sequence[int],
    window: ConvGeometry,
    transposed: bool = False,
) -> Tensor:  # [V, N] int32
    """The row of the sources that each offset of the window reads for each row, -1 = none.

    The coords are the outputs of the window's convolution and the sources its inputs on a grid of
    this shape; `transposed`: the other way round.
    """
    backend = cuda if on_kernels(coords) else reference
    return backend.line_table(coords, source, batch_size, shape, window, transposed)


def site_table(
    coords: Tensor,  # [N, 1 + D] int32
    batch_size: int,
    shape: Sequence[int],
    window: ConvGeometry,  # whose outputs are on the sites
) -> tuple[Tensor, int]:  # [V, N] int32
    """The table of sites that are likely to be sorted, and the number of `ops.site_order`. Where
    that is not 0 the table holds anything.

    A GPU makes the table while the host waits for the number.
    """
    backend = cuda if on_kernels(coords) else reference
    return backend.site_table(coords, batch_size, shape, window)
