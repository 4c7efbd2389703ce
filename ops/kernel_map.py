"""Kernel maps: the rulebooks of submanifold and strided sparse convolutions.

A kernel map says for every output row and kernel offset which input row is read. On CUDA it comes
from a bitmap of the active sites with rank and select (csrc/index/), on a CPU from a walk along the
sorted sites (csrc/cpu/), elsewhere from a binary search in their keys, which is the definition.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from itertools import product
from math import prod
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from millisecond.ops import cpu
from millisecond.ops.dispatch import on_cpu_kernels
from millisecond.ops.geometry import (
    ConvGeometry,
    check_axes,
    check_cells,
    check_coords,
    coords_of_keys,
    grid_of,
    level_shapes,
    linear_keys,
    same_device,
    submanifold_window,
    three_axes,
    whole,
)
from millisecond.ops.library import constant_when_traced, extension, fake
from millisecond.ops.rulebook import KernelMap, Level, Pyramid, Table

MAX_WORDS = 1 << 28  # of a bitmap, 1 GiB: a batch of 32 KITTI grids takes half of it
WINDOW = 12  # numbers of a window: kernel size, stride, padding, dilation, each (z, y, x)
NO_OUTPUT = -(1 << 60)  # makes a sum of per-axis keys negative where one axis has no output

T = TypeVar("T")
Places = tuple[int | None, int | None, int | None]  # of a level's tables


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
    shape = _checked_grid(coords, spatial_shape)
    window = submanifold_window(kernel_size, dilation, len(shape))
    if not _on_bitmap(coords, batch_size, [shape]):
        return _sites(coords, shape, batch_size, [shape]).submanifold_map(*window)
    plan = Plan.of(batch_size, [shape], [], ConvGeometry.around(*window), 1, False)
    (level,) = _exact(coords, None, None, plan, plan.places(), [shape]).levels
    assert level.submanifold is not None  # the plan asks for it
    return level.submanifold


def strided_map(
    coords: Tensor,  # [N, 1 + D] int32
    spatial_shape: Sequence[int],
    batch_size: int,
    geometry: ConvGeometry,
) -> tuple[Tensor, tuple[int, ...], KernelMap]:
    """Output coords [M, 1 + D] int32, their grid, and the map of a regular convolution.

    An output exists wherever its window touches an input. Rows of both are sorted.
    """
    shape = _checked_grid(coords, spatial_shape)
    geometry = ConvGeometry.of(*geometry, dims=len(shape))
    shapes = level_shapes(shape, [geometry])
    if not _on_bitmap(coords, batch_size, shapes):
        outputs, kernel_map = _sites(coords, shape, batch_size, shapes).strided_map(geometry, True)
        return outputs.coords, outputs.shape, kernel_map
    plan = Plan.of(batch_size, shapes, [geometry], ConvGeometry.around((1,), (1,)), 0, True)
    _, level = _exact(coords, None, None, plan, plan.places(), shapes).levels
    assert level.down is not None  # only level 0 has none
    return level.coords, level.spatial_shape, level.down


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
    clear_on: torch.cuda.Stream | None = None,
) -> Pyramid:
    """Every map of an encoder: level 0 is `coords`, level l + 1 the outputs of `downs[l]`.

    The last level gets a submanifold map only with `last_submanifold`. Rows of `coords` from
    `count` on are ignored. With `capacities` (rows, one number per level) every tensor has that
    many rows: each level is the exact one cut off there, and entries that point at rows cut off
    are -1. Beyond a level's count coords are -1 and tables undefined. `overflow` tells which levels
    were cut.

    Without `transposed` the maps between levels have no backward table: inference needs none.
    On CUDA, grids whose bitmap fits 1 GiB are indexed by it: with capacities nothing is read back
    to the host, else one copy of the counts. Others take the definition's search. A `workspace` of
    `index_workspace` saves zeroing one in every call; it is zero again when the call's kernels are
    done, so calls on one stream may share it. With capacities it becomes zero on the stream
    `clear_on`, where one is given, beside what follows on the current one: who uses the workspace
    again waits for that stream.
    """
    if capacities is not None:
        if len(capacities) != len(downs) + 1:
            raise ValueError(
                f"capacities: expected {len(downs) + 1} numbers, one per level, "
                f"got {len(capacities)}"
            )
        capacities = [whole("capacities", rows, 0) for rows in capacities]
    shape = _checked_grid(coords, spatial_shape)
    kernel, _ = submanifold_window(submanifold_kernel, 1, len(shape))
    downs = [ConvGeometry.of(*down, dims=len(shape)) for down in downs]
    shapes = level_shapes(shape, downs)
    if not _on_bitmap(coords, batch_size, shapes):
        coords = coords if count is None else coords[: int(count)]  # sync: exact sizes
        sites = _sites(coords, shape, batch_size, shapes)
        return _pyramid(sites, downs, kernel, last_submanifold, capacities, transposed)
    plan = Plan.of_pyramid(batch_size, shapes, downs, kernel, last_submanifold, transposed)
    if capacities is None:
        return _exact(coords, count, workspace, plan, plan.places(), shapes)
    return _bounded(coords, count, workspace, plan, shapes, capacities, clear_on)


def pyramid_builder(
    spatial_shape: Sequence[int],
    batch_size: int,
    downs: Sequence[ConvGeometry],
    submanifold_kernel: int | Sequence[int],
    last_submanifold: bool,
    transposed: bool,
    device: torch.device,
) -> Callable[[Tensor], Pyramid]:
    """`index_pyramid` of coords on one device and nothing else: all but the coords is checked once,
    for the host's sake, and on CUDA one call does the rest."""
    shape = grid_of(spatial_shape)
    kernel, _ = submanifold_window(submanifold_kernel, 1, len(shape))
    downs = [ConvGeometry.of(*down, dims=len(shape)) for down in downs]
    shapes = level_shapes(shape, downs)
    check_cells(batch_size, shapes)
    if device.type != "cuda" or not fits(batch_size, shapes):
        grid = shape, batch_size, downs, kernel, last_submanifold
        return lambda coords: index_pyramid(coords, *grid, transposed=transposed)
    plan = Plan.of_pyramid(batch_size, shapes, downs, kernel, last_submanifold, transposed)
    places = plan.places()
    return lambda coords: _exact(coords, None, None, plan, places, shapes)


