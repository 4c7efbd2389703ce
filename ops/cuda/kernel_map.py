"""Kernel maps on the CUDA kernels: bitmaps of sites with rank and select, see csrc/index/.

The kernels have three axes: shapes and windows of fewer are filled up with axes of size 1.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from ops.cuda.bitmap import flat, new_workspace, three_axes
from ops.cuda.fakes import fake
from ops.cuda.library import extension
from ops.geometry import ConvGeometry, level_shapes
from ops.reference.coords import check_coords
from ops.rulebook import KernelMap, Level, Pyramid, Table

T = TypeVar("T")

Places = tuple[int | None, int | None, int | None]  # of a level's tables

WINDOW = 12  # numbers of a window: kernel size, stride, padding, dilation, each (z, y, x)


def submanifold_map(
    coords: Tensor,
    spatial_shape: tuple[int, ...],
    batch_size: int,
    kernel_size: tuple[int, ...],
    dilation: tuple[int, ...],
) -> KernelMap:
    """See ops.kernel_map.submanifold_map."""
    window = _around_a_site(kernel_size, dilation)
    plan = Plan.of(batch_size, [spatial_shape], [], window, 1, False)
    (level,) = _index(coords, [spatial_shape], plan).levels
    assert level.submanifold is not None  # the plan asks for it
    return level.submanifold


def strided_map(
    coords: Tensor, spatial_shape: tuple[int, ...], batch_size: int, geometry: ConvGeometry
) -> tuple[Tensor, tuple[int, ...], KernelMap]:
    """See ops.kernel_map.strided_map."""
    shapes = level_shapes(spatial_shape, [geometry])
    plan = Plan.of(batch_size, shapes, [geometry], _around_a_site((1,), (1,)), 0, True)
    _, level = _index(coords, shapes, plan).levels
    assert level.down is not None  # only level 0 has none
    return level.coords, level.spatial_shape, level.down


def index_pyramid(
    coords: Tensor,
    spatial_shape: tuple[int, ...],
    batch_size: int,
    downs: Sequence[ConvGeometry],
    submanifold_kernel: tuple[int, ...],
    last_submanifold: bool,
    capacities: Sequence[int] | None,
    count: Tensor | None,
    transposed: bool,
    workspace: Tensor | None,
    clear_on: torch.cuda.Stream | None,
) -> Pyramid:
    """See ops.kernel_map.index_pyramid. With capacities a fault of the coords is a bit of the
    overflow, not an error."""
    shapes = level_shapes(spatial_shape, downs)
    submanifold_levels = (1 << (len(downs) + last_submanifold)) - 1
    window = _around_a_site(submanifold_kernel, (1,) * len(submanifold_kernel))
    plan = Plan.of(batch_size, shapes, downs, window, submanifold_levels, transposed)
    return _index(coords, shapes, plan, capacities, count, workspace, clear_on)


def pyramid_builder(
    spatial_shape: tuple[int, ...],
    batch_size: int,
    downs: Sequence[ConvGeometry],
    submanifold_kernel: tuple[int, ...],
    last_submanifold: bool,
    transposed: bool,
) -> Callable[[Tensor], Pyramid]:
    """See ops.kernel_map.pyramid_builder."""
    extension()
    shapes = level_shapes(spatial_shape, downs)
    submanifold_levels = (1 << (len(downs) + last_submanifold)) - 1
    window = _around_a_site(submanifold_kernel, (1,) * len(submanifold_kernel))
    plan = Plan.of(batch_size, shapes, downs, window, submanifold_levels, transposed)
    below, no_counts = len(shapes) - 1, [None] * len(shapes)
    places = plan.places()

    def build(coords: Tensor) -> Pyramid:
        coords = coords.contiguous()
        rest, fault = torch.ops.millisecond.index_sites(coords, *plan)
        if fault:
            raise _fault(coords, fault, shapes[0], batch_size)
        levels = _levels(places, shapes, [coords, *rest[:below]], no_counts, rest[below:])
        return Pyramid(levels, None, batch_size)

    return build


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
            sum((_window(down) for down in downs), ()),
            _window(submanifold),
            submanifold_levels,
            transposed,
        )

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


def _index(
    coords: Tensor,
    shapes: Sequence[tuple[int, ...]],
    plan: Plan,
    capacities: Sequence[int] | None = None,
    count: Tensor | None = None,
    workspace: Tensor | None = None,
    clear_on: torch.cuda.Stream | None = None,
) -> Pyramid:
    extension()
    coords = coords.contiguous()
    if capacities is None:
        return _exact(coords, shapes, plan, count, workspace)
    given = workspace is not None
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
    shapes: Sequence[tuple[int, ...]],
    plan: Plan,
    count: Tensor | None,
    workspace: Tensor | None,
) -> Pyramid:
    millisecond = torch.ops.millisecond
    given = workspace is not None
    if workspace is None:
        workspace = new_workspace(plan.batch_size, shapes, coords.device)
    *sizes, _, fault = millisecond.index_count(
        coords, count, workspace, plan.batch_size, plan.shapes, plan.steps
    ).tolist()  # sync: exact sizes, for BatchNorm and autograd
    try:
        if fault:
            raise _fault(coords, fault, shapes[0], plan.batch_size)
        coords = coords[: sizes[0]]
        rest = millisecond.index_exact(coords, workspace, *plan, sizes)
    finally:
        if given:
            millisecond.index_clear(workspace, plan.batch_size, plan.shapes)
    below = len(shapes) - 1
    no_counts = [None] * len(shapes)
    levels = _levels(plan.places(), shapes, [coords, *rest[:below]], no_counts, rest[below:])
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
        submanifold = None if same is None else KernelMap(same, same.reversed())
        down_map = None if down is None else KernelMap(down, up)
        levels.append(Level(coords[level], counts[level], shapes[level], submanifold, down_map))
    return tuple(levels)


def _fault(coords: Tensor, fault: int, shape: tuple[int, ...], batch_size: int) -> ValueError:
    """The reference's error for the first wrong row, which the kernel has found."""
    row = len(coords) - fault
    try:
        check_coords(coords[: row + 1], shape, batch_size)
    except ValueError as error:
        return error
    return ValueError(f"coords: row {row} is wrong: {coords[row].tolist()}")


