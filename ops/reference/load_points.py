"""Points on the host with intensities clamped, in plain torch."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor

SCALES = (1.0, 255.0, 65535.0)  # of intensities, as sensors give them
FEW = 0.01  # share of intensities that may be wild


def load_points(
    points: Tensor, offsets: Tensor, workspace: Tensor, staged: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """See ops.load_points.load_points; the workspace is not needed here, and nothing waits."""
    points = points.clone()
    for first, last in pairwise(offsets.tolist()):
        points[first:last] = clamp_intensity(points[first:last])
    late = offsets.new_zeros(1)
    if staged is not None:
        late[0] = staged[0] < offsets[-1]
    return points, offsets.clone(), late


def stage_points(clouds: Sequence[Tensor], points: Tensor, staged: Tensor) -> None:
    """See ops.load_points.stage_points."""
    for cloud in clouds:
        first = int(staged[0])
        points[first : first + len(cloud)] = cloud
        staged[0] += len(cloud)


def clamp_intensity(points: Tensor) -> Tensor:  # [P, 4 or more]
    """The points with intensities from 0 to the scale (1, 255, 65535) that all but one in a hundred
    keep to: a single wild value would fill the whole map with boxes."""
    if not len(points):
        return points
    intensity = points[:, 3]
    low, high = intensity.aminmax()
    if low >= 0 and high <= 1:  # sync: two numbers, on a GPU
        return points
    scale = intensity_scale(intensity)
    points = points.clone()
    # infinite values stay: points that are not finite are dropped later
    points[:, 3] = torch.where(intensity.isinf(), intensity, intensity.clamp(0, scale))
    return points


def intensity_scale(intensity: Tensor) -> float:  # [P]
    """The least scale that all but one in a hundred keep to, or the last."""
    for scale in SCALES:
        if (intensity > scale).sum() <= FEW * len(intensity):
            return scale
    return SCALES[-1]
