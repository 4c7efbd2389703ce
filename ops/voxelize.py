"""Voxelizing: the cells of a grid that hold points (voxels), each with the mean of its points: the
mean voxel feature encoder (VFE). Also voxels of all points, and pooling of the points' features
into them: dynamic voxelization and grid pooling.

Kernels are in csrc/index/voxelize.cu and csrc/points/features.cu. In plain torch it is one stable
sort of the points by the linear key of their cell.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from millisecond.ops.dispatch import on_kernels
from millisecond.ops.geometry import (
    check_cells,
    check_offsets,
    check_tensor,
    coords_of_keys,
    same_device,
    whole,
)
from millisecond.ops.kernel_map import fits, new_workspace
from millisecond.ops.library import fake

MOST_CELLS = 1 << 24  # on an axis: float32 counts exactly up to here
REDUCTIONS = "max", "mean"


@dataclass(frozen=True)
class VoxelGrid:
    """A box of the LiDAR frame cut into cells, metres.

    Raises ValueError for a box without volume, sizes that are not above 0, and more cells than can
    be counted.
    """

    point_range: tuple[float, ...]  # x, y, z of the lower corner, then of the upper one
    voxel_size: tuple[float, ...]  # x, y, z
    relative: bool = False  # features x and y are relative to the middle of their cell, in cells

    def __post_init__(self):
        point_range, voxel_size = self.point_range, self.voxel_size
        if len(point_range) != 6 or not all(map(math.isfinite, point_range)):
            raise ValueError(f"point_range: expected 6 finite numbers, got {point_range}")
        if len(voxel_size) != 3 or not all(0 < size < math.inf for size in voxel_size):
            raise ValueError(f"voxel_size: expected 3 finite numbers above 0, got {voxel_size}")
        for axis, low, high, size in zip(
            "xyz", point_range[:3], point_range[3:], voxel_size, strict=True
        ):
            if not low < high:
                raise ValueError(f"point_range: along {axis} {low:g} is not below {high:g}")
            if not 0.5 < (high - low) / size <= MOST_CELLS:
                raise ValueError(
                    f"voxel_size: {low:g} to {high:g} m along {axis} is {(high - low) / size:.3g} "
                    f"cells of {size:g} m; expected 1 to {MOST_CELLS}"
                )
        check_cells(1, [self.shape])

    @property
    def shape(self) -> tuple[int, int, int]:
        """(z, y, x) cells."""
        low, high = self.point_range[:3], self.point_range[3:]
        axes = zip(low, high, self.voxel_size, strict=True)
        x, y, z = [round((b - a) / size) for a, b, size in axes]
        return z, y, x

    @property
    def sparse_shape(self) -> tuple[int, int, int]:
        """(z + 1, y, x): the grid of SECOND's encoder, one empty layer on top."""
        z, y, x = self.shape
        return z + 1, y, x


class Voxels(NamedTuple):
    """The cells that hold points, rows sorted by (b, z, y, x)."""

    features: Tensor  # [N, C] mean of the kept points
    coords: Tensor  # [N, 4] int32
    # [1] int32: rows from here on hold nothing; None: all rows count. (Hides tuple.count.)
    count: Tensor | None  # type: ignore[assignment]
    dropped: Tensor  # [2] int64: points not finite, points lost to the cap on voxels
    batch_size: int


