"""The update of all weights in plain torch."""

from __future__ import annotations

import torch
from torch import Tensor


@torch.no_grad()
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
    rate, beta1, share = schedule.tolist()
    if loss_scale is not None:
        gradient = gradient * loss_scale.scale.double().reciprocal().float()
    norm = torch.linalg.vector_norm(gradient)
    wild = loss_scale is not None and not bool(gradient.isfinite().all())
    if not wild:
        gradient = gradient * (recipe.clip_norm / (norm + 1e-6)).clamp(max=1)
        moments.steps.add_(1)
        steps = float(moments.steps)
        moments.exp_avg.lerp_(gradient, 1 - beta1)
        moments.exp_avg_sq.lerp_(gradient.square(), 1 - recipe.beta2)
        root = (moments.exp_avg_sq / (1 - recipe.beta2**steps)).sqrt() + recipe.eps
        weights.mul_(1 - rate * recipe.weight_decay)
        weights.addcdiv_(moments.exp_avg, root, value=-rate / (1 - beta1**steps))
    if average is not None:
        average.lerp_(weights, share)
    if loss_scale is not None:
        torch._amp_update_scale_(
            loss_scale.scale,
            loss_scale.growth,
            torch.tensor([float(wild)], device=weights.device),
            recipe.growth_factor,
            recipe.backoff_factor,
            recipe.growth_interval,
        )
    return norm
