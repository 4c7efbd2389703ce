"""Whether sites are sorted, unique and inside of their grid."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from ops.cuda import site_order as cuda
from ops.dispatch import on_kernels
from ops.reference import site_order as reference

NOT_INCREASING, OUTSIDE = 1, 2


def site_order(coords: Tensor, batch_size: int, shape: Sequence[int]) -> Tensor:
    """[1] int32 of coords [N, 1 + D] int32: 0, or the sum of NOT_INCREASING where a row does not
    come after the one before it by (b, z, y, x), and OUTSIDE where one is out of the grid."""
    backend = cuda if on_kernels(coords) else reference
    return backend.site_order(coords, batch_size, shape)
