"""Which input row each output row of a sparse convolution reads, for every offset of the kernel."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ops.cuda import kernel_map as cuda
from ops.reference import kernel_map as reference


class Table(NamedTuple):
    """One direction of a kernel map; V offsets in C order (z, y, x)."""

    neighbours: Tensor  # [V, N] int32: row of the source that offset v of row n reads, -1 = none
    mask: Tensor | None = None  # [N] int32: bit v set where neighbours[v, n] >= 0 (CUDA only)
    count: Tensor | None = None  # [1] int32: rows from here on hold nothing; None: all rows count
    flipped: bool = False  # offset v is multiplied with weight[V - 1 - v]


class KernelMap(NamedTuple):
    """Both directions of a convolution; `backward` is None where only inference is wanted."""

    forward: Table  # N_out rows, entries are input rows
    backward: Table | None  # N_in rows, entries are output rows

    def reversed(self) -> KernelMap:
        """The map of the inverse convolution: outputs on the inputs' sites."""
        if self.backward is None:
            raise ValueError("kernel_map: backward is None, build the map with both directions")
        return KernelMap(self.backward, self.forward)


class ConvGeometry(NamedTuple):
    """A convolution's window: input = output * stride - padding + offset * dilation, per axis."""

    kernel_size: tuple[int, ...]  # (z, y, x) or (y, x)
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]

    @classmethod
    def of(
        cls,
        kernel_size: int | Sequence[int],
        stride: int | Sequence[int] = 1,
        padding: int | Sequence[int] = 0,
        dilation: int | Sequence[int] = 1,
        dims: int = 3,
    ) -> ConvGeometry:
        """Spell out ints for every axis. ValueError where a number is out of its range."""
        return cls(
            per_axis("kernel_size", kernel_size, dims, least=1),
            per_axis("stride", stride, dims, least=1),
            per_axis("padding", padding, dims, least=0),
            per_axis("dilation", dilation, dims, least=1),
        )

    def output_shape(self, spatial_shape: Sequence[int]) -> tuple[int, ...]:
        """floor((in + 2 padding - dilation (kernel - 1) - 1) / stride) + 1 on each axis."""
        shape = tuple(
            (n + 2 * p - d * (k - 1) - 1) // s + 1
            for n, k, s, p, d in zip(spatial_shape, *self, strict=True)
        )
        if min(shape) < 1:
            raise ValueError(
                f"kernel_size: {self.kernel_size} does not fit a grid of {tuple(spatial_shape)}"
            )
        return shape


class Level(NamedTuple):
    """One resolution of an encoder and its maps."""

    coords: Tensor  # [N, 1 + D] int32, rows from `count` on are -1
    count: Tensor | None  # [1] int32
    spatial_shape: tuple[int, ...]
    submanifold: KernelMap | None
    down: KernelMap | None  # from the level above; None at level 0


class Pyramid(NamedTuple):
    """All levels of an encoder."""

    levels: tuple[Level, ...]
    overflow: Tensor | None  # [1] int32: bit l set where level l did not fit its capacity; on CUDA
    # bit 30 where the coords were not sorted, unique and inside the grid
    batch_size: int


def submanifold_map(
    coords: Tensor,  # [N, 1 + D] int32
    spatial_shape: Sequence[int],
    batch_size: int,
    kernel_size: int | Sequence[int] = 3,
    dilation: int | Sequence[int] = 1,
) -> KernelMap:
    """The map of a convolution whose outputs are its inputs' sites; odd kernels only.

    `coords` are (b, z, y, x) or (b, y, x), sorted by row and unique; else ValueError.
    """
    shape = _checked_grid(coords, spatial_shape, batch_size)
    window = submanifold_window(kernel_size, dilation, len(shape))
    if coords.is_cuda:
        plan = cuda.Plan.of([shape], batch_size, [], window, 1, False)
        if plan.fits():
            return _cuda_pyramid(coords, [shape], plan).levels[0].submanifold
        reference.check_coords(coords, shape, batch_size)
    return _submanifold_map(coords, shape, *window)


def strided_map(
    coords: Tensor,  # [N, 1 + D] int32
    spatial_shape: Sequence[int],
    batch_size: int,
    geometry: ConvGeometry,
) -> tuple[Tensor, tuple[int, ...], KernelMap]:
    """Output coords [M, 1 + D] int32, their grid, and the map of a regular convolution.

    An output exists wherever its window touches an input. Rows of both are sorted.
    """
    shape = _checked_grid(coords, spatial_shape, batch_size)
    geometry = ConvGeometry.of(*geometry, dims=len(shape))
    if coords.is_cuda:
        shapes = [shape, geometry.output_shape(shape)]
        window = submanifold_window(1, 1, len(shape))
        plan = cuda.Plan.of(shapes, batch_size, [geometry], window, 0, True)
        if plan.fits():
            level = _cuda_pyramid(coords, shapes, plan).levels[1]
            return level.coords, level.spatial_shape, level.down
        reference.check_coords(coords, shape, batch_size)
    return _strided_map(coords, shape, geometry)