def voxelize(
    points: Tensor,  # [P, C] float32: x, y, z, then anything
    offsets: Tensor,  # [B + 1] int32
    grid: VoxelGrid,
    max_points: int = 5,
    max_voxels: int = 40000,
    capacity: int | None = None,
    workspace: Tensor | None = None,
) -> Voxels:
    """Mean of the first `max_points` points of each cell; frame b is
    points[offsets[b]:offsets[b + 1]].

    A cell is floor((p - lower) / size) in float32: points on a lower face are inside, on an upper
    one outside. A frame keeps at most `max_voxels` cells: the cells whose first points come first.
    Kept points are added up in their order in float32, then divided by their number. Points with a
    value that is not finite are dropped.

    With `capacity` there are that many rows and a count, and on CUDA nothing is read back to the
    host. Points of voxels beyond the capacity are dropped and counted as lost to the cap; points
    from offsets[B] on are left out. A
    `workspace` of `index_workspace(grid.shape, B, (), device)` saves zeroing one in every call; it
    is zero again when the call's kernels are done, so calls on one stream may share it.
    """
    _check_points(points, offsets, grid)
    for name, value in (("max_points", max_points), ("max_voxels", max_voxels)):
        whole(name, value, 1)
    whole("capacity", 1 if capacity is None else capacity, 1)
    batch_size = len(offsets) - 1
    if not (points.is_cuda and fits(batch_size, [grid.shape])):
        return voxelize_definition(points, offsets, grid, max_points, max_voxels, capacity)
    if workspace is None:
        workspace = new_workspace(batch_size, [grid.shape], points.device)
    rows = min(len(points), batch_size * max_voxels) if capacity is None else capacity
    features, coords, count, dropped = torch.ops.millisecond.voxelize(
        points.contiguous(),
        offsets.contiguous(),
        workspace,
        grid.point_range[:3],
        grid.voxel_size,
        grid.shape,
        max_points,
        max_voxels,
        rows,
        grid.relative,
    )
    if capacity is not None:
        return Voxels(features, coords, count, dropped, batch_size)
    # sync: exact sizes, and the offsets are checked on the way
    size, *starts = torch.cat([count, offsets]).tolist()
    _check_rise(starts, len(points))
    return Voxels(features[:size], coords[:size], None, dropped, batch_size)


def voxelize_definition(
    points: Tensor,
    offsets: Tensor,
    grid: VoxelGrid,
    max_points: int,
    max_voxels: int,
    capacity: int | None,
) -> Voxels:
    """`voxelize` in plain torch."""
    batch_size = len(offsets) - 1
    _check_rise(offsets.tolist(), len(points))  # sync: the definition is driven from the host
    finite = points.isfinite().all(dim=1)
    keys, ids = _cells_of_points(points, finite, offsets, grid)
    keys, order = keys.sort(stable=True)
    ids = ids[order]

    new = torch.ones_like(keys, dtype=torch.bool)
    new[1:] = keys[1:] != keys[:-1]
    start = new.nonzero().squeeze(1)
    length = torch.diff(start, append=start.new_tensor([len(keys)]))
    kept = _seen_first(ids[start], offsets, max_voxels)
    if capacity is not None:
        kept &= kept.cumsum(0) <= capacity
    dropped = torch.stack([(~finite).sum(), (length * ~kept).sum()])
    start, length = start[kept], length[kept].clamp_(max=max_points)

    features = points[ids[start]]
    for number in range(1, int(length.max()) if len(length) else 1):
        more = (length > number).nonzero().squeeze(1)
        features[more] += points[ids[start[more] + number]]
    features /= length[:, None]
    coords = coords_of_keys(keys[start], grid.shape)
    if grid.relative:
        lower, size = features.new_tensor([grid.point_range[:2], grid.voxel_size[:2]])
        middle = lower + (coords[:, [3, 2]] + 0.5) * size
        features[:, :2] = (features[:, :2] - middle) / size
    if capacity is None:
        return Voxels(features, coords, None, dropped, batch_size)
    count = offsets.new_tensor([len(coords)])
    spare = capacity - len(coords)
    features = torch.nn.functional.pad(features, (0, 0, 0, spare))
    coords = torch.nn.functional.pad(coords, (0, 0, 0, spare), value=-1)
    return Voxels(features, coords, count, dropped, batch_size)


