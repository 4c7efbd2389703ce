"""Furthest point sampling: points that cover a cloud evenly."""

from __future__ import annotations

import torch
from torch import Tensor

from ops.cuda import furthest_point_sampling as cuda
from ops.dispatch import on_kernels
from ops.reference import furthest_point_sampling as reference


@torch.no_grad()
def furthest_point_sampling(
    points: Tensor,  # [B, P, 3] float32, metres
    samples: int,
    start: int | Tensor = 0,  # row of the first choice, or [B] int64, one per cloud
) -> Tensor:
    """Rows [B, samples] int64 of points, in the order of choice; Eldar et al., 1997; PointNet++.

    Every choice is the point whose nearest choice so far is furthest away; of equally far points
    the one of the lowest row. Squared distances are (dx * dx + dy * dy) + dz * dz in float32, each
    operation rounded, so a CPU and a GPU choose the same rows. A cloud of fewer different points
    than samples repeats row 0 at the end. There is no gradient.

    Points must be finite; only on the CPU are they looked at, and are the values of a `start`
    tensor: on a GPU the host would have to wait for them.
    """
    if points.ndim != 3 or points.shape[2] != 3 or points.dtype != torch.float32:
        raise ValueError(
            f"points: expected [B, P, 3] float32, got {list(points.shape)} {points.dtype}"
        )
    count = points.shape[1]
    if not 1 <= samples <= count:
        raise ValueError(f"samples: expected 1 to {count}, the points of a cloud, got {samples}")
    start = _starts(start, points)
    if not points.is_cuda:
        _check_values(points, start)
    backend = cuda if on_kernels(points) else reference
    return backend.furthest_point_sampling(points, samples, start)


def _starts(start: int | Tensor, points: Tensor) -> Tensor:
    """[B] int64 on the device of the points."""
    batch, count, _ = points.shape
    if not isinstance(start, Tensor):
        if not 0 <= start < count:
            raise ValueError(f"start: expected a row from 0 to {count - 1}, got {start}")
        return torch.full((batch,), start, dtype=torch.int64, device=points.device)
    if start.shape != (batch,) or start.dtype != torch.int64:
        raise ValueError(f"start: expected [{batch}] int64, got {list(start.shape)} {start.dtype}")
    if start.device != points.device:
        raise ValueError(f"start: on {start.device}, points on {points.device}")
    return start


def _check_values(points: Tensor, start: Tensor) -> None:
    finite = points.isfinite().all(2)
    if not finite.all():
        cloud, row = (~finite).nonzero()[0].tolist()
        raise ValueError(
            f"points[{cloud}, {row}] is {points[cloud, row].tolist()}: every value must be finite"
        )
    last = points.shape[1] - 1
    if len(start) and not 0 <= int(start.min()) <= int(start.max()) <= last:
        raise ValueError(f"start: expected rows from 0 to {last}, got {start.tolist()}")
