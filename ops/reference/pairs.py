"""Lists of pairs and what moves and multiplies their rows, in plain torch."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor

from ops.dataflow import RANK_BITS, Pairs
from ops.reference.sparse_conv import finished
from ops.rulebook import Table


def list_pairs(table: Table, symmetric: bool) -> Pairs:
    """See ops.dataflow.Pairs."""
    neighbours, count = table.neighbours, table.count
    hit = neighbours >= 0
    if count is not None:
        hit &= torch.arange(neighbours.shape[1], device=neighbours.device) < count
    _, targets = hit.nonzero(as_tuple=True)
    begin = (0, *hit.sum(1).cumsum(0).tolist())
    of_row = hit.sum(0)
    rank = hit.cumsum(1) - 1 + (torch.arange(len(hit), device=hit.device)[:, None] << RANK_BITS)
    by_row = rank.T[hit.T].int()
    lists = neighbours[hit], targets.int(), of_row.cumsum(0).int(), by_row
    return Pairs(table, *lists, begin, max(of_row.tolist(), default=0), symmetric)


def gather_rows(
    features: Tensor,  # [N_in, C]
    lists: Tensor,  # [pairs] rows of the features
    begin: Sequence[int],
    slot: Sequence[int],  # where each offset's rows begin in the buffer
    order: Sequence[int],  # of the offsets in the buffer
    slots: int,
) -> Tensor:  # [slots, C], zero where no pair stands
    buffer = features.new_zeros(slots, features.shape[1])
    for v in order:
        size = begin[v + 1] - begin[v]
        if slot[v] < slots:
            buffer[slot[v] : slot[v] + size] = features[lists[begin[v] : begin[v + 1]].long()]
    return buffer


def add_products(
    products: Tensor,  # [slots, C_out] float32
    pairs: Pairs,
    slot: Sequence[int],
    order: Sequence[int],
    dtype: torch.dtype,
    bias: Tensor | None,
    residual: Tensor | None,
    relu: bool,
) -> Tensor:  # [N, C_out]
    """out[n] = sum over v of products of n, + bias, + residual, ReLU."""
    out = products.new_zeros(len(pairs.row_ends), products.shape[1])
    for v, (begin, end) in enumerate(pairwise(pairs.begin)):
        out[pairs.targets[begin:end].long()] += products[slot[v] : slot[v] + end - begin]
    return finished(out, pairs.table.count, bias, residual, relu).to(dtype)


def fetch_products(
    features: Tensor,  # [N_in, C_in]
    weight: Tensor,  # [V, C_in, C_out]
    pairs: Pairs,
    centre: int | None,  # an offset that is left out
    tf32: bool,
) -> Tensor:  # [pairs but the centre's, C_out] float32
    """products[pair] = features[source] @ weight of its offset."""
    rows = features[pairs.sources.long()].float()
    weight = (weight.flip(0) if pairs.table.flipped else weight).float()
    others = [v for v in range(len(weight)) if v != centre]
    return torch.cat([rows[pairs.begin[v] : pairs.begin[v + 1]] @ weight[v] for v in others])


def fetch_rows(
    features: Tensor,  # [N_in, C_in]
    weight: Tensor,  # [V, C_in, C_out]
    pairs: Pairs,  # one per row
    bias: Tensor | None,
    residual: Tensor | None,
    relu: bool,
    tf32: bool,
) -> Tensor:  # [N, C_out]
    """The convolution where every row reads one source."""
    products = fetch_products(features, weight, pairs, None, tf32)
    rest = features.dtype, bias, residual, relu
    return add_products(products, pairs, pairs.begin[:-1], range(len(weight)), *rest)


def conv_centre(
    features: Tensor,  # [N_in, C_in]
    weight: Tensor,  # [V, C_in, C_out]
    products: Tensor,  # of all offsets but the centre
    pairs: Pairs,
    centre: int,  # the offset that pairs every row with itself
    bias: Tensor | None,
    residual: Tensor | None,
    relu: bool,
    tf32: bool,
) -> Tensor:  # [N, C_out]
    """`add_products` of all offsets, the centre's computed here."""
    matrix = weight[len(weight) - 1 - centre if pairs.table.flipped else centre]
    middle = features[: pairs.sizes[centre]].float() @ matrix.float()
    before = pairs.begin[centre]
    all_of_them = torch.cat([products[:before], middle, products[before:]])
    rest = features.dtype, bias, residual, relu
    return add_products(all_of_them, pairs, pairs.begin[:-1], range(len(weight)), *rest)
