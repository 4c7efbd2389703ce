"""The index of a network on the CUDA kernels: bitmaps with ranks, see csrc/index/bitmap.cuh.

Everything here has three axes: shapes and windows are filled up with axes of size 1.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ops.cuda.library import extension
from ops.reference.kernel_map import check_coords

MAX_WORDS = 1 << 28  # 1 GiB: a batch of 32 KITTI grids takes half of it
FAULT = 1 << 30  # in overflow: the coords are not sorted, unique and inside the grid


class Plan(NamedTuple):
    """What to index: levels, the steps between them, and which of them get submanifold tables."""

    spatial_shape: tuple[int, ...]  # of level 0, as the caller has it
    batch_size: int
    shapes: tuple[int, ...]  # (z, y, x) of each level
    steps: tuple[int, ...]  # kernel size, stride, padding, dilation (z, y, x) of each step
    submanifold: tuple[int, ...]  # the same for the submanifold tables
    submanifold_levels: int  # bit l set: level l gets one
    transposed: bool  # tables from a step's inputs to its outputs as well

    @classmethod
    def of(
        cls,
        shapes: Sequence[tuple[int, ...]],
        batch_size: int,
        steps: Sequence[Sequence[tuple[int, ...]]],  # ConvGeometry
        submanifold: tuple[tuple[int, ...], tuple[int, ...]],  # kernel size, dilation
        submanifold_levels: int,
        transposed: bool,
    ) -> Plan:
        kernel, dilation = (_axes(numbers, 1) for numbers in submanifold)
        centre = tuple(k // 2 * d for k, d in zip(kernel, dilation, strict=True))
        return cls(
            tuple(shapes[0]),
            batch_size,
            sum((_axes(shape, 1) for shape in shapes), ()),
            sum((_window(step) for step in steps), ()),
            (*kernel, 1, 1, 1, *centre, *dilation),
            submanifold_levels,
            transposed,
        )

    @property
    def levels(self) -> int:
        return len(self.shapes) // 3

    def fits(self) -> bool:
        """Whether there is a bitmap of the levels, and a GPU's memory holds it."""
        return workspace_words(self.batch_size, self.shapes) <= MAX_WORDS


class Index(NamedTuple):
    """Levels and tables; the tables in the order in which their reader takes them."""

    coords: list[Tensor]
    counts: Tensor | None  # [levels + 2] int32: of the levels, overflow, fault; None: exact sizes
    tables: list[Tensor]  # neighbours; of level l: submanifold, down to it, its transpose


def workspace_words(batch_size: int, shapes: Sequence[int]) -> int:
    """Elements of the workspace of a batch of levels (z, y, x, z, y, x, ...); 2^63 - 1 for levels
    that no bitmap holds."""
    return _workspace_words(operator.index(batch_size), shapes)  # one graph per batch size


@torch.compiler.assume_constant_result
def _workspace_words(batch_size: int, shapes: Sequence[int]) -> int:
    extension()
    return torch.ops.millisecond.index_workspace_words(batch_size, shapes)


def new_workspace(batch_size: int, shapes: Sequence[int], device: torch.device) -> Tensor:
    """Zeros that the operators mark and leave as zeros again."""
    words = workspace_words(batch_size, shapes)
    return torch.zeros(words, dtype=torch.int32, device=device)


def index(
    coords: Tensor,
    plan: Plan,
    capacities: Sequence[int] | None,
    count: Tensor | None,
    workspace: Tensor | None,
) -> Index:
    """Index `coords` [N, 1 + D]: with capacities nothing is read back to the host.

    Raises:
        ValueError: for coords that are not sorted, unique and inside of the grid; with capacities
            that is a bit of the overflow instead.
    """
    extension()
    millisecond = torch.ops.millisecond
    coords = coords.contiguous()
    given = workspace is not None
    if workspace is None:
        workspace = new_workspace(plan.batch_size, plan.shapes, coords.device)
    grids = plan.batch_size, plan.shapes
    windows = plan.steps, plan.submanifold, plan.submanifold_levels, plan.transposed
    if capacities is not None:
        counts, *rest = millisecond.index_bounded(
            coords, count, workspace, *grids, *windows, capacities
        )
        return Index(rest[: plan.levels], counts, rest[plan.levels :])
    *sizes, _, fault = millisecond.index_count(
        coords, count, workspace, *grids, plan.steps
    ).tolist()  # sync: exact sizes, for BatchNorm and autograd
    try:
        if fault:
            raise _fault(coords, fault, plan)
        coords = coords[: sizes[0]]
        rest = millisecond.index_exact(coords, workspace, *grids, *windows, sizes)
    finally:
        if given:
            millisecond.index_clear(workspace, *grids)
    return Index([coords, *rest[: plan.levels - 1]], None, rest[plan.levels - 1 :])


def _fault(coords: Tensor, fault: int, plan: Plan) -> ValueError:
    """The reference's error for the first wrong row, which the kernel has found."""
    row = len(coords) - fault
    try:
        check_coords(coords[: row + 1], plan.spatial_shape, plan.batch_size)
    except ValueError as error:
        return error
    return ValueError(f"coords: row {row} is wrong: {coords[row].tolist()}")


def _axes(numbers: Sequence[int], filling: int) -> tuple[int, ...]:
    return (filling,) * (3 - len(numbers)) + tuple(numbers)


def _window(step: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    kernel, stride, padding, dilation = step
    return (*_axes(kernel, 1), *_axes(stride, 1), *_axes(padding, 0), *_axes(dilation, 1))