def index_workspace(
    spatial_shape: Sequence[int],
    batch_size: int,
    downs: Sequence[ConvGeometry],
    device: torch.device,
) -> Tensor:
    """Workspace for `index_pyramid` with these arguments, or for `voxelize` without `downs`."""
    shape = grid_of(spatial_shape)
    downs = [ConvGeometry.of(*down, dims=len(shape)) for down in downs]
    shapes = level_shapes(shape, downs)
    check_cells(batch_size, shapes)
    return new_workspace(batch_size, shapes, device)


def _checked_grid(coords: Tensor, spatial_shape: Sequence[int]) -> tuple[int, ...]:
    shape = grid_of(spatial_shape)
    same_device(coords=coords)
    check_axes(coords, shape)
    return shape


def _on_bitmap(coords: Tensor, batch_size: int, shapes: Sequence[tuple[int, ...]]) -> bool:
    """Whether the bitmap serves; then the operators are loaded, as by `on_kernels`."""
    check_cells(batch_size, shapes)
    return coords.is_cuda and fits(batch_size, shapes)


def _sites(
    coords: Tensor,
    shape: tuple[int, ...],
    batch_size: int,
    shapes: Sequence[tuple[int, ...]],  # of all levels
) -> cpu.WalkedSites | SearchedSites:
    """The sites where there is no bitmap; ValueError unless sorted, unique and inside."""
    if on_cpu_kernels(coords) and cpu.fits(batch_size, shapes):
        return cpu.WalkedSites(coords, shape, batch_size)
    return SearchedSites(coords, shape, batch_size)


# ---- the bitmap, on a GPU -----------------------------------------------------------------------


def fits(batch_size: int, shapes: Sequence[tuple[int, ...]]) -> bool:
    """Whether there is a bitmap of levels of these shapes, and a GPU's memory holds it."""
    return workspace_words(batch_size, shapes) <= MAX_WORDS


