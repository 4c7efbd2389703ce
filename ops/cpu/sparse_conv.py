"""Sparse convolution on the vectorised kernel, its gradients too."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ops.cpu.convolution import convolve, pack_weight
from ops.reference.sparse_conv import finished, weight_gradient
from ops.rulebook import KernelMap


def sparse_conv(
    features: Tensor,
    weight: Tensor,
    kernel_map: KernelMap,
    bias: Tensor | None,
    residual: Tensor | None,
    relu: bool,
) -> Tensor:
    """See ops.sparse_conv.sparse_conv."""
    tensors = [t for t in (features, weight, bias, residual) if t is not None]
    table = kernel_map.forward
    if not (torch.is_grad_enabled() and any(t.requires_grad for t in tensors)):
        packed, dtype = pack_weight(weight), features.dtype
        return convolve(features, packed, table, bias, relu, dtype, residual)
    out = SparseConv.apply(features, weight, kernel_map)
    return finished(out, table.count, bias, residual, relu).to(features.dtype)


class SparseConv(torch.autograd.Function):
    """The bare convolution; its result is in float32."""

    @staticmethod
    def forward(ctx, features, weight, kernel_map):
        ctx.save_for_backward(features, weight)
        ctx.kernel_map = kernel_map
        return convolve(features, pack_weight(weight), kernel_map.forward)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        features, weight = ctx.saved_tensors
        grad_features = grad_weight = None
        if ctx.needs_input_grad[0]:
            transposed = pack_weight(weight.transpose(1, 2).float())
            rows = convolve(grad, transposed, ctx.kernel_map.backward)
            grad_features = rows.to(features.dtype)
        if ctx.needs_input_grad[1]:
            table = ctx.kernel_map.forward
            grad_weight = weight_gradient(features, grad.contiguous(), table).to(weight.dtype)
        return grad_features, grad_weight, None
