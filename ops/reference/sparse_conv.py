"""Sparse convolution offset by offset: gather rows, multiply, add up."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


def sparse_conv(features, weight, kernel_map, bias, residual, relu) -> Tensor:
    """See ops.sparse_conv.sparse_conv."""
    out = SparseConv.apply(features, weight, kernel_map)
    if bias is not None:
        out = out + bias
    if residual is not None:
        out = out + residual
    if relu:
        out = out.relu()
    count = kernel_map.forward.count
    if count is not None:
        row = torch.arange(len(out), device=out.device)
        out = torch.where((row < count)[:, None], out, 0)
    return out.to(features.dtype)


class SparseConv(torch.autograd.Function):
    """The bare convolution; its result is in the dtype of accumulation."""

    @staticmethod
    def forward(ctx, features, weight, kernel_map):
        ctx.save_for_backward(features, weight)
        ctx.kernel_map = kernel_map
        return convolve(features, weight, kernel_map.forward)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        features, weight = ctx.saved_tensors
        grad_features = grad_weight = None
        if ctx.needs_input_grad[0]:
            transposed = weight.transpose(1, 2)
            grad_features = convolve(grad, transposed, ctx.kernel_map.backward).to(features.dtype)
        if ctx.needs_input_grad[1]:
            grad_weight = weight_gradient(features, grad, ctx.kernel_map.forward).to(weight.dtype)
        return grad_features, grad_weight, None


def convolve(features: Tensor, weight: Tensor, table) -> Tensor:
    """[N_source, C_in], [V, C_in, C_out] -> [N, C_out] in the dtype of accumulation."""
    features, weight = _wide(features), _wide(weight)
    if table.flipped:
        weight = weight.flip(0)
    out = features.new_zeros(table.neighbours.shape[1], weight.shape[2])
    for offset, (rows, sources) in enumerate(_pairs(table)):
        # Every row is there once an offset, so the sum has one order.
        out[rows] += features[sources] @ weight[offset]
    return out


def weight_gradient(features: Tensor, grad: Tensor, table) -> Tensor:
    """[V, C_in, C_out] in the dtype of accumulation."""
    features, grad = _wide(features), _wide(grad)
    products = [features[sources].T @ grad[rows] for rows, sources in _pairs(table)]
    result = torch.stack(products)
    return result.flip(0) if table.flipped else result


def _pairs(table):
    neighbours = table.neighbours
    if table.count is not None:
        row = torch.arange(neighbours.shape[1], device=neighbours.device)
        neighbours = torch.where(row < table.count, neighbours, -1)
    for column in neighbours:
        rows = (column >= 0).nonzero().squeeze(1)
        yield rows, column[rows].long()


def _wide(tensor: Tensor) -> Tensor:
    return tensor if tensor.dtype == torch.float64 else tensor.float()