def workspace_words(batch_size: int, shapes: Sequence[tuple[int, ...]]) -> int:
    """Elements of the workspace of a batch with levels of these shapes; 2^63 - 1 for levels that no
    bitmap holds."""
    return _workspace_words(operator.index(batch_size), flat(shapes))  # one graph per batch size


@constant_when_traced
def _workspace_words(batch_size: int, shapes: tuple[int, ...]) -> int:
    return _kept_words(batch_size, shapes)


@functools.lru_cache(maxsize=256)
def _kept_words(batch_size: int, shapes: tuple[int, ...]) -> int:
    extension()
    return torch.ops.millisecond.index_workspace_words(batch_size, shapes)


def new_workspace(
    batch_size: int, shapes: Sequence[tuple[int, ...]], device: torch.device
) -> Tensor:
    """Zeros that the operators mark and leave as zeros again."""
    words = workspace_words(batch_size, shapes)
    return torch.zeros(words, dtype=torch.int32, device=device)


def flat(shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    """(z, y, x) of all levels one after another, as the operators take them."""
    return sum((three_axes(shape, 1) for shape in shapes), ())


class Plan(NamedTuple):
    """Arguments of the index operators, in the order of their schemas."""

    batch_size: int
    shapes: tuple[int, ...]  # (z, y, x) of each level
    steps: tuple[int, ...]  # a window for each step from a level to the next
    submanifold: tuple[int, ...]  # the window of the submanifold tables
    submanifold_levels: int  # bit l set: level l has a submanifold table
    transposed: bool  # also backward tables: rows are a step's inputs, entries its outputs

    @classmethod
    def of(
        cls,
        batch_size: int,
        shapes: Sequence[tuple[int, ...]],
        downs: Sequence[ConvGeometry],
        submanifold: ConvGeometry,
        submanifold_levels: int,
        transposed: bool,
    ) -> Plan:
        return cls(
            batch_size,
            flat(shapes),
            sum((down.numbers() for down in downs), ()),
            submanifold.numbers(),
            submanifold_levels,
            transposed,
        )

    @classmethod
    def of_pyramid(
        cls,
        batch_size: int,
        shapes: Sequence[tuple[int, ...]],
        downs: Sequence[ConvGeometry],
        kernel: tuple[int, ...],
        last_submanifold: bool,
        transposed: bool,
    ) -> Plan:
        """Submanifold tables of this kernel on all levels, or all but the last."""
        window = ConvGeometry.around(kernel, (1,) * len(kernel))
        submanifold_levels = (1 << (len(downs) + last_submanifold)) - 1
        return cls.of(batch_size, shapes, downs, window, submanifold_levels, transposed)

    def tables(self, table: Callable[[int, int], T]) -> list[tuple[T | None, T | None, T | None]]:
        """Three tables per level: submanifold, from the level above, back to the level above.

        Calls table(kernel offsets, level of the rows) for each table, in the order in which the
        operators return them (csrc/engine/levels.cpp). None where a level has no such table.
        """
        levels = []
        for level in range(len(self.shapes) // 3):
            same = down = up = None
            if self.submanifold_levels >> level & 1:
                same = table(prod(self.submanifold[:3]), level)
            if level > 0:
                volume = prod(self.steps[WINDOW * (level - 1) :][:3])
                down = table(volume, level)
                up = table(volume, level - 1) if self.transposed else None
            levels.append((same, down, up))
        return levels

    def places(self) -> list[Places]:
        """The level of the rows of each of these tables."""
        return self.tables(lambda _, rows: rows)


def _bounded(
    coords: Tensor,
    count: Tensor | None,
    workspace: Tensor | None,
    plan: Plan,
    shapes: Sequence[tuple[int, ...]],
    capacities: Sequence[int],
    clear_on: torch.cuda.Stream | None,
) -> Pyramid:
    """A fault of the coords is a bit of the overflow, not an error: nothing is read back."""
    coords, given = coords.contiguous(), workspace is not None
    if workspace is None:
        workspace = new_workspace(plan.batch_size, shapes, coords.device)
    millisecond = torch.ops.millisecond
    arguments = *plan, capacities, given and clear_on is None
    counts, *rest = millisecond.index_bounded(coords, count, workspace, *arguments)
    if given and clear_on is not None:
        clear_on.wait_stream(torch.cuda.current_stream(coords.device))
        with torch.cuda.stream(clear_on):
            millisecond.index_clear(workspace, plan.batch_size, plan.shapes)
    levels = len(shapes)
    of_levels = [counts[level : level + 1] for level in range(levels)]
    overflow = counts[levels : levels + 1]
    found = _levels(plan.places(), shapes, rest[:levels], of_levels, rest[levels:])
    return Pyramid(found, overflow, plan.batch_size)


def _exact(
    coords: Tensor,
    count: Tensor | None,
    workspace: Tensor | None,
    plan: Plan,
    places: Sequence[Places],
    shapes: Sequence[tuple[int, ...]],
) -> Pyramid:
    """One call, which waits for the sizes: BatchNorm and autograd want exact ones."""
    coords = coords.contiguous()
    rest, counts = torch.ops.millisecond.index_exact(coords, count, workspace, *plan)
    rows, *_, fault = counts.tolist()
    if fault:
        raise _fault(coords, fault, shapes[0], plan.batch_size)
    below, no_counts = len(shapes) - 1, [None] * len(shapes)
    coords = coords if count is None else coords[:rows]
    levels = _levels(places, shapes, [coords, *rest[:below]], no_counts, rest[below:])
    return Pyramid(levels, None, plan.batch_size)


def _levels(
    places: Sequence[Places],
    shapes: Sequence[tuple[int, ...]],
    coords: Sequence[Tensor],
    counts: Sequence[Tensor | None],
    neighbours: Sequence[Tensor],
) -> tuple[Level, ...]:
    rest, levels = iter(neighbours), []
    for level, of_level in enumerate(places):
        same, down, up = [
            None if rows is None else Table(next(rest), counts[rows]) for rows in of_level
        ]
        submanifold = None if same is None else KernelMap.around(same)
        down_map = None if down is None else KernelMap(down, up)
        levels.append(Level(coords[level], counts[level], shapes[level], submanifold, down_map))
    return tuple(levels)


def _fault(coords: Tensor, fault: int, shape: tuple[int, ...], batch_size: int) -> ValueError:
    """The definition's error for the first wrong row, which the kernel has found."""
    row = len(coords) - fault
    try:
        check_coords(coords[: row + 1], shape, batch_size)
    except ValueError as error:
        return error
    return ValueError(f"coords: row {row} is wrong: {coords[row].tolist()}")


@fake("index_bounded")
def _fake_index_bounded(coords, count, workspace, *arguments) -> list[Tensor]:
    *plan, capacities, _ = arguments
    counts = coords.new_empty(len(capacities) + 2)
    levels = [coords.new_empty(rows, coords.shape[1]) for rows in capacities]
    return [counts, *levels, *_empty_tables(coords, Plan(*plan), capacities)]


@fake("index_exact")
def _fake_index_exact(coords, count, workspace, *arguments) -> tuple:
    plan, unknown = Plan(*arguments), torch.library.get_ctx().new_dynamic_size
    rows = coords.shape[0] if count is None else unknown()
    sizes: list = [rows, *(unknown() for _ in range(len(plan.shapes) // 3 - 1))]
    levels = [coords.new_empty(rows, coords.shape[1]) for rows in sizes[1:]]
    counts = coords.new_empty(len(sizes) + 2, device="cpu")
    return [*levels, *_empty_tables(coords, plan, sizes)], counts


@fake("index_clear")
def _fake_index_clear(workspace, batch_size, shapes) -> None:
    return None


def _empty_tables(coords: Tensor, plan: Plan, sizes: Sequence[int]) -> list[Tensor]:
    tensors: list[Tensor] = []
    plan.tables(lambda volume, rows: tensors.append(coords.new_empty(volume, sizes[rows])))
    return tensors


# ---- the definition, and levels one after another -----------------------------------------------


def submanifold_map_definition(
    coords: Tensor,
    spatial_shape: tuple[int, ...],
    batch_size: int,
    kernel_size: tuple[int, ...],
    dilation: tuple[int, ...],
) -> KernelMap:
    """`submanifold_map` in plain torch."""
    return SearchedSites(coords, spatial_shape, batch_size).submanifold_map(kernel_size, dilation)


def strided_map_definition(
    coords: Tensor, spatial_shape: tuple[int, ...], batch_size: int, geometry: ConvGeometry
) -> tuple[Tensor, tuple[int, ...], KernelMap]:
    """`strided_map` in plain torch."""
    sites = SearchedSites(coords, spatial_shape, batch_size)
    outputs, kernel_map = sites.strided_map(geometry, True)
    return outputs.coords, outputs.shape, kernel_map


class SearchedSites:
    """The sites of a level, by binary search in their sorted keys."""

    def __init__(self, coords: Tensor, shape: tuple[int, ...], batch_size: int):
        check_coords(coords, shape, batch_size)
        self.coords, self.shape, self.batch_size = coords, shape, batch_size

    def submanifold_map(self, kernel_size: tuple[int, ...], dilation: tuple[int, ...]) -> KernelMap:
        neighbours = _submanifold_neighbours(self.coords, self.shape, kernel_size, dilation)
        return KernelMap.around(Table(neighbours))

    def strided_map(
        self, geometry: ConvGeometry, transposed: bool
    ) -> tuple[SearchedSites, KernelMap]:
        """The sites of the outputs, and the map to them."""
        shape = geometry.output_shape(self.shape)
        reached = reached_outputs(self.coords, shape, geometry)
        coords, kernel_map = map_of(reached, shape, transposed)
        outputs = object.__new__(SearchedSites)  # they are sorted
        outputs.coords, outputs.shape, outputs.batch_size = coords, shape, self.batch_size
        return outputs, kernel_map


def _pyramid(
    sites: cpu.WalkedSites | SearchedSites,
    downs: Sequence[ConvGeometry],
    kernel: tuple[int, ...],
    last_submanifold: bool,
    capacities: Sequence[int] | None,
    transposed: bool,
) -> Pyramid:
    """The levels of these sites, one after another."""
    batch_size, dilation, down = sites.batch_size, (1,) * len(kernel), None
    levels = []
    for depth in range(len(downs) + 1):
        submanifold = None
        if depth < len(downs) or last_submanifold:
            submanifold = sites.submanifold_map(kernel, dilation)
        levels.append(Level(sites.coords, None, sites.shape, submanifold, down))
        if depth < len(downs):
            sites, down = sites.strided_map(downs[depth], transposed)
    if capacities is None:
        return Pyramid(tuple(levels), None, batch_size)
    return Pyramid(*_with_capacities(levels, capacities), batch_size)


def _with_capacities(
    levels: Sequence[Level], capacities: Sequence[int]
) -> tuple[tuple[Level, ...], Tensor]:
    """The levels cut off or filled up, each at its capacity, and which of them were cut off."""
    device = levels[0].coords.device
    counts = [
        torch.tensor([min(len(level.coords), rows)], dtype=torch.int32, device=device)
        for level, rows in zip(levels, capacities, strict=True)
    ]
    overflow = sum(
        (len(level.coords) > rows) << depth
        for depth, (level, rows) in enumerate(zip(levels, capacities, strict=True))
    )
    padded = []
    for depth, level in enumerate(levels):
        rows = capacities[depth]
        submanifold = down = None
        if level.submanifold is not None:
            table = _with_capacity(level.submanifold.forward, rows, rows, counts[depth])
            submanifold = KernelMap.around(table)
        if level.down is not None:
            above = capacities[depth - 1]
            forward, backward = level.down
            forward = _with_capacity(forward, rows, above, counts[depth])
            if backward is not None:
                backward = _with_capacity(backward, above, rows, counts[depth - 1])
            down = KernelMap(forward, backward)
        coords = level.coords.new_full((rows, level.coords.shape[1]), -1)
        kept = min(len(level.coords), rows)
        coords[:kept] = level.coords[:kept]
        padded.append(Level(coords, counts[depth], level.spatial_shape, submanifold, down))
    return tuple(padded), torch.tensor([overflow], dtype=torch.int32, device=device)


def _with_capacity(table: Table, rows: int, source_rows: int, count: Tensor) -> Table:
    offsets, length = table.neighbours.shape
    neighbours = table.neighbours.new_full((offsets, rows), -1)
    kept = table.neighbours[:, : min(length, rows)]
    neighbours[:, : kept.shape[1]] = torch.where(kept < source_rows, kept, -1)
    return Table(neighbours, count, table.flipped)


def _submanifold_neighbours(
    coords: Tensor, shape: tuple[int, ...], kernel: tuple[int, ...], dilation: tuple[int, ...]
) -> Tensor:
    """[V, N] int32: the row at coords + (offset - kernel // 2) * dilation, -1 = none.

    Rows that follow each other in x are neighbours in the sorted keys, so one search finds the
    start of a whole line of offsets. The map is symmetric: half of the lines give the rest.
    """
    # A margin around the grid keeps a window from running into the next row of cells.
    padded = [n + k // 2 * d for n, k, d in zip(shape, kernel, dilation, strict=True)]
    keys = linear_keys(coords, padded)
    bounded = torch.cat([keys, keys.new_tensor([torch.iinfo(keys.dtype).max])])
    offsets, line, length = prod(kernel), kernel[-1], len(coords)
    neighbours = coords.new_full((offsets, length), -1)
    row = torch.arange(length, dtype=coords.dtype, device=coords.device)
    neighbours[offsets // 2] = row
    own = row.long() + offsets // 2 * length  # where each row has itself as its neighbour
    for first, offset in enumerate(product(*(range(k) for k in kernel[:-1]), [0])):
        if first * line >= offsets // 2:
            break
        shift = 0
        for o, k, d, n in zip(offset, kernel, dilation, padded, strict=True):
            shift = shift * n + (o - k // 2) * d
        wanted = keys + shift
        position = torch.searchsorted(keys, wanted)
        for step in range((line - 1) * dilation[-1] + 1):
            found = bounded.index_select(0, position) == wanted + step
            v = first * line + step // dilation[-1]
            if step % dilation[-1] == 0 and v < offsets // 2:
                neighbours[v] = torch.where(found, position, -1)
                mirrored = position + (offsets - 1 - v) * length
                neighbours.view(-1).scatter_(0, torch.where(found, mirrored, own), row)
            position += found
    return neighbours


def reached_outputs(
    coords: Tensor,  # [N, 1 + D] int32
    out_shape: Sequence[int],
    geometry: ConvGeometry,
    transposed: bool = False,
) -> Tensor:
    """[V, N] int64: linear key of the output that reads row n with offset v, negative = none.

    transposed: of a transposed convolution, output = input * stride - padding + offset * dilation.
    """
    volume = prod(out_shape)
    reached = (coords[:, 0].long() * volume)[None]
    for axis, size in enumerate(out_shape):
        volume //= size
        kernel, stride, padding, dilation = (numbers[axis] for numbers in geometry)
        step = torch.arange(kernel, device=coords.device)[:, None] * dilation
        if transposed:
            out = coords[:, 1 + axis].long() * stride - padding + step
            valid = (out >= 0) & (out < size)
        else:
            start = coords[:, 1 + axis] + padding - step
            out = torch.div(start, stride, rounding_mode="floor")
            valid = (start == out * stride) & (out >= 0) & (out < size)
        reached = (reached[:, None] + torch.where(valid, out * volume, NO_OUTPUT)).flatten(0, 1)
    return reached


def map_of(reached: Tensor, out_shape: Sequence[int], both_ways: bool) -> tuple[Tensor, KernelMap]:
    """Output coords [M, 1 + D] int32, sorted, and the map to them, from `reached_outputs`."""
    offsets, rows = reached.shape
    pair = (reached >= 0).view(-1).nonzero().squeeze(1)  # sync: number of outputs
    keys, out_row = reached.view(-1).index_select(0, pair).unique(return_inverse=True)
    offset = pair // max(rows, 1)
    forward = reached.new_full((offsets, len(keys)), -1, dtype=torch.int32)
    forward.view(-1).scatter_(0, offset * len(keys) + out_row, (pair - offset * rows).int())
    backward = None
    if both_ways:
        backward = Table(torch.full_like(reached, -1, dtype=torch.int32))
        backward.neighbours.view(-1).scatter_(0, pair, out_row.int())
    return coords_of_keys(keys, out_shape), KernelMap(Table(forward), backward)