def _cells_of_points(
    points: Tensor, finite: Tensor, offsets: Tensor, grid: VoxelGrid
) -> tuple[Tensor, Tensor]:
    """Linear keys over (b, z, y, x) and indices of the points inside the grid."""
    shape = grid.shape
    lower = points.new_tensor(grid.point_range[:3])
    size = points.new_tensor(grid.voxel_size)
    cell = ((points[:, :3] - lower) / size).floor()
    limit = points.new_tensor(shape[::-1])
    inside = finite & (cell >= 0).all(dim=1) & (cell < limit).all(dim=1)
    ids = inside.nonzero().squeeze(1)
    x, y, z = cell[ids].long().unbind(dim=1)
    frame = torch.searchsorted(offsets, ids, right=True) - 1
    return ((frame * shape[0] + z) * shape[1] + y) * shape[2] + x, ids


def _seen_first(first: Tensor, offsets: Tensor, max_voxels: int) -> Tensor:
    """Which voxels are among the first max_voxels of their frame; first [N]: their first points."""
    by_point, order = first.sort()
    rank = torch.arange(len(first), device=first.device)
    frame = torch.searchsorted(offsets, by_point, right=True)
    rank -= torch.searchsorted(by_point, offsets.long())[frame - 1]
    kept = torch.empty_like(first, dtype=torch.bool)
    kept[order] = rank < max_voxels
    return kept


def _check_points(points: Tensor, offsets: Tensor, grid: VoxelGrid) -> None:
    same_device(points=points, offsets=offsets)
    if points.dtype != torch.float32 or points.ndim != 2 or points.shape[1] < 3:
        raise ValueError(
            f"points: expected [P, 3 or more] float32, got {list(points.shape)} {points.dtype}"
        )
    check_offsets(offsets)
    check_cells(len(offsets) - 1, [grid.shape])


def _check_rise(offsets: list[int], points: int) -> None:
    """ValueError unless they rise from 0 to the number of points."""
    steps = pairwise(offsets)
    if offsets[0] != 0 or offsets[-1] != points or any(b < a for a, b in steps):
        raise ValueError(f"offsets: expected to rise from 0 to {points} points, got {offsets}")