def _around_a_site(kernel_size: tuple[int, ...], dilation: tuple[int, ...]) -> ConvGeometry:
    centre = tuple(k // 2 * d for k, d in zip(kernel_size, dilation, strict=True))
    return ConvGeometry(kernel_size, (1,) * len(kernel_size), centre, dilation)


def _window(geometry: ConvGeometry) -> tuple[int, ...]:
    pairs = zip(geometry, (1, 1, 0, 1), strict=True)
    return sum((three_axes(numbers, filling) for numbers, filling in pairs), ())


@fake("index_bounded")
def _index_bounded(coords, count, workspace, *arguments) -> list[Tensor]:
    *plan, capacities, _ = arguments
    counts = coords.new_empty(len(capacities) + 2)
    levels = [coords.new_empty(rows, coords.shape[1]) for rows in capacities]
    return [counts, *levels, *_empty_tables(coords, Plan(*plan), capacities)]


@fake("index_count")
def _index_count(coords, count, workspace, batch_size, shapes, steps) -> Tensor:
    return coords.new_empty(len(shapes) // 3 + 2)


@fake("index_exact")
def _index_exact(coords, workspace, *arguments) -> list[Tensor]:
    *plan, sizes = arguments
    levels = [coords.new_empty(rows, coords.shape[1]) for rows in sizes[1:]]
    return [*levels, *_empty_tables(coords, Plan(*plan), sizes)]


@fake("index_sites")
def _index_sites(coords, *arguments) -> tuple[list[Tensor], int]:
    plan, unknown = Plan(*arguments), torch.library.get_ctx().new_dynamic_size
    sizes = [coords.shape[0], *(unknown() for _ in range(len(plan.shapes) // 3 - 1))]
    levels = [coords.new_empty(rows, coords.shape[1]) for rows in sizes[1:]]
    return [*levels, *_empty_tables(coords, plan, sizes)], 0


@fake("index_clear")
def _index_clear(workspace, batch_size, shapes) -> None:
    return None


def _empty_tables(coords: Tensor, plan: Plan, sizes: Sequence[int]) -> list[Tensor]:
    tensors: list[Tensor] = []
    plan.tables(lambda volume, rows: tensors.append(coords.new_empty(volume, sizes[rows])))
    return tensors
