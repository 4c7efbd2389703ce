"""Sparse convolution in plain torch, by blocks of output rows: gather the rows that each window
reads, then multiply them with the weights of all offsets at once."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import conv2d, pad
from torch.nn.grad import conv2d_weight

from ops.rulebook import KernelMap, Table

NUMBERS_A_BLOCK = 1 << 20  # about as many as stay in the cache


def sparse_conv(
    features: Tensor,
    weight: Tensor,
    kernel_map: KernelMap,
    bias: Tensor | None,
    residual: Tensor | None,
    relu: bool,
) -> Tensor:
    """See ops.sparse_conv.sparse_conv."""
    out = SparseConv.apply(features, weight, kernel_map)
    return finished(out, kernel_map.forward.count, bias, residual, relu).to(features.dtype)


def finished(
    out: Tensor, count: Tensor | None, bias: Tensor | None, residual: Tensor | None, relu: bool
) -> Tensor:
    """The rows of a bare convolution, which are overwritten, with all that follows it."""
    if bias is not None:
        out += bias
    if residual is not None:
        out += residual
    if relu:
        out.relu_()
    if count is not None:
        row = torch.arange(len(out), device=out.device)
        out = torch.where((row < count)[:, None], out, 0)
    return out


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
        grad = grad.contiguous()  # that of a BatchNorm comes transposed: rows are slow to gather
        grad_features = grad_weight = None
        if ctx.needs_input_grad[0]:
            transposed = weight.transpose(1, 2)
            grad_features = convolve(grad, transposed, ctx.kernel_map.backward).to(features.dtype)
        if ctx.needs_input_grad[1]:
            grad_weight = weight_gradient(features, grad, ctx.kernel_map.forward).to(weight.dtype)
        return grad_features, grad_weight, None


def convolve(features: Tensor, weight: Tensor, table: Table) -> Tensor:
    """[N_source, C_in], [V, C_in, C_out] -> [N, C_out] in the dtype of accumulation."""
    features, weight = _wide(features), _wide(weight)
    if table.flipped:
        weight = weight.flip(0)
    # [C_out, C_in, V, 1]: a whole window, arranged as the images are
    kernel = weight.permute(2, 1, 0)[..., None].contiguous(memory_format=torch.channels_last)
    out = features.new_empty(table.neighbours.shape[1], weight.shape[2])
    with torch.autocast(features.device.type, enabled=False):
        for rows, windows in _windows(features, table):
            out[rows] = conv2d(windows, kernel)[0, :, 0].T
    return out


def weight_gradient(features: Tensor, grad: Tensor, table: Table) -> Tensor:
    """[V, C_in, C_out] in the dtype of accumulation."""
    features, grad = _wide(features), _wide(grad)
    shape = (grad.shape[1], features.shape[1], len(table.neighbours), 1)
    kernel = grad.new_zeros(shape)
    with torch.autocast(features.device.type, enabled=False):
        for rows, windows in _windows(features, table):
            kernel += conv2d_weight(windows, shape, grad[rows].T[None, :, None])
    result = kernel[..., 0].permute(2, 1, 0)
    return result.flip(0) if table.flipped else result


def _windows(features: Tensor, table: Table) -> Iterator[tuple[slice, Tensor]]:
    """Blocks of n rows of a table, and the features that they read: images [1, C, V, n], channels
    last, zero where there is no neighbour."""
    neighbours, channels = table.neighbours, features.shape[1]
    offsets, length = neighbours.shape
    if table.count is not None:
        row = torch.arange(length, device=neighbours.device)
        neighbours = torch.where(row < table.count, neighbours, -1)
    features = pad(features, (0, 0, 1, 0))  # row -1 + 1 is zero
    size = max(NUMBERS_A_BLOCK // (offsets * channels), 1)
    for start in range(0, length, size):
        rows = slice(start, min(start + size, length))
        read = features.index_select(0, (neighbours[:, rows] + 1).flatten())
        yield rows, read.view(1, offsets, -1, channels).permute(0, 3, 1, 2)


def _wide(tensor: Tensor) -> Tensor:
    return tensor if tensor.dtype == torch.float64 else tensor.float()