def index_pyramid(
    coords: Tensor,  # [N, 1 + D] int32
    spatial_shape: Sequence[int],
    batch_size: int,
    downs: Sequence[ConvGeometry],
    submanifold_kernel: int | Sequence[int] = 3,
    last_submanifold: bool = False,
    capacities: Sequence[int] | None = None,
    count: Tensor | None = None,  # [1] int32
    transposed: bool = True,
    workspace: Tensor | None = None,
) -> Pyramid:
    """Every map of an encoder: level 0 is `coords`, level l + 1 is level l seen by `downs[l]`.

    The last level gets a submanifold map only with `last_submanifold`. Rows of `coords` from
    `count` on are ignored. With `capacities` (rows, one number a level) every tensor has that many
    rows: each level is the exact one cut off there, and entries that point at rows cut off are -1.
    Beyond a level's count coords are -1, masks 0 and tables undefined. `overflow` tells which
    levels were cut.

    Without `transposed` the maps between levels have no backward table: inference needs none.
    On CUDA, grids whose bitmap fits 1 GiB with kernels of up to 32 offsets are indexed by it: with
    capacities nothing is read back to the host, else one copy of the counts. Others take the
    reference's search. A `workspace` of `index_workspace` saves zeroing one in every call; it is
    zero again when the call's kernels are done, so calls on one stream may share it.
    """
    if capacities is not None and len(capacities) != len(downs) + 1:
        raise ValueError(
            f"capacities: expected {len(downs) + 1} numbers, one a level, got {len(capacities)}"
        )
    if not coords.is_cuda and count is not None:
        coords = coords[: int(count)]
    shape = _checked_grid(coords, spatial_shape, batch_size)
    window = submanifold_window(submanifold_kernel, 1, len(shape))
    geometries = [ConvGeometry.of(*down, dims=len(shape)) for down in downs]
    shapes = [shape]
    for geometry in geometries:
        shapes.append(geometry.output_shape(shapes[-1]))
    submanifold_levels = (1 << (len(downs) + last_submanifold)) - 1
    if coords.is_cuda:
        plan = cuda.Plan.of(shapes, batch_size, geometries, window, submanifold_levels, transposed)
        if plan.fits():
            return _cuda_pyramid(coords, shapes, plan, capacities, count, workspace)
        coords = coords if count is None else coords[: int(count)]  # sync: exact sizes
        reference.check_coords(coords, shape, batch_size)
    down = None
    levels = []
    for index, shape in enumerate(shapes):
        submanifold = None
        if submanifold_levels >> index & 1:
            submanifold = _submanifold_map(coords, shape, *window)
        levels.append(Level(coords, None, shape, submanifold, down))
        if index < len(downs):
            coords, _, down = _strided_map(coords, shape, geometries[index], transposed)
    if capacities is None:
        return Pyramid(tuple(levels), None, batch_size)
    return Pyramid(*_with_capacities(levels, capacities), batch_size)


def index_workspace(
    spatial_shape: Sequence[int],
    batch_size: int,
    downs: Sequence[ConvGeometry],
    device: torch.device,
) -> Tensor:
    """Workspace for `index_pyramid` with these arguments, or for `voxelize` without `downs`."""
    shapes = [tuple(spatial_shape)]
    for down in downs:
        shapes.append(ConvGeometry.of(*down, dims=len(spatial_shape)).output_shape(shapes[-1]))
    window = submanifold_window(1, 1, len(spatial_shape))
    plan = cuda.Plan.of(shapes, batch_size, [], window, 0, False)
    return cuda.new_workspace(batch_size, plan.shapes, device)


def _cuda_pyramid(
    coords: Tensor,
    shapes: Sequence[tuple[int, ...]],
    plan: cuda.Plan,
    capacities: Sequence[int] | None = None,
    count: Tensor | None = None,
    workspace: Tensor | None = None,
) -> Pyramid:
    index = cuda.index(coords, plan, capacities, count, workspace)
    counts = [None] * len(shapes)
    overflow = None
    if index.counts is not None:
        counts = [index.counts[i : i + 1] for i in range(len(shapes))]
        overflow = index.counts[len(shapes) : len(shapes) + 1]
    tables = iter(index.tables)
    levels = []
    for i, shape in enumerate(shapes):
        submanifold = down = None
        if plan.submanifold_levels >> i & 1:
            table = Table(next(tables), next(tables), counts[i])
            submanifold = KernelMap(table, table._replace(flipped=True))
        if i > 0:
            forward = Table(next(tables), next(tables), counts[i])
            backward = None
            if plan.transposed:
                backward = Table(next(tables), next(tables), counts[i - 1])
            down = KernelMap(forward, backward)
        levels.append(Level(index.coords[i], counts[i], shape, submanifold, down))
    return Pyramid(tuple(levels), overflow, plan.batch_size)


