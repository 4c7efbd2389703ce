"""Lists of pairs and what moves and multiplies their rows, on the kernels of csrc/dataflow/."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ops.cuda.fakes import fake
from ops.cuda.library import extension
from ops.dataflow import Pairs
from ops.rulebook import Table


def list_pairs(table: Table, symmetric: bool) -> Pairs:
    """See ops.dataflow.Pairs."""
    extension()
    if torch.cuda.is_current_stream_capturing():
        raise ValueError(
            "pair_map: the host needs the number of pairs, which a CUDA graph keeps from it; list "
            "them before the capture, or leave the layers implicit GEMMs"
        )
    neighbours, count = table.neighbours.contiguous(), table.count
    hit = neighbours >= 0
    if count is not None:
        hit &= torch.arange(neighbours.shape[1], device=neighbours.device) < count
    ends = hit.flatten().cumsum(0, dtype=torch.int32).view(hit.shape)
    of_row = hit.sum(0, dtype=torch.int32)
    row_ends = of_row.cumsum(0, dtype=torch.int32)
    if len(of_row):
        numbers = torch.cat([ends[:, -1], of_row.max()[None]])
        # sync: how many pairs there are, for the size of the lists
        *last, most = numbers.tolist()
    else:
        last, most = [0] * len(hit), 0
    begin = (0, *last)
    sources, targets, by_row = torch.ops.millisecond.list_pairs(
        neighbours, count, ends, row_ends, begin[-1]
    )
    return Pairs(table, sources, targets, row_ends, by_row, begin, most, symmetric)


def gather_rows(
    features: Tensor,
    lists: Tensor,
    begin: Sequence[int],
    slot: Sequence[int],
    order: Sequence[int],
    slots: int,
) -> Tensor:
    """See ops.reference.pairs.gather_rows."""
    return torch.ops.millisecond.gather_rows(features, lists, begin, slot, order, slots)


def add_products(
    products: Tensor,
    pairs: Pairs,
    slot: Sequence[int],
    order: Sequence[int],
    dtype: torch.dtype,
    bias: Tensor | None,
    residual: Tensor | None,
    relu: bool,
) -> Tensor:
    """See ops.reference.pairs.add_products; `slot` and `order` are empty where products lie as the
    pairs are listed."""
    rows = pairs.row_ends, pairs.by_row, pairs.table.count
    return torch.ops.millisecond.add_products(
        products, *rows, pairs.begin, slot, order, dtype, bias, residual, relu
    )


def fetch_products(
    features: Tensor, weight: Tensor, pairs: Pairs, centre: int | None, tf32: bool
) -> Tensor:
    """See ops.reference.pairs.fetch_products."""
    flipped, left_out = pairs.table.flipped, -1 if centre is None else centre
    return torch.ops.millisecond.fetch_products(
        features, weight, flipped, pairs.sources, pairs.begin, left_out, tf32
    )


def conv_centre(
    features: Tensor,
    weight: Tensor,
    products: Tensor,
    pairs: Pairs,
    centre: int,
    bias: Tensor | None,
    residual: Tensor | None,
    relu: bool,
    tf32: bool,
) -> Tensor:
    """See ops.reference.pairs.conv_centre."""
    rows = products, pairs.row_ends, pairs.by_row, pairs.begin, centre
    return torch.ops.millisecond.conv_centre(
        features, weight, pairs.table.flipped, *rows, bias, residual, relu, tf32
    )


def fetch_rows(
    features: Tensor,
    weight: Tensor,
    pairs: Pairs,
    bias: Tensor | None,
    residual: Tensor | None,
    relu: bool,
    tf32: bool,
) -> Tensor:
    """See ops.reference.pairs.fetch_rows."""
    lists = pairs.sources, pairs.targets, pairs.begin
    return torch.ops.millisecond.fetch_rows(
        features, weight, pairs.table.flipped, *lists, bias, residual, relu, tf32
    )


@fake("list_pairs")
def _list_pairs(neighbours, count, ends, row_ends, total):
    return tuple(neighbours.new_empty(total) for _ in range(3))


@fake("gather_rows")
def _gather_rows(features, lists, begin, slot, order, slots):
    return features.new_empty(slots, features.shape[1])


@fake("add_products")
def _add_products(
    products, row_ends, by_row, count, begin, slot, order, dtype, bias, residual, relu
):
    return products.new_empty(len(row_ends), products.shape[1], dtype=dtype)


@fake("fetch_products")
def _fetch_products(features, weight, flipped, sources, begin, centre, tf32):
    left_out = 0 if centre < 0 else begin[centre + 1] - begin[centre]
    return features.new_empty(len(sources) - left_out, weight.shape[2], dtype=torch.float32)


@fake("conv_centre")
def _conv_centre(
    features, weight, flipped, products, row_ends, by_row, begin, centre, bias, residual, relu, tf32
):
    return features.new_empty(len(row_ends), weight.shape[2])


@fake("fetch_rows")
def _fetch_rows(features, weight, flipped, sources, targets, begin, bias, residual, relu, tf32):
    return features.new_empty(len(targets), weight.shape[2])
