"""Sparse convolution by blocks of output rows: gather the pairs, multiply by offset, add up."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import embedding_bag, pad

# Of about this many pairs, what a block gathers and multiplies stays in the cache.
PAIRS_A_BLOCK = 32768


class Block(NamedTuple):
    """The P entries of a table in some of its rows, sorted by offset, then row."""

    rows: slice
    row: Tensor  # [P] int32, counted from rows.start
    source: Tensor  # [P] int32: row of the source
    by_row: Tensor  # [P] int64: the entries sorted by row, then offset
    first: Tensor  # [rows] int64: where each row starts in `by_row`
    segments: list[tuple[int, slice]]  # an offset and its entries


def sparse_conv(features, weight, kernel_map, bias, residual, relu) -> Tensor:
    """See ops.sparse_conv.sparse_conv."""
    out = SparseConv.apply(features, weight, kernel_map)
    if bias is not None:
        out += bias
    if residual is not None:
        out += residual
    if relu:
        out.relu_()
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
        grad = grad.contiguous()  # that of a BatchNorm comes transposed: rows are slow to gather
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
    blocks = blocks_of(table)
    most = max((len(block.row) for block in blocks), default=0)
    gathered = features.new_empty(most, weight.shape[1])
    products = features.new_empty(most, weight.shape[2])
    out = features.new_empty(table.neighbours.shape[1], weight.shape[2])
    for block in blocks:
        torch.index_select(features, 0, block.source, out=gathered[: len(block.row)])
        for offset, pairs in block.segments:
            torch.mm(gathered[pairs], weight[offset], out=products[pairs])
        # By output row, offsets increasing: one order of summation, so one result.
        out[block.rows] = embedding_bag(block.by_row, products, block.first, mode="sum")
    return out


def weight_gradient(features: Tensor, grad: Tensor, table) -> Tensor:
    """[V, C_in, C_out] in the dtype of accumulation."""
    features, grad = _wide(features), _wide(grad)
    result = grad.new_zeros(len(table.neighbours), features.shape[1], grad.shape[1])
    for block in blocks_of(table):
        left = features.index_select(0, block.source)
        right = grad[block.rows].index_select(0, block.row)
        for offset, pairs in block.segments:
            result[offset].addmm_(left[pairs].T, right[pairs])
    return result.flip(0) if table.flipped else result


def blocks_of(table) -> tuple[Block, ...]:
    """The entries of a table by blocks of rows; those it carries, or found now."""
    return find_blocks(table.neighbours, table.count) if table.blocks is None else table.blocks


def find_blocks(neighbours: Tensor, count: Tensor | None = None) -> tuple[Block, ...]:
    """The entries of [V, N] neighbours, N before `count`, by blocks of rows."""
    offsets, length = neighbours.shape
    if not length:
        return ()
    if count is not None:
        rows = torch.arange(length, device=neighbours.device)
        neighbours = torch.where(rows < count, neighbours, -1)
    total = int((neighbours >= 0).count_nonzero())
    size = max(PAIRS_A_BLOCK * length // max(total, 1), 1)
    shift = min(size, length).bit_length() - 1
    size = 1 << shift  # a power of two: rows are found by bits instead of divisions
    blocks = -(-length // size)

    tiled = pad(neighbours, (0, blocks * size - length), value=-1)
    tiled = tiled.reshape(offsets, blocks, size).transpose(0, 1).contiguous()
    entry = (tiled >= 0).view(-1).nonzero().squeeze(1)
    source = tiled.view(-1).index_select(0, entry)
    row = (entry & (size - 1)).int()
    lengths = (entry >> shift).bincount(minlength=blocks * offsets).view(blocks, offsets)
    starts = torch.arange(0, blocks * size, size, dtype=torch.int32, device=row.device)
    row_of_all = row + starts.repeat_interleave(lengths.sum(dim=1))
    by_row = row_of_all.sort(stable=True).indices
    per_row = row_of_all.bincount(minlength=length)
    first = per_row.cumsum(0) - per_row
    result, start = [], 0
    for index, by_offset in enumerate(lengths.tolist()):
        rows = slice(index * size, min((index + 1) * size, length))
        mine = slice(start, start + sum(by_offset))
        by_row_here, first_here = by_row[mine] - start, first[rows] - start
        segments = _segments(by_offset)
        result.append(Block(rows, row[mine], source[mine], by_row_here, first_here, segments))
        start = mine.stop
    return tuple(result)


def _segments(lengths: list[int]) -> list[tuple[int, slice]]:
    segments, start = [], 0
    for offset, length in enumerate(lengths):
        if length:
            segments.append((offset, slice(start, start + length)))
        start += length
    return segments


def _wide(tensor: Tensor) -> Tensor:
    return tensor if tensor.dtype == torch.float64 else tensor.float()
