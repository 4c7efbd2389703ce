"""Neighbours of points on the CUDA kernels, see csrc/points/ball_query.cu and three_nearest.cu."""

from __future__ import annotations

import torch
from torch import Tensor

from ops.cuda.fakes import fake
from ops.cuda.library import extension


def ball_query(points: Tensor, centres: Tensor, radius: float, samples: int) -> Tensor:
    """See ops.ball_query."""
    extension()
    return torch.ops.millisecond.ball_query(
        points.contiguous(), centres.contiguous(), radius, samples
    )


def three_nearest(points: Tensor, queries: Tensor) -> tuple[Tensor, Tensor]:
    """See ops.three_nearest."""
    extension()
    return torch.ops.millisecond.three_nearest(points.contiguous(), queries.contiguous())


@fake("ball_query")
def _fake_ball_query(points, centres, radius, samples) -> Tensor:
    return centres.new_empty((*centres.shape[:2], samples), dtype=torch.int64)


@fake("three_nearest")
def _fake_three_nearest(points, queries) -> tuple[Tensor, Tensor]:
    shape = queries.shape
    return queries.new_empty(shape, dtype=torch.int64), queries.new_empty(shape)
