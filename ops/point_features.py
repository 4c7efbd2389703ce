"""Features of points at their neighbours: grouped, or interpolated between the nearest ones."""

from __future__ import annotations

import torch
from torch import Tensor

from ops.cuda import point_features as cuda
from ops.dispatch import on_kernels
from ops.reference import point_features as reference

SMALLEST = 1e-10  # square metres: a query may lie on a point


def group_points(
    features: Tensor,  # [B, P, C] float32, float16, bfloat16 or float64
    rows: Tensor,  # [B, M, S] int64, of features; -1: none
) -> Tensor:  # [B, M, S, C]
    """The features of each group of points, e.g. of those that `ball_query` found.

    Where there is no point they are zero. In the gradient the rows of a point are added up in
    their order in float32, so it is deterministic. Rows are looked at on the CPU alone; on a GPU
    a row outside of its cloud counts as none.
    """
    _check_rows(features, rows)
    backend = cuda if on_kernels(features) else reference
    return backend.group_points(features, rows)


def interpolate(
    features: Tensor,  # [B, P, C] float32, float16, bfloat16 or float64
    rows: Tensor,  # [B, M, K] int64, of features; -1: none
    weights: Tensor,  # [B, M, K] float32, or float64 as the features
) -> Tensor:  # [B, M, C]
    """Weighted sums of features, e.g. of the three nearest points: feature propagation, PointNet++.

    The products are added up in their order in float32; -1 adds nothing. The gradient is as that
    of `group_points`; weights have none. Rows are looked at as in `group_points`.
    """
    _check_rows(features, rows)
    double = features.dtype == torch.float64
    if weights.shape != rows.shape or weights.dtype != (
        features.dtype if double else torch.float32
    ):
        raise ValueError(
            f"weights: expected {list(rows.shape)} float{64 if double else 32}, "
            f"got {list(weights.shape)} {weights.dtype}"
        )
    if weights.device != features.device:
        raise ValueError(f"weights: on {weights.device}, features on {features.device}")
    if weights.requires_grad:
        raise ValueError("weights: have no gradient, but require one; detach() them")
    backend = cuda if on_kernels(features) else reference
    return backend.interpolate(features, rows, weights)


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
    if features.ndim != 3 or not features.is_floating_point():
        raise ValueError(
            f"features: expected [B, P, C] of floats, got {list(features.shape)} {features.dtype}"
        )
    if rows.ndim != 3 or len(rows) != len(features) or rows.dtype != torch.int64:
        raise ValueError(
            f"rows: expected [{len(features)}, M, S] int64, got {list(rows.shape)} {rows.dtype}"
        )
    if rows.device != features.device:
        raise ValueError(f"rows: on {rows.device}, features on {features.device}")
    count = features.shape[1]
    if not rows.is_cuda and rows.numel() and not -1 <= int(rows.min()) <= int(rows.max()) < count:
        wrong = rows[(rows < -1) | (rows >= count)][0]
        raise ValueError(f"rows: expected -1 to {count - 1}, points of a cloud, got {wrong}")
