"""The update of all weights of a network: clipping, AdamW, loss scale and average in one."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ops.cuda import adamw as cuda
from ops.dispatch import on_kernels
from ops.reference import adamw as reference


class Moments(NamedTuple):
    """What AdamW keeps: the averages of the gradient and of its square, and how many updates there
    were."""

    exp_avg: Tensor  # [N] float32
    exp_avg_sq: Tensor  # [N] float32
    steps: Tensor  # [] float32


class Recipe(NamedTuple):
    """Constants of an update; the growth is that of the loss scale, see torch.amp.GradScaler."""

    beta2: float
    eps: float
    weight_decay: float
    clip_norm: float
    growth_factor: float = 2.0
    backoff_factor: float = 0.5
    growth_interval: int = 2000


class LossScale(NamedTuple):
    """What the loss was multiplied with, and the updates since that number has changed."""

    scale: Tensor  # [1] float32
    growth: Tensor  # [1] int32


@torch.no_grad()
def adamw_update(
    weights: Tensor,  # [N] float32
    gradient: Tensor,  # [N] float32, times the loss scale
    moments: Moments,
    schedule: Tensor,  # [3] float64: learning rate, beta1, share of the weights in their average
    recipe: Recipe,
    average: Tensor | None = None,  # [N] float32
    loss_scale: LossScale | None = None,
) -> Tensor:
    """One step of AdamW (Loshchilov and Hutter 2019) in place; the norm of the gradient, a scalar.

    The gradient counts as divided by the loss scale and clipped to a norm of `clip_norm`; its norm
    is the one before clipping. With a loss scale, a gradient with a number that is not finite
    changes neither weights nor moments, and the scale moves as torch.amp moves it. The average
    becomes average + share * (weights - average). N is a multiple of 4. Nothing is read back.
    """
    if weights.ndim != 1 or len(weights) % 4 != 0:
        raise ValueError(f"weights: expected [N], N a multiple of 4, got {list(weights.shape)}")
    backend = cuda if on_kernels(weights) else reference
    return backend.adamw_update(weights, gradient, moments, schedule, recipe, average, loss_scale)
