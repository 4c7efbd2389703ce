"""Neighbours of points: within a radius (ball query), and the three nearest ones."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from ops.cuda import point_neighbours as cuda
from ops.dispatch import on_kernels
from ops.reference import point_neighbours as reference


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

    Squared distances are (dx * dx + dy * dy) + dz * dz in float32, each operation rounded, and so
    is radius * radius: a CPU and a GPU find the same rows. Values must be finite; only on the CPU
    are they looked at: on a GPU the host would have to wait for them.
    """
    _check_clouds(points, centres, "centres")
    if not (math.isfinite(radius) and radius > 0):
        raise ValueError(f"radius: expected a number of metres above 0, got {radius}")
    if samples < 1:
        raise ValueError(f"samples: expected at least 1, got {samples}")
    backend = cuda if on_kernels(points) else reference
    return backend.ball_query(points, centres, radius, samples)


@torch.no_grad()
def three_nearest(
    points: Tensor,  # [B, P, 3] float32, metres
    queries: Tensor,  # [B, M, 3] float32, metres
) -> Nearest:
    """The three nearest points of each query; of equally near points the one of the lowest row.

    Squared distances are rounded as those of `ball_query`, and values are looked at in the same
    way. There is no gradient.
    """
    _check_clouds(points, queries, "queries")
    backend = cuda if on_kernels(points) else reference
    return Nearest(*backend.three_nearest(points, queries))


def _check_clouds(points: Tensor, others: Tensor, name: str) -> None:
    """ValueError unless both are clouds of one batch on one device; on the CPU also for values."""
    clouds = {"points": points, name: others}
    for of, cloud in clouds.items():
        if cloud.ndim != 3 or cloud.shape[2] != 3 or cloud.dtype != torch.float32:
            raise ValueError(
                f"{of}: expected [B, P, 3] float32, got {list(cloud.shape)} {cloud.dtype}"
            )
    if len(points) != len(others):
        raise ValueError(f"{name}: {len(others)} clouds, points has {len(points)}")
    if points.device != others.device:
        raise ValueError(f"{name}: on {others.device}, points on {points.device}")
    for of, cloud in clouds.items():
        if not cloud.is_cuda and not cloud.isfinite().all():
            place = (~cloud.isfinite().all(2)).nonzero()[0].tolist()
            raise ValueError(
                f"{of}{place} is {cloud[tuple(place)].tolist()}: every value must be finite"
            )
