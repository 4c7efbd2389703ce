"""Kernel maps of sorted sites where a bitmap of the grid would be too large: by its lines."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from ops.cuda.bitmap import workspace_words
from ops.geometry import ConvGeometry
from ops.line_table import line_table, site_table
from ops.reached_sites import reached_sites
from ops.rulebook import KernelMap, Table

MOST_BYTES = 1 << 27  # of a bitmap
MOST_BYTES_A_SITE = 100  # of a bitmap of one level, as many as the site's row in a table has


def too_large(coords: Tensor, batch_size: int, shapes: Sequence[tuple[int, ...]]) -> bool:
    """Whether the bitmap of levels of these shapes takes more memory than it saves time."""
    if not coords.is_cuda:
        return False
    limit = MOST_BYTES if len(shapes) > 1 else min(MOST_BYTES, MOST_BYTES_A_SITE * len(coords))
    return 4 * workspace_words(batch_size, shapes) > limit


def submanifold_map(
    coords: Tensor,  # [N, 1 + D] int32, sorted
    shape: tuple[int, ...],
    batch_size: int,
    kernel: tuple[int, ...],
    dilation: tuple[int, ...],
) -> KernelMap:
    """See ops.kernel_map.submanifold_map."""
    table = Table(line_table(coords, coords, batch_size, shape, _around(kernel, dilation)))
    return KernelMap(table, table.reversed())


def submanifold_map_if_sorted(
    coords: Tensor,  # [N, 1 + D] int32
    shape: tuple[int, ...],
    batch_size: int,
    kernel: tuple[int, ...],
    dilation: tuple[int, ...],
) -> KernelMap | None:
    """The same of any sites; None where they are not sorted, twice there or outside."""
    found, fault = site_table(coords, batch_size, shape, _around(kernel, dilation))
    table = Table(found)
    return None if fault else KernelMap(table, table.reversed())


def strided_map(
    coords: Tensor,  # [N, 1 + D] int32, sorted
    shape: tuple[int, ...],
    batch_size: int,
    geometry: ConvGeometry,
    both_ways: bool = True,
) -> tuple[Tensor, tuple[int, ...], KernelMap]:
    """See ops.kernel_map.strided_map; without `both_ways` there is no way back."""
    out_shape = geometry.output_shape(shape)
    outputs = reached_sites(coords, batch_size, out_shape, geometry)
    forward = Table(line_table(outputs, coords, batch_size, shape, geometry))
    backward = way_back(coords, outputs, out_shape, batch_size, geometry) if both_ways else None
    return outputs, out_shape, KernelMap(forward, backward)


def way_back(
    coords: Tensor,  # [N, 1 + D] int32, sorted
    outputs: Tensor,  # [M, 1 + D] int32, sorted
    out_shape: tuple[int, ...],
    batch_size: int,
    geometry: ConvGeometry,
) -> Table:
    """The table of the way back of a strided map from `coords` to `outputs`."""
    return Table(line_table(coords, outputs, batch_size, out_shape, geometry, True))


def _around(kernel: tuple[int, ...], dilation: tuple[int, ...]) -> ConvGeometry:
    centre = tuple(k // 2 * d for k, d in zip(kernel, dilation, strict=True))
    return ConvGeometry(kernel, (1,) * len(kernel), centre, dilation)
