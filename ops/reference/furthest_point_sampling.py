"""Furthest point sampling in plain torch: the definition, and the CPU path."""

from __future__ import annotations

import torch
from torch import Tensor


def furthest_point_sampling(points: Tensor, samples: int, start: Tensor) -> Tensor:
    """See ops.furthest_point_sampling."""
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
