"""Batch normalisation with ReLU of maps on the CUDA kernels, see csrc/conv/batch_norm.cuh."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ops.cuda.fakes import fake
from ops.cuda.library import extension

ALIGNMENT = 16  # bytes, of the kernels' reads


def norm_relu(maps: Sequence[Tensor], norms: Sequence[torch.nn.BatchNorm2d]) -> Tensor:
    """See ops.norm_relu.norm_relu."""
    extension()
    statistics = [(norm.running_mean, norm.running_var) for norm in norms]
    constants = [(norm.momentum, norm.eps) for norm in norms]
    parameters = [parameter for norm in norms for parameter in (norm.weight, norm.bias)]
    return NormRelu.apply(statistics, constants, *maps, *parameters)


class NormRelu(torch.autograd.Function):
    """A cell of a map is a row: its channels lie side by side."""

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
    """[B, C, H, W] -> [B * H * W, C]; no copy of what is channels last already."""
    maps = maps.contiguous(memory_format=torch.channels_last)
    return maps.permute(0, 2, 3, 1).reshape(-1, maps.shape[1])


@fake("batch_norm_relu")
def _fake_batch_norm_relu(
    x, scale, shift, running_mean, running_var, out, momentum, eps
) -> tuple[Tensor, Tensor]:
    return torch.empty_like(scale), torch.empty_like(scale)


@fake("batch_norm_relu_backward")
def _fake_batch_norm_relu_backward(
    gradient, x, scale, shift, mean, inv_std
) -> tuple[Tensor, Tensor, Tensor]:
    return torch.empty_like(x), torch.empty_like(scale), torch.empty_like(scale)
