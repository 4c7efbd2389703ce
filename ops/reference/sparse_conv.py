"""Sparse convolution by blocks of output rows: gather the pairs, multiply by offset, add up."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import embedding_bag

# Rows of a block: what it gathers and multiplies stays in the cache, and memory stays bounded.
BLOCK = 4096


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
    out = features.new_empty(table.neighbours.shape[1], weight.shape[2])
    for block in _blocks(table):
        gathered = features.index_select(0, block.source)
        products = out.new_empty(len(gathered), out.shape[1])
        for offset, pairs in block.segments:
            torch.mm(gathered[pairs], weight[offset], out=products[pairs])
        # By output row, offsets increasing: one order of summation, so one result.
        order = block.row.sort(stable=True).indices
        out[block.rows] = embedding_bag(order, products, block.first, mode="sum")
    return out


def weight_gradient(features: Tensor, grad: Tensor, table) -> Tensor:
    """[V, C_in, C_out] in the dtype of accumulation."""
    features, grad = _wide(features), _wide(grad)
    result = grad.new_zeros(len(table.neighbours), features.shape[1], grad.shape[1])
    for block in _blocks(table):
        left = features.index_select(0, block.source)
        right = grad[block.rows].index_select(0, block.row)
        for offset, pairs in block.segments:
            result[offset].addmm_(left[pairs].T, right[pairs])
    return result.flip(0) if table.flipped else result


class _Block(NamedTuple):
    """P pairs of some output rows and the rows they read, sorted by offset, then row."""

    rows: slice
    row: Tensor  # [P] int32, counted from rows.start
    source: Tensor  # [P] int32
    first: Tensor  # [rows] int64: number of pairs of the earlier rows
    segments: list[tuple[int, slice]]  # offset and its pairs


def _blocks(table) -> Iterator[_Block]:
    length = table.neighbours.shape[1]
    for start in range(0, length, BLOCK):
        rows = slice(start, min(start + BLOCK, length))
        neighbours = table.neighbours[:, rows].contiguous()
        valid = neighbours >= 0
        if table.count is not None:
            valid &= torch.arange(rows.start, rows.stop, device=valid.device) < table.count
        pair = valid.view(-1).nonzero().squeeze(1)
        row = (pair % neighbours.shape[1]).int()
        first = row.bincount(minlength=neighbours.shape[1])
        segments, end = [], 0
        for offset, pairs in enumerate(valid.sum(dim=1).tolist()):
            if pairs:
                segments.append((offset, slice(end, end + pairs)))
            end += pairs
        source = neighbours.view(-1).index_select(0, pair)
        yield _Block(rows, row, source, first.cumsum(0) - first, segments)


def _wide(tensor: Tensor) -> Tensor:
    return tensor if tensor.dtype == torch.float64 else tensor.float()
