"""Sparse convolution and its gradients on the CUDA kernels."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ops.build import extension
from ops.kernel_map import KernelMap, Table


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
    if torch.is_grad_enabled():
        return CudaConv.apply(features, weight, bias, residual, kernel_map, relu)
    return _convolve(features, weight, kernel_map.forward, bias, residual, relu)


class CudaConv(torch.autograd.Function):
    """The convolution with its epilogue, so that the sum is rounded once."""

    @staticmethod
    def forward(ctx, features, weight, bias, residual, kernel_map, relu):
        out = _convolve(features, weight, kernel_map.forward, bias, residual, relu)
        ctx.save_for_backward(features, weight, out if relu else None)
        ctx.kernel_map = kernel_map
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        features, weight, out = ctx.saved_tensors
        wants_features, wants_weight, wants_bias, wants_residual, _, _ = ctx.needs_input_grad
        grad = grad.contiguous() if out is None else torch.where(out > 0, grad, 0)
        forward, backward = ctx.kernel_map
        grad_features = grad_weight = grad_bias = None
        if wants_features:
            grad_features = _convolve(grad, weight, backward, transposed=True)
        if wants_weight:
            grad_weight = torch.ops.millisecond.conv_weight_gradient(
                features, grad, forward.neighbours, forward.count, forward.flipped
            ).to(weight.dtype)
        if wants_bias:
            grad_bias = grad.sum(0, dtype=torch.float32)
        return grad_features, grad_weight, grad_bias, grad if wants_residual else None, None, None


def _convolve(
    features: Tensor,
    weight: Tensor,  # [V, C_in, C_out], transposed: [V, C_out, C_in]
    table: Table,
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
    )


class ConvNormRelu(torch.autograd.Function):
    """Convolution, batch normalisation by the batch's own statistics, ReLU, in training."""

    @staticmethod
    def forward(ctx, features, weight, scale, shift, kernel_map, mean, variance, momentum, eps):
        neighbours = kernel_map.forward.neighbours
        out, *saved = torch.ops.millisecond.conv_norm_relu(
            features, weight, neighbours, scale, shift, mean, variance, momentum, eps
        )
        ctx.save_for_backward(features, weight, scale, out, *saved)
        ctx.kernel_map, ctx.eps = kernel_map, eps
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        features, weight, scale, *saved = ctx.saved_tensors
        forward, backward = ctx.kernel_map
        wanted = ctx.needs_input_grad[0]
        of_features, *of_parameters = torch.ops.millisecond.conv_norm_relu_backward(
            grad,
            features,
            weight,
            forward.neighbours,
            backward.neighbours,
            backward.flipped,
            scale,
            *saved,
            ctx.eps,
            wanted,
        )
        return of_features if wanted else None, *of_parameters, None, None, None, None, None


def conv_norm_relu(
    features: Tensor, weight: Tensor, kernel_map: KernelMap, norm: torch.nn.BatchNorm1d
) -> Tensor:
    """relu(norm(conv(features))) of exact-sized float32 or autocast tensors, norm in training.

    The running statistics of `norm` move on as they do in its own forward.
    """
    extension()
    if torch.is_autocast_enabled("cuda"):
        features = features.to(torch.get_autocast_dtype("cuda"))
    return ConvNormRelu.apply(
        features,
        weight,
        norm.weight,
        norm.bias,
        kernel_map,
        norm.running_mean,
        norm.running_var,
        norm.momentum,
        norm.eps,
    )


def pack_weight(weight: Tensor) -> Tensor:
    """[V, C_in, C_out] -> the flat order in which conv_chain reads it."""
    extension()
    return torch.ops.millisecond.pack_weight(weight.contiguous(), tf32_allowed())


def conv_chain(
    features: Tensor, weights: list[Tensor], biases: list[Tensor], tables: list[Table]
) -> Tensor:
    """See ops.sparse_conv.sparse_conv_chain; `weights` are packed."""
    counts = [table.count for table in tables if table.count is not None]
    neighbours = [table.neighbours for table in tables]
    return torch.ops.millisecond.conv_chain(
        features, weights, biases, neighbours, counts, tf32_allowed()
    )


@torch.compiler.assume_constant_result
def tf32_allowed() -> bool:
    """Whether float32 may be rounded to tf32: torch.set_float32_matmul_precision."""
    return torch.get_float32_matmul_precision() != "highest"