def _submanifold_map(
    coords: Tensor, shape: tuple[int, ...], kernel: tuple[int, ...], dilation: tuple[int, ...]
) -> KernelMap:
    neighbours = reference.submanifold_neighbours(coords, shape, kernel, dilation)
    table = Table(neighbours)
    return KernelMap(table, table._replace(flipped=True))


def _strided_map(
    coords: Tensor, shape: tuple[int, ...], geometry: ConvGeometry, transposed: bool = True
) -> tuple[Tensor, tuple[int, ...], KernelMap]:
    out_shape = geometry.output_shape(shape)
    out_coords, forward, backward = reference.strided_neighbours(
        coords, out_shape, geometry, transposed
    )
    return out_coords, out_shape, KernelMap(Table(forward), Table(backward) if transposed else None)


def _with_capacities(
    levels: Sequence[Level], capacities: Sequence[int]
) -> tuple[tuple[Level, ...], Tensor]:
    device = levels[0].coords.device
    counts = [
        torch.tensor([min(len(level.coords), rows)], dtype=torch.int32, device=device)
        for level, rows in zip(levels, capacities, strict=True)
    ]
    overflow = sum(
        (len(level.coords) > rows) << index
        for index, (level, rows) in enumerate(zip(levels, capacities, strict=True))
    )
    padded = []
    for index, level in enumerate(levels):
        rows = capacities[index]
        submanifold = down = None
        if level.submanifold is not None:
            table = _with_capacity(level.submanifold.forward, rows, rows, counts[index])
            submanifold = KernelMap(table, table._replace(flipped=True))
        if level.down is not None:
            above = capacities[index - 1]
            forward, backward = level.down
            forward = _with_capacity(forward, rows, above, counts[index])
            if backward is not None:
                backward = _with_capacity(backward, above, rows, counts[index - 1])
            down = KernelMap(forward, backward)
        coords = level.coords.new_full((rows, level.coords.shape[1]), -1)
        kept = min(len(level.coords), rows)
        coords[:kept] = level.coords[:kept]
        padded.append(Level(coords, counts[index], level.spatial_shape, submanifold, down))
    return tuple(padded), torch.tensor([overflow], dtype=torch.int32, device=device)


def _with_capacity(table: Table, rows: int, source_rows: int, count: Tensor) -> Table:
    offsets, length = table.neighbours.shape
    neighbours = table.neighbours.new_full((offsets, rows), -1)
    kept = table.neighbours[:, : min(length, rows)]
    neighbours[:, : kept.shape[1]] = torch.where(kept < source_rows, kept, -1)
    return Table(neighbours, None, count, table.flipped)


def per_axis(name: str, value: int | Sequence[int], dims: int, least: int) -> tuple[int, ...]:
    """`value` as one int for each of `dims` axes, none below `least`."""
    numbers = (value,) * dims if isinstance(value, int) else tuple(value)
    if len(numbers) != dims or not all(isinstance(n, int) and n >= least for n in numbers):
        raise ValueError(f"{name}: expected {dims} whole numbers from {least} up, got {value}")
    return numbers


def submanifold_window(
    kernel_size: int | Sequence[int], dilation: int | Sequence[int], dims: int
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Kernel size and dilation for every axis; ValueError for an even kernel."""
    kernel = per_axis("kernel_size", kernel_size, dims, least=1)
    if not all(size % 2 for size in kernel):
        raise ValueError(f"kernel_size: a submanifold kernel has odd sizes only, got {kernel}")
    return kernel, per_axis("dilation", dilation, dims, least=1)


def _checked_grid(coords: Tensor, spatial_shape: Sequence[int], batch_size: int) -> tuple[int, ...]:
    shape = per_axis("spatial_shape", spatial_shape, len(spatial_shape), least=1)
    if coords.dtype != torch.int32:
        raise ValueError(f"coords: expected int32, got {coords.dtype}")
    if coords.ndim != 2 or coords.shape[1] != 1 + len(shape):
        raise ValueError(
            f"coords: expected [N, {1 + len(shape)}] for a grid of {shape}, "
            f"got {list(coords.shape)}"
        )
    if not coords.is_cuda:  # on CUDA the kernels check, for the host would have to wait here
        reference.check_coords(coords, shape, batch_size)
    return shape