@fake("voxelize")
def _fake_voxelize(
    points, offsets, workspace, lower, size, shape, max_points, max_voxels, rows, relative
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return (
        points.new_empty(rows, points.shape[1]),
        offsets.new_empty(rows, 4),
        offsets.new_empty(1),
        offsets.new_empty(2, dtype=torch.int64),
    )


# ---- pooling ------------------------------------------------------------------------------------


class PointVoxels(NamedTuple):
    """The voxel of each point, and the points of each voxel. Of P points E are inside the grid."""

    coords: Tensor  # [N, 4] int32: the cells that hold points, sorted by (b, z, y, x)
    voxels: Tensor  # [P] int64: row of coords for each point; -1: outside of the grid
    order: Tensor  # [E] int64: points by voxel; points of one voxel by row
    owners: Tensor  # [E] int32: the voxel of each of them, i.e. voxels[order]
    starts: Tensor  # [N + 1] int32: voxel n has order[starts[n]:starts[n + 1]]
    batch_size: int


@torch.no_grad()
def dynamic_voxelize(
    points: Tensor,  # [P, 3 or more] float32: x, y, z, then anything
    offsets: Tensor,  # [B + 1] int32
    grid: VoxelGrid,
) -> PointVoxels:
    """The voxels of all points, without a limit on their number: Zhou et al., MVF, 2019.

    The cells are the same as in `voxelize`. A point outside of the grid, or with a value that is
    not finite, does not belong to a voxel.
    `group_points(pooled[None], found.voxels[None, :, None])` takes the result of a pooling back to
    the points. Runs in plain torch on either device: one stable sort.
    """
    _check_points(points, offsets, grid)
    _check_rise(offsets.tolist(), len(points))  # sync: so is the number of voxels
    finite = points.isfinite().all(dim=1)
    keys, inside = _cells_of_points(points, finite, offsets, grid)
    keys, place = keys.sort(stable=True)
    order = inside[place]
    sites, owners, counts = keys.unique_consecutive(return_inverse=True, return_counts=True)
    voxels = torch.full((len(points),), -1, dtype=torch.int64, device=points.device)
    voxels[order] = owners
    starts = torch.nn.functional.pad(counts.cumsum(0), (1, 0))
    coords = coords_of_keys(sites, grid.shape)
    return PointVoxels(coords, voxels, order, owners.int(), starts.int(), len(offsets) - 1)


def voxel_pool(
    features: Tensor,  # [P, C] float32, float16, bfloat16 or float64
    voxels: PointVoxels,  # of P points
    reduction: str,  # "max" or "mean"
) -> Tensor:  # [N, C], rows as voxels.coords
    """Largest or mean feature of the points of each voxel, by channel; grid pooling of PTv2.

    Sums are float32, in a fixed order. The gradient of the largest feature goes to its point, of
    equal ones to the point with the lowest row. NaN counts as larger than everything.
    """
    check_tensor("features", features, ("P", "C"), "of floats")
    if len(features) != len(voxels.voxels):
        raise ValueError(f"features: {len(features)} rows for {len(voxels.voxels)} points")
    same_device(voxels=voxels.voxels, features=features)
    if reduction not in REDUCTIONS:
        raise ValueError(f"reduction: expected {' or '.join(REDUCTIONS)}, got {reduction!r}")
    if not on_kernels(features):
        return voxel_pool_definition(features, voxels, reduction)
    pool = MeanPool if reduction == "mean" else MaxPool
    return pool.apply(features, voxels)


def voxel_pool_definition(features: Tensor, voxels: PointVoxels, reduction: str) -> Tensor:
    """`voxel_pool` in plain torch."""
    inside, owners = features[voxels.order], voxels.owners.long()
    shape = len(voxels.coords), features.shape[1]
    if reduction == "mean":
        wide = inside if inside.dtype == torch.float64 else inside.float()
        total = wide.new_zeros(shape).index_add(0, owners, wide)
        return (total / voxels.starts.diff()[:, None]).to(features.dtype)
    return inside.gather(0, _largest(inside.detach(), owners, shape))


def _largest(inside: Tensor, owners: Tensor, shape: tuple[int, int]) -> Tensor:
    """[N, C] int64: which row of inside [E, C] is the largest of each voxel, of equal ones the
    first."""
    targets = owners[:, None].expand_as(inside)
    best = inside.new_full(shape, -torch.inf).scatter_reduce(0, targets, inside, "amax")[owners]
    found = (inside == best) | inside.isnan()
    rows = torch.arange(len(inside), device=inside.device)[:, None].expand_as(inside)
    rows = torch.where(found, rows, len(inside))
    return rows.new_full(shape, len(inside)).scatter_reduce(0, targets, rows, "amin")


class MeanPool(torch.autograd.Function):
    @staticmethod
    def forward(ctx, features, voxels):
        ctx.voxels = voxels
        table = voxels.order, voxels.owners, voxels.starts
        return torch.ops.millisecond.segment_sum(features.contiguous(), *table, None, 1, True)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        voxels = ctx.voxels
        each = (grad.float() / voxels.starts.diff()[:, None]).to(grad.dtype).contiguous()
        rows = voxels.voxels[None, :, None]
        return torch.ops.millisecond.group_points(each[None], rows)[0, :, 0], None


class MaxPool(torch.autograd.Function):
    @staticmethod
    def forward(ctx, features, voxels):
        table = voxels.order, voxels.owners, voxels.starts
        out, source = torch.ops.millisecond.segment_max(features.contiguous(), *table)
        ctx.save_for_backward(source)
        ctx.shape = features.shape
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        (source,) = ctx.saved_tensors
        return grad.new_zeros(ctx.shape).scatter_(0, source, grad), None  # no place twice


@fake("segment_max")
def _fake_segment_max(values, order, owners, starts) -> tuple[Tensor, Tensor]:
    shape = starts.shape[0] - 1, values.shape[1]
    return values.new_empty(shape), order.new_empty(shape)
