"""Points and their neighbours (PointNet++, Qi et al. 2017): furthest point sampling, ball query,
the three nearest points, and the features of neighbours, grouped or interpolated.

Kernels are in csrc/points. The gradient of a point's features is a sum over all places that the
point was copied to. The kernels sort the places by the point. This fixes the order of the sums,
without atomics.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from millisecond.ops.dispatch import on_kernels
from millisecond.ops.geometry import check_tensor, same_device, whole
from millisecond.ops.library import fake

PAIRS = 1 << 18  # distances at a time: they fit in the caches of a CPU
SMALLEST = 1e-10  # square metres: a query may lie on a point

# ---- sampling -----------------------------------------------------------------------------------


@torch.no_grad()
def furthest_point_sampling(
    points: Tensor,  # [B, P, 3] float32, metres
    samples: int,
    start: int | Tensor = 0,  # row of the first choice, or [B] int64, one per cloud
) -> Tensor:
    """Rows [B, samples] int64 of points, in the order of choice; Eldar et al., 1997; PointNet++.

    Every choice is the point whose nearest choice so far is furthest away; of equally far points
    the point with the lowest row. Squared distances are (dx * dx + dy * dy) + dz * dz in float32,
    each operation rounded, so a CPU and a GPU choose the same rows. A cloud of fewer different
    points than samples repeats row 0 at the end. There is no gradient.

    Points must be finite. Points, and the values of a `start` tensor, are checked only on the CPU:
    on a GPU the host would have to wait for them.
    """
    _check_clouds(points)
    count = points.shape[1]
    if not 1 <= operator.index(samples) <= count:
        raise ValueError(f"samples: expected 1 to {count}, the points of a cloud, got {samples}")
    start = _starts(start, points)
    if not on_kernels(points):
        return furthest_point_sampling_definition(points, samples, start)
    return torch.ops.millisecond.furthest_point_sampling(
        points.contiguous(), start.contiguous(), samples
    )


def furthest_point_sampling_definition(points: Tensor, samples: int, start: Tensor) -> Tensor:
    """`furthest_point_sampling` in plain torch."""
    batch, count, _ = points.shape
    cloud = torch.arange(batch, device=points.device)
    chosen = start.new_empty(batch, samples)
    nearest = points.new_full((batch, count), torch.inf)  # squared distance to the nearest choice
    last = start
    for step in range(samples):
        chosen[:, step] = last
        x, y, z = (points - points[cloud, last, None]).square().unbind(2)
        nearest = torch.minimum(nearest, x + y + z)
        last = nearest.argmax(1)  # of equal ones the first
    return chosen


@fake("furthest_point_sampling")
def _fake_furthest_point_sampling(points, start, samples) -> Tensor:
    return start.new_empty(points.shape[0], samples)


def _starts(start: int | Tensor, points: Tensor) -> Tensor:
    """[B] int64 on the device of the points."""
    batch, count, _ = points.shape
    if not isinstance(start, Tensor):
        if not 0 <= operator.index(start) < count:
            raise ValueError(f"start: expected a row from 0 to {count - 1}, got {start}")
        return torch.full((batch,), start, dtype=torch.int64, device=points.device)
    check_tensor("start", start, (batch,), torch.int64)
    same_device(points=points, start=start)
    inside = start.is_cuda or not batch or 0 <= int(start.min()) <= int(start.max()) < count
    if not inside:
        raise ValueError(f"start: expected rows from 0 to {count - 1}, got {start.tolist()}")
    return start


# ---- neighbours ---------------------------------------------------------------------------------


class Nearest(NamedTuple):
    """The three nearest points of each query, the nearest first."""

    rows: Tensor  # [B, M, 3] int64, of points; -1: the cloud has fewer than three points
    squared_distances: Tensor  # [B, M, 3] float32, square metres; infinite where the row is -1


@torch.no_grad()
def ball_query(
    points: Tensor,  # [B, P, 3] float32, metres
    centres: Tensor,  # [B, M, 3] float32, metres
    radius: float,  # metres
    samples: int,
) -> Tensor:
    """Rows [B, M, samples] int64 of the points in the ball around each centre; PointNet++.

    These are the first `samples` points, in the order of their rows, whose squared distance is
    below radius * radius. A ball with fewer points repeats its first one at the end; a ball without
    any has -1 everywhere. There is no gradient.

    Squared distances are (dx * dx + dy * dy) + dz * dz in float32, each operation rounded; radius *
    radius is rounded, too. So a CPU and a GPU find the same rows. Values must be finite. They are
    checked only on the CPU: on a GPU the host would have to wait for them.
    """
    _check_clouds(points, centres=centres)
    if not (math.isfinite(radius) and radius > 0):
        raise ValueError(f"radius: expected a number of metres above 0, got {radius}")
    whole("samples", samples, 1)
    if not on_kernels(points):
        return ball_query_definition(points, centres, radius, samples)
    return torch.ops.millisecond.ball_query(
        points.contiguous(), centres.contiguous(), radius, samples
    )


def ball_query_definition(points: Tensor, centres: Tensor, radius: float, samples: int) -> Tensor:
    """`ball_query` in plain torch."""
    count = points.shape[1]
    none = count  # behind every row
    every = torch.arange(count, device=points.device)
    limit = points.new_tensor(radius).square()
    rows = every.new_full((*centres.shape[:2], samples), none)
    for part, distances in _squared_distances(points, centres):
        inside = torch.where(distances < limit, every, none)
        first = inside.topk(min(samples, count), largest=False).values
        rows[:, part, : first.shape[2]] = first
    rows = torch.where(rows == none, rows[..., :1], rows)
    return torch.where(rows == none, -1, rows)


@fake("ball_query")
def _fake_ball_query(points, centres, radius, samples) -> Tensor:
    return centres.new_empty((*centres.shape[:2], samples), dtype=torch.int64)


@torch.no_grad()
def three_nearest(
    points: Tensor,  # [B, P, 3] float32, metres
    queries: Tensor,  # [B, M, 3] float32, metres
) -> Nearest:
    """The three nearest points of each query; of equally near points the point with the lowest row.

    Squared distances are rounded, and values are checked, as in `ball_query`. There is no gradient.
    """
    _check_clouds(points, queries=queries)
    if not on_kernels(points):
        return three_nearest_definition(points, queries)
    return Nearest(*torch.ops.millisecond.three_nearest(points.contiguous(), queries.contiguous()))


def three_nearest_definition(points: Tensor, queries: Tensor) -> Nearest:
    """`three_nearest` in plain torch."""
    count = points.shape[1]
    every = torch.arange(count, device=points.device)
    rows = every.new_full((*queries.shape[:2], 3), -1)
    nearest = queries.new_full(rows.shape, torch.inf)
    for part, distances in _squared_distances(points, queries):
        # floats that are not negative have the order of their bits; ties go by the row
        keys = distances.view(torch.int32).long() << 32 | every
        first = keys.topk(min(3, count), largest=False).values
        rows[:, part, : first.shape[2]] = first & 0xFFFFFFFF
        nearest[:, part, : first.shape[2]] = (first >> 32).int().view(torch.float32)
    return Nearest(rows, nearest)


def _squared_distances(points: Tensor, others: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """Slices of the others, and their squared distances [B, slice, P] from all points."""
    batch, count, _ = points.shape
    step = max(1, PAIRS // max(1, batch * count))
    for start in range(0, others.shape[1], step):
        part = slice(start, start + step)
        x, y, z = ((points[:, None, :, i] - others[:, part, None, i]).square() for i in range(3))
        yield part, x + y + z


@fake("three_nearest")
def _fake_three_nearest(points, queries) -> tuple[Tensor, Tensor]:
    shape = queries.shape
    return queries.new_empty(shape, dtype=torch.int64), queries.new_empty(shape)


def _check_clouds(points: Tensor, **others: Tensor) -> None:
    """ValueError unless all are clouds of one batch on one device; on the CPU also for values."""
    clouds = {"points": points, **others}
    for of, cloud in clouds.items():
        check_tensor(of, cloud, ("B", "P", 3), torch.float32)
    for name, cloud in others.items():
        if len(points) != len(cloud):
            raise ValueError(f"{name}: {len(cloud)} clouds, points has {len(points)}")
    same_device(**clouds)
    for of, cloud in clouds.items():
        if not cloud.is_cuda and not cloud.isfinite().all():
            place = (~cloud.isfinite().all(2)).nonzero()[0].tolist()
            raise ValueError(
                f"{of}{place} is {cloud[tuple(place)].tolist()}: every value must be finite"
            )


# ---- features -----------------------------------------------------------------------------------


def group_points(
    features: Tensor,  # [B, P, C] float32, float16, bfloat16 or float64
    rows: Tensor,  # [B, M, S] int64, of features; -1: none
) -> Tensor:  # [B, M, S, C]
    """The features of each group of points, e.g. of the groups of `ball_query`.

    Where there is no point they are zero. The gradient adds up the rows of a point in their order
    in float32, so it is deterministic. Rows are checked only on the CPU; on a GPU a row outside of
    its cloud counts as -1.
    """
    _check_rows(features, rows)
    if not on_kernels(features):
        return group_points_definition(features, rows)
    return GroupPoints.apply(features, rows.contiguous())


def group_points_definition(features: Tensor, rows: Tensor) -> Tensor:
    """`group_points` in plain torch."""
    return _taken(_table(features), rows).to(features.dtype)


class GroupPoints(torch.autograd.Function):
    @staticmethod
    def forward(ctx, features, rows):
        ctx.save_for_backward(rows)
        ctx.shape = features.shape
        return torch.ops.millisecond.group_points(features.contiguous(), rows)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        (rows,) = ctx.saved_tensors
        return _summed_by_point(grad, rows, None, ctx.shape), None


@fake("group_points")
def _fake_group_points(features, rows) -> Tensor:
    return features.new_empty(*rows.shape, features.shape[2])


def interpolate(
    features: Tensor,  # [B, P, C] float32, float16, bfloat16 or float64
    rows: Tensor,  # [B, M, K] int64, of features; -1: none
    weights: Tensor,  # [B, M, K] float32, or float64 as the features
) -> Tensor:  # [B, M, C]
    """Weighted sums of features, e.g. of the three nearest points: feature propagation, PointNet++.

    The products are added up in their order in float32; -1 adds nothing. The features' gradient is
    computed as in `group_points`; weights have no gradient. Rows are checked as in `group_points`.
    """
    _check_rows(features, rows)
    double = features.dtype == torch.float64
    check_tensor("weights", weights, rows.shape, features.dtype if double else torch.float32)
    same_device(features=features, weights=weights)
    if weights.requires_grad:
        raise ValueError("weights: have no gradient, but require one; detach() them")
    if not on_kernels(features):
        return interpolate_definition(features, rows, weights)
    return Interpolate.apply(features, rows.contiguous(), weights.contiguous())


def interpolate_definition(features: Tensor, rows: Tensor, weights: Tensor) -> Tensor:
    """`interpolate` in plain torch."""
    batch, queries, neighbours = rows.shape
    table = _table(features)  # once, so that the gradient is rounded once
    total = weights.new_zeros(batch, queries, features.shape[2])
    for k in range(neighbours):
        total = total + weights[..., k, None] * _taken(table, rows[..., k])
    return total.to(features.dtype)


def _table(features: Tensor) -> Tensor:
    """[B, 1 + P, C] float32 or float64: a zero row, which stands for none, then the points."""
    wide = features if features.dtype == torch.float64 else features.float()
    return torch.nn.functional.pad(wide, (0, 0, 1, 0))


def _taken(table: Tensor, rows: Tensor) -> Tensor:
    """[*rows.shape, C], zero where the row is none."""
    batch, size, channels = table.shape
    exists = (rows >= 0) & (rows < size - 1)
    first = torch.arange(batch, device=rows.device).view(-1, *[1] * (rows.ndim - 1)) * size
    places = torch.where(exists, rows + 1, 0) + first
    return table.flatten(0, 1).index_select(0, places.flatten()).view(*rows.shape, channels)


class Interpolate(torch.autograd.Function):
    @staticmethod
    def forward(ctx, features, rows, weights):
        ctx.save_for_backward(rows, weights)
        ctx.shape = features.shape
        return torch.ops.millisecond.interpolate(features.contiguous(), rows, weights)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        rows, weights = ctx.saved_tensors
        return _summed_by_point(grad, rows, weights, ctx.shape), None, None


@fake("interpolate")
def _fake_interpolate(features, rows, weights) -> Tensor:
    return features.new_empty(*rows.shape[:2], features.shape[2])


def inverse_distance_weights(
    squared_distances: Tensor,  # [B, M, K], square metres, as `three_nearest` gives them
) -> Tensor:  # [B, M, K]
    """1 / d^2 divided by the sum of a query's weights: Qi et al., PointNet++, 2017, equation 2.

    A query on a point takes nearly all from this point. Where a distance is infinite, i.e. there is
    no point, the weight is 0. Implementations that weigh by 1 / d get their weights from
    `inverse_distance_weights(squared_distances.sqrt())`.
    """
    inverse = squared_distances.clamp(min=SMALLEST).reciprocal()
    return inverse / inverse.sum(-1, keepdim=True).clamp(min=torch.finfo(inverse.dtype).tiny)


def _check_rows(features: Tensor, rows: Tensor) -> None:
    check_tensor("features", features, ("B", "P", "C"), "of floats")
    check_tensor("rows", rows, (len(features), "M", "S"), torch.int64)
    same_device(features=features, rows=rows)
    count = features.shape[1]
    if not rows.is_cuda and rows.numel() and not -1 <= int(rows.min()) <= int(rows.max()) < count:
        wrong = rows[(rows < -1) | (rows >= count)][0]
        raise ValueError(f"rows: expected -1 to {count - 1}, points of a cloud, got {wrong}")


def _summed_by_point(
    grad: Tensor,  # [B, M, S, C], or with weights [B, M, C]
    rows: Tensor,  # [B, M, S]
    weights: Tensor | None,  # [B, M, S]
    shape: torch.Size,  # B, P, C
) -> Tensor:
    """[B, P, C]: the sum, weighted if there are weights, of the gradients of each point."""
    batch, count, channels = shape
    first = torch.arange(batch, device=rows.device)[:, None, None] * count
    exists = (rows >= 0) & (rows < count)
    none = batch * count
    # a radix sort takes half as long for half the bits
    keys = torch.where(exists, rows + first, none).to(
        torch.int16 if none < 1 << 15 else torch.int32
    )
    keys, order = keys.flatten().sort(stable=True)
    owners = keys.int()
    limits = torch.arange(none + 1, dtype=torch.int32, device=rows.device)
    starts = torch.searchsorted(owners, limits, out_int32=True)
    values = grad.reshape(-1, channels).contiguous()
    share = rows.shape[2] if weights is not None else 1  # entries per row of the gradient
    flat = None if weights is None else weights.flatten()
    total = torch.ops.millisecond.segment_sum(values, order, owners, starts, flat, share, False)
    return total.view(shape)


@fake("segment_sum")
def _fake_segment_sum(values, order, owners, starts, weights, share, mean) -> Tensor:
    return values.new_empty(starts.shape[0] - 1, values.shape[1])
