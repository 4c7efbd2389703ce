"""Sparse convolution and its gradients on the CUDA kernels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ops.cuda.library import extension
from ops.kernel_map import KernelMap, Level, Table


def sparse_conv(
    features: Tensor,
    weight: Tensor,
    kernel_map: KernelMap,
    bias: Tensor | None,
    residual: Tensor | None,
    relu: bool,
) -> Tensor:
    """See ops.sparse_conv.sparse_conv."""
    extension()
    bias = None if bias is None else bias.float()
    tf32 = tf32_allowed()
    if torch.is_grad_enabled():
        return CudaConv.apply(features, weight, bias, residual, kernel_map, relu, tf32)
    return _convolve(features, weight, kernel_map.forward, tf32, bias, residual, relu)


class CudaConv(torch.autograd.Function):
    """The convolution with its epilogue, so that the sum is rounded once. The backward pass
    computes in the precision of the forward pass, whatever torch is set to by then."""

    @staticmethod
    def forward(ctx, features, weight, bias, residual, kernel_map, relu, tf32):
        out = _convolve(features, weight, kernel_map.forward, tf32, bias, residual, relu)
        ctx.save_for_backward(features, weight, out if relu else None)
        ctx.kernel_map, ctx.tf32 = kernel_map, tf32
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        features, weight, out = ctx.saved_tensors
        wants_features, wants_weight, wants_bias, wants_residual, *_ = ctx.needs_input_grad
        grad = grad.contiguous() if out is None else torch.where(out > 0, grad, 0)
        forward, backward = ctx.kernel_map
        grad_features = grad_weight = grad_bias = None
        if wants_features:
            grad_features = _convolve(grad, weight, backward, ctx.tf32, transposed=True)
        if wants_weight:
            grad_weight = torch.ops.millisecond.conv_weight_gradient(
                features, grad, forward.neighbours, forward.count, forward.flipped, ctx.tf32
            ).to(weight.dtype)
        if wants_bias:
            grad_bias = grad.sum(0, dtype=torch.float32)
        grad_residual = grad if wants_residual else None
        return grad_features, grad_weight, grad_bias, grad_residual, None, None, None


def _convolve(
    features: Tensor,
    weight: Tensor,  # [V, C_in, C_out], transposed: [V, C_out, C_in]
    table: Table,
    tf32: bool,
    bias: Tensor | None = None,
    residual: Tensor | None = None,
    relu: bool = False,
    transposed: bool = False,
) -> Tensor:
    return torch.ops.millisecond.conv(
        features,
        weight,
        transposed,
        table.neighbours,
        table.count,
        table.flipped,
        bias,
        residual,
        relu,
        tf32,
    )


class ConvBlocks(torch.autograd.Function):
    """Blocks of convolution, batch normalisation by the batch's own statistics, and ReLU."""

    @staticmethod
    def forward(ctx, features, kernel_maps, statistics, momentum, eps, tf32, *parameters):
        count = len(kernel_maps)
        weights, scales, shifts = (parameters[i * count : (i + 1) * count] for i in range(3))
        means, variances = statistics
        saved = torch.ops.millisecond.conv_blocks(
            features,
            weights,
            scales,
            shifts,
            means,
            variances,
            [kernel_map.forward.neighbours for kernel_map in kernel_maps],
            momentum,
            eps,
            tf32,
        )
        ctx.save_for_backward(features, *weights, *scales, *saved)
        ctx.kernel_maps, ctx.eps, ctx.tf32 = kernel_maps, eps, tf32
        return saved[count - 1]

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        features, *saved = ctx.saved_tensors
        count = len(ctx.kernel_maps)
        of_features, *of_parameters = torch.ops.millisecond.conv_blocks_backward(
            grad.contiguous(),
            features,
            saved[:count],
            saved[count : 2 * count],
            saved[2 * count :],
            [kernel_map.forward.neighbours for kernel_map in ctx.kernel_maps],
            [kernel_map.backward.neighbours for kernel_map in ctx.kernel_maps],
            [kernel_map.backward.flipped for kernel_map in ctx.kernel_maps],
            ctx.eps,
            ctx.needs_input_grad[0],
            ctx.tf32,
        )
        of_features = of_features if ctx.needs_input_grad[0] else None
        return of_features, None, None, None, None, None, *of_parameters


def conv_blocks(
    features: Tensor,
    weights: Sequence[Tensor],
    kernel_maps: Sequence[KernelMap],
    norms: Sequence[torch.nn.BatchNorm1d],
) -> Tensor:
    """features = relu(norm(conv(features))) for every weight in turn, the norms in training.

    For exact-sized float32 or autocast tensors. The running statistics of `norms`, which share
    momentum and eps, move on as they do in their own forward.
    """
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


class PackedWeights(NamedTuple):
    """Weights in the order in which the kernels of `conv_chain` read them."""

    tensors: list[Tensor]  # flat
    tf32: bool  # the order of float32 weights is that for tf32: they must be read as such

    @classmethod
    def of(cls, weights: Sequence[Tensor]) -> PackedWeights:
        """weights: [V, C_in, C_out] each."""
        extension()
        tf32, pack = tf32_allowed(), torch.ops.millisecond.pack_weight
        return cls([pack(weight.contiguous(), tf32) for weight in weights], tf32)


def conv_chain(
    features: Tensor,
    weights: PackedWeights,
    biases: list[Tensor],
    tables: list[Table],
    level: Level | None = None,
    batch_size: int = 0,
) -> Tensor:
    """See ops.conv_chain. With the level of the last table's rows: their bird's-eye-view map."""
    counts = [table.count for table in tables if table.count is not None]
    neighbours = [table.neighbours for table in tables]
    coords, shape = (None, ()) if level is None else (level.coords, level.spatial_shape)
    return torch.ops.millisecond.conv_chain(
        features,
        weights.tensors,
        biases,
        neighbours,
        counts,
        coords,
        batch_size,
        shape,
        weights.tf32,
    )


@torch.compiler.assume_constant_result
def tf32_allowed() -> bool:
    """Whether float32 may be rounded to tf32, as torch is set for products on a GPU: by
    torch.set_float32_matmul_precision or torch.backends.cuda.matmul.fp32_precision."""
    try:
        return torch.get_float32_matmul_precision() != "highest"
    except RuntimeError:  # what torch answers once the newer of the two was used
        return torch.backends.cuda.matmul.fp32_precision == "tf32"
