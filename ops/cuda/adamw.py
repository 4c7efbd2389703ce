"""The update of all weights on the CUDA kernels, see csrc/optimizer/adamw.cu."""

from __future__ import annotations

import torch
from torch import Tensor

from ops.cuda.fakes import fake
from ops.cuda.library import extension


def adamw_update(
    weights: Tensor,
    gradient: Tensor,
    moments,
    schedule: Tensor,
    recipe,
    average: Tensor | None,
    loss_scale,
) -> Tensor:
    """See ops.adamw.adamw_update."""
    extension()
    scale, growth = loss_scale or (None, None)
    return torch.ops.millisecond.adamw_update(
        weights, gradient, *moments, schedule, average, scale, growth, *recipe
    )


@fake("adamw_update")
def _fake_adamw_update(
    weights,
    gradient,
    exp_avg,
    exp_avg_sq,
    steps,
    schedule,
    average,
    scale,
    growth,
    beta2,
    eps,
    weight_decay,
    clip_norm,
    growth_factor,
    backoff_factor,
    growth_interval,
) -> Tensor:
    return weights.new_empty(())
