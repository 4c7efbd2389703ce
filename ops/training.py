"""Parts of a training step besides convolution: the update of all weights, and batch normalisation.

The update is clipping, AdamW, loss scale and average in one. See csrc/optimizer/adamw.cu and
csrc/conv/batch_norm.cuh.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from millisecond.ops.dispatch import on_kernels
from millisecond.ops.geometry import check_tensor, same_device
from millisecond.ops.library import fake

ALIGNMENT = 16  # bytes, of the kernels' reads


class Moments(NamedTuple):
    """The state of AdamW: the averages of the gradient and of its square, and the number of
    updates."""

    exp_avg: Tensor  # [N] float32
    exp_avg_sq: Tensor  # [N] float32
    steps: Tensor  # [] float32


class Recipe(NamedTuple):
    """Constants of an update; growth_* and backoff_* move the loss scale, see
    torch.amp.GradScaler."""

    beta2: float
    eps: float
    weight_decay: float
    clip_norm: float
    growth_factor: float = 2.0
    backoff_factor: float = 0.5
    growth_interval: int = 2000


class LossScale(NamedTuple):
    """The factor of the loss, and the number of updates since this factor has changed."""

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

    The gradient counts as divided by the loss scale and clipped to a norm of `clip_norm`; the norm
    that is returned is the norm before clipping. With a loss scale, a gradient with a number that
    is not finite changes neither weights nor moments, and the scale moves as torch.amp moves it.
    The average becomes average + share * (weights - average). N is a multiple of 4. Nothing is read
    back.
    """
    if weights.ndim != 1 or len(weights) % 4 != 0:
        raise ValueError(f"weights: expected [N], N a multiple of 4, got {list(weights.shape)}")
    check_tensor("gradient", gradient, weights.shape, weights.dtype)
    if not on_kernels(weights):
        state = moments, schedule, recipe, average, loss_scale
        return adamw_update_definition(weights, gradient, *state)
    scale, growth = loss_scale or (None, None)
    return torch.ops.millisecond.adamw_update(
        weights, gradient, *moments, schedule, average, scale, growth, *recipe
    )


@torch.no_grad()
def adamw_update_definition(
    weights: Tensor,
    gradient: Tensor,
    moments: Moments,
    schedule: Tensor,
    recipe: Recipe,
    average: Tensor | None,
    loss_scale: LossScale | None,
) -> Tensor:
    """`adamw_update` in plain torch."""
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


@fake("adamw_update")
def _fake_adamw_update(weights, *_) -> Tensor:
    return weights.new_empty(())


def norm_relu(
    maps: Sequence[Tensor],  # [B, C_i, H, W] each
    norms: Sequence[torch.nn.BatchNorm2d],  # in training mode
) -> Tensor:  # [B, sum of C_i, H, W]
    """relu(batch norm of the map) of every map by its own statistics, side by side. Differentiable.

    The running statistics of `norms` move on as in their own forward, but batches are not counted.
    On CUDA the result is channels last, and each map is written to its own channels.
    """
    if len(maps) != len(norms):
        raise ValueError(f"maps: {len(maps)}, norms: {len(norms)}; every map needs one")
    if not maps:
        raise ValueError("maps: none; norm_relu takes one map or more")
    for number, (values, norm) in enumerate(zip(maps, norms, strict=True)):
        if not norm.training:
            raise ValueError(f"norms[{number}]: in evaluation mode; call its train() before")
        same_device(norm=norm.weight, map=values)
        expected = [len(maps[0]), norm.num_features, *maps[0].shape[2:]]
        if norm.weight is not None and (values.dtype == torch.float64) != (
            norm.weight.dtype == torch.float64
        ):
            raise ValueError(f"maps[{number}]: {values.dtype}, its norm is {norm.weight.dtype}")
        check_tensor(f"maps[{number}]", values, expected, "of floats")
    if not on_kernels(maps[0]):
        return norm_relu_definition(maps, norms)
    statistics = [(norm.running_mean, norm.running_var) for norm in norms]
    constants = [(norm.momentum, norm.eps) for norm in norms]
    parameters = [parameter for norm in norms for parameter in (norm.weight, norm.bias)]
    return NormRelu.apply(statistics, constants, *maps, *parameters)


def norm_relu_definition(maps: Sequence[Tensor], norms: Sequence[torch.nn.BatchNorm2d]) -> Tensor:
    """`norm_relu` in plain torch."""
    parts = [torch.relu_(norm(values)) for values, norm in zip(maps, norms, strict=True)]
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)


class NormRelu(torch.autograd.Function):
    """A cell of a map is a row with its channels side by side."""

    @staticmethod
    def forward(ctx, statistics, constants, *tensors):
        count = len(statistics)
        rows = [_rows(values) for values in tensors[:count]]
        parameters = tensors[count:]
        batch, _, height, width = tensors[0].shape
        channels = [values.shape[1] for values in rows]
        out = rows[0].new_empty(batch * height * width, sum(channels))
        parts, moments = out.split(channels, dim=1), []
        ctx.aligned = count == 1 or all(n * out.element_size() % ALIGNMENT == 0 for n in channels)
        if not ctx.aligned:
            parts = [torch.empty_like(values) for values in rows]
        for i, part in enumerate(parts):
            scale, shift = parameters[2 * i : 2 * i + 2]
            moments += torch.ops.millisecond.batch_norm_relu(
                rows[i], scale, shift, *statistics[i], part, *constants[i]
            )
        if not ctx.aligned:
            torch.cat(parts, dim=1, out=out)
        ctx.save_for_backward(*rows, *parameters, *moments)
        ctx.shape = batch, height, width
        return out.view(batch, height, width, -1).permute(0, 3, 1, 2)

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient):
        saved = ctx.saved_tensors
        count = len(saved) // 5
        rows, parameters, moments = saved[:count], saved[count : 3 * count], saved[3 * count :]
        gradient = _rows(gradient)
        of_maps, of_parameters = [], []
        for i, part in enumerate(gradient.split([values.shape[1] for values in rows], dim=1)):
            pair = slice(2 * i, 2 * i + 2)
            part = part if ctx.aligned else part.contiguous()
            of_rows, *others = torch.ops.millisecond.batch_norm_relu_backward(
                part, rows[i], *parameters[pair], *moments[pair]
            )
            of_maps.append(of_rows.view(*ctx.shape, -1).permute(0, 3, 1, 2))
            of_parameters += others
        return None, None, *of_maps, *of_parameters


def _rows(maps: Tensor) -> Tensor:
    """[B, C, H, W] -> [B * H * W, C]; no copy where a map is channels last already."""
    maps = maps.contiguous(memory_format=torch.channels_last)
    return maps.permute(0, 2, 3, 1).reshape(-1, maps.shape[1])


@fake("batch_norm_relu")
def _fake_batch_norm_relu(x, scale, *_) -> tuple[Tensor, Tensor]:
    return torch.empty_like(scale), torch.empty_like(scale)


@fake("batch_norm_relu_backward")
def _fake_batch_norm_relu_backward(gradient, x, scale, *_) -> tuple[Tensor, Tensor, Tensor]:
    return torch.empty_like(x), torch.empty_like(scale), torch.empty_like(scale)
