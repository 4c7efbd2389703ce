"""Furthest point sampling on the CUDA kernels, see csrc/points/furthest_point_sampling.cu."""

from __future__ import annotations

import torch
from torch import Tensor

from ops.cuda.fakes import fake
from ops.cuda.library import extension


def furthest_point_sampling(points: Tensor, samples: int, start: Tensor) -> Tensor:
    """See ops.furthest_point_sampling. A start outside of its cloud counts as the nearest row."""
    extension()
    return torch.ops.millisecond.furthest_point_sampling(
        points.contiguous(), start.contiguous(), samples
    )


@fake("furthest_point_sampling")
def _furthest_point_sampling(points, start, samples) -> Tensor:
    return start.new_empty(points.shape[0], samples)
