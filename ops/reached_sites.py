"""Outputs of a strided convolution by sorting, for grids whose bitmap would be too large."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from ops.cuda import reached_sites as cuda
from ops.dispatch import on_kernels
from ops.geometry import ConvGeometry
from ops.reference import reached_sites as reference


def reached_sites(
    coords: Tensor,  # [N, 1 + D] int32, unique
    batch_size: int,
    shape: Sequence[int],
    window: ConvGeometry,
) -> Tensor:  # [M, 1 + D] int32, sorted
    """The outputs on a grid of this shape that some window with a site has; waits for the GPU."""
    backend = cuda if on_kernels(coords) else reference
    return backend.reached_sites(coords, batch_size, shape, window)
