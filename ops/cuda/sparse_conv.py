"""Sparse convolution and its gradients on the CUDA kernels, see csrc/conv/."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ops.cuda.fakes import fake
from ops.cuda.library import extension
from ops.cuda.precision import tf32_allowed
from ops.rulebook import KernelMap, Table


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


def mixed_conv(
    features: Tensor,
    weight: Tensor,
    kernel_map: KernelMap,
    bias: Tensor | None,
    packed: Tensor | None = None,
) -> Tensor:
    """The same in the type of the features with a weight that may be float32. packed: from
    `pack_weight`, which is read in its place where gradients are off."""
    extension()
    bias = None if bias is None else bias.float()
    tf32 = tf32_allowed()
    if torch.is_grad_enabled():
        return CudaConv.apply(features, weight, bias, None, kernel_map, False, tf32)
    return _convolve(features, weight, kernel_map.forward, tf32, bias, packed=packed)


def pack_weight(weight: Tensor) -> Tensor:  # [V, C_in, C_out]
    """A weight of the type of the features in the order in which the kernels read it, flat."""
    extension()
    return torch.ops.millisecond.pack_weight(weight, tf32_allowed())


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
            grad_weight = gradient_of_weight(features, grad, forward, ctx.tf32).to(weight.dtype)
        if wants_bias:
            grad_bias = grad.sum(0, dtype=torch.float32)
        grad_residual = grad if wants_residual else None
        return grad_features, grad_weight, grad_bias, grad_residual, None, None, None


def gradient_of_weight(features: Tensor, grad: Tensor, table: Table, tf32: bool) -> Tensor:
    """[V, C_in, C_out] float32."""
    return torch.ops.millisecond.conv_weight_gradient(
        features, grad, table.neighbours, table.count, table.flipped, tf32
    )


def _convolve(
    features: Tensor,
    weight: Tensor,  # [V, C_in, C_out], transposed: [V, C_out, C_in]
    table: Table,
    tf32: bool,
    bias: Tensor | None = None,
    residual: Tensor | None = None,
    relu: bool = False,
    transposed: bool = False,
    packed: Tensor | None = None,
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
        table.order,
        packed,
    )


@fake("conv")
def _fake_conv(
    features,
    weight,
    transposed,
    neighbours,
    count,
    flipped,
    bias,
    residual,
    relu,
    tf32=False,
    order=None,
    packed=None,
) -> Tensor:
    return features.new_empty(neighbours.shape[1], weight.shape[1 if transposed else 2])


@fake("conv_weight_gradient")
def _fake_conv_weight_gradient(
    features, gradient, neighbours, count, flipped, tf32=False
) -> Tensor:
    shape = neighbours.shape[0], features.shape[1], gradient.shape[1]
    return features.new_empty(shape, dtype=torch.float32)
