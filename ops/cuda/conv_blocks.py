"""Training blocks of convolution, batch normalisation and ReLU on the CUDA kernels."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ops.cuda.fakes import fake
from ops.cuda.library import extension
from ops.cuda.precision import tf32_allowed
from ops.rulebook import KernelMap, Table


class ConvBlocks(torch.autograd.Function):
    """One operator call per direction for all layers, because the host's time is the limit."""

    @staticmethod
    def forward(ctx, features, kernel_maps, statistics, momentum, eps, tf32, *parameters):
        count = len(kernel_maps)
        weights, scales, shifts = (parameters[i * count : (i + 1) * count] for i in range(3))
        means, variances = statistics
        tables = [kernel_map.forward for kernel_map in kernel_maps]
        saved = torch.ops.millisecond.conv_blocks(
            features,
            weights,
            scales,
            shifts,
            means,
            variances,
            [table.neighbours for table in tables],
            _counts(tables),
            [table.order for table in tables],
            momentum,
            eps,
            tf32,
        )
        ctx.save_for_backward(features, *weights, *scales, *shifts, *saved)
        ctx.kernel_maps, ctx.eps, ctx.tf32 = kernel_maps, eps, tf32
        return saved[count - 1]

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        features, *saved = ctx.saved_tensors
        count = len(ctx.kernel_maps)
        tables = [kernel_map.forward for kernel_map in ctx.kernel_maps]
        back = [kernel_map.backward for kernel_map in ctx.kernel_maps]
        of_features, *of_parameters = torch.ops.millisecond.conv_blocks_backward(
            grad.contiguous(),
            features,
            *(saved[i * count : (i + 1) * count] for i in range(3)),
            saved[3 * count :],
            [table.neighbours for table in tables],
            _counts(tables),
            [table.neighbours for table in back],
            _counts(back),
            [table.order for table in back],
            [table.flipped for table in back],
            ctx.eps,
            ctx.needs_input_grad[0],
            ctx.tf32,
            not _graph_is_kept(),
        )
        of_features = of_features if ctx.needs_input_grad[0] else None
        return of_features, None, None, None, None, None, *of_parameters


def _graph_is_kept() -> bool:
    """Whether what the forward pass has saved may be asked for again after this backward pass."""
    kept = getattr(torch._C._autograd, "_get_current_graph_task_keep_graph", None)  # torch 2.5
    return kept is None or kept()


def _counts(tables: Sequence[Table]) -> list[Tensor]:
    return [table.count for table in tables if table.count is not None]


def conv_blocks(
    features: Tensor,
    weights: Sequence[Tensor],
    kernel_maps: Sequence[KernelMap],
    norms: Sequence[torch.nn.BatchNorm1d],
) -> Tensor:
    """See ops.conv_blocks.conv_blocks."""
    extension()
    if torch.is_autocast_enabled("cuda"):
        features = features.to(torch.get_autocast_dtype("cuda"))
    statistics = [norm.running_mean for norm in norms], [norm.running_var for norm in norms]
    scales, shifts = [norm.weight for norm in norms], [norm.bias for norm in norms]
    momentum, eps = norms[0].momentum, norms[0].eps
    return ConvBlocks.apply(
        features,
        kernel_maps,
        statistics,
        momentum,
        eps,
        tf32_allowed(),
        *weights,
        *scales,
        *shifts,
    )


@fake("conv_blocks")
def _fake_conv_blocks(
    features,
    weights,
    scales,
    shifts,
    running_means,
    running_vars,
    neighbours,
    counts,
    orders,
    momentum,
    eps,
    tf32=False,
) -> list[Tensor]:
    outs = [
        features.new_empty(table.shape[1], weight.shape[2])
        for table, weight in zip(neighbours, weights, strict=True)
    ]
    sums = [torch.empty_like(out) for out in outs]
    means, inv_stds = ([torch.empty_like(scale) for scale in scales] for _ in range(2))
    return outs + sums + means + inv_stds


@fake("conv_blocks_backward")
def _fake_conv_blocks_backward(
    gradient,
    features,
    weights,
    scales,
    shifts,
    saved,
    neighbours,
    counts,
    back_neighbours,
    back_counts,
    back_orders,
    back_flipped,
    eps,
    wants_features,
    tf32=False,
    overwrite=False,
) -> list[Tensor]:
    of_features = torch.empty_like(features) if wants_features else features.new_empty(0)
    of_weights = [torch.empty_like(weight, dtype=torch.float32) for weight in weights]
    of_scales, of_shifts = ([torch.empty_like(scale) for scale in scales] for _ in range(2))
    return [of_features, *of_weights, *of_scales, *of_shifts]
