"""The pairs of a kernel map, listed by offset, and the operators that move and multiply their rows.

The kernels are in csrc/pairs.

Fetch on demand is here: the products of an offset read the rows of its pairs where they stand.
Gather-GEMM-scatter over the same lists is in `ops.lab.gather_scatter`.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from millisecond.ops.dispatch import on_kernels
from millisecond.ops.lab.library import extension, fake
from millisecond.ops.rulebook import KernelMap, Table
from millisecond.ops.sparse_conv import finished

MOST_OFFSETS = 125  # of a kernel whose pairs are listed: pairs.h
RANK_BITS = 25  # of the entries of Pairs.by_row: pairs.h


class Pairs(NamedTuple):
    """The pairs of a table, listed by offset and in the order of its rows."""

    table: Table
    sources: Tensor  # [pairs] int32
    targets: Tensor  # [pairs] int32: rows of the table
    row_ends: Tensor  # [N] int32: pairs of the rows up to this one, this one included
    # [pairs] int32: the pairs of each row in the order of their offsets, as 2^25 * offset + number
    # of the pair among the pairs of its offset
    by_row: Tensor
    begin: tuple[int, ...]  # [V + 1] where each offset's pairs begin in the lists
    most: int  # pairs of one row
    symmetric: bool  # of a submanifold map

    @property
    def sizes(self) -> list[int]:
        """Pairs of each offset."""
        return [end - begin for begin, end in pairwise(self.begin)]

    @property
    def centre(self) -> int | None:
        """The offset of a submanifold map that pairs every row with itself."""
        return (len(self.begin) - 1) // 2 if self.symmetric else None

    @property
    def single(self) -> bool:
        """Whether every row has one pair, as in the inverse of a convolution without overlaps."""
        return self.most == 1 and self.begin[-1] == len(self.row_ends)


class PairMap(NamedTuple):
    """A kernel map with its pairs listed; takes the place of the map in any dataflow but direct."""

    forward: Table
    backward: Table | None
    pairs: Pairs  # of forward
    pairs_back: Pairs | None

    def reversed(self) -> PairMap:
        """The map of the inverse convolution."""
        if self.backward is None or self.pairs_back is None:
            raise ValueError("pair_map: backward is None, build the map with both directions")
        return PairMap(self.backward, self.forward, self.pairs_back, self.pairs)

    def kernel_map(self) -> KernelMap:
        """The map without the lists."""
        return KernelMap(self.forward, self.backward)


def pair_map(kernel_map: KernelMap) -> PairMap:
    """The map with the pairs of both directions listed, once for all layers that share it.

    The host waits for the number of pairs, so this cannot be captured in a CUDA graph. ValueError
    for kernels of more than 125 offsets.
    """
    volume = len(kernel_map.forward.neighbours)
    if volume > MOST_OFFSETS:
        raise ValueError(f"kernel_map: {volume} offsets, pairs are listed of up to {MOST_OFFSETS}")
    forward, backward = kernel_map
    symmetric = backward is not None and backward.neighbours is forward.neighbours
    pairs = list_pairs(forward, symmetric)
    if backward is None:
        pairs_back = None
    elif symmetric:  # the same lists
        pairs_back = pairs._replace(table=backward)
    else:
        pairs_back = list_pairs(backward, False)
    return PairMap(forward, backward, pairs, pairs_back)


def list_pairs(table: Table, symmetric: bool) -> Pairs:
    """The pairs of one direction of a map."""
    if not on_kernels(table.neighbours):
        return list_pairs_definition(table, symmetric)
    extension()
    if torch.cuda.is_current_stream_capturing():
        raise ValueError(
            "pair_map: the host needs the number of pairs, which a CUDA graph keeps from it; list "
            "them before the capture, or leave the layers implicit GEMMs"
        )
    neighbours, count = table.neighbours.contiguous(), table.count
    hit = _hits(table)
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
    sources, targets, by_row = torch.ops.millisecond_lab.list_pairs(
        neighbours, count, ends, row_ends, begin[-1]
    )
    return Pairs(table, sources, targets, row_ends, by_row, begin, most, symmetric)


def list_pairs_definition(table: Table, symmetric: bool) -> Pairs:
    """`list_pairs` in plain torch."""
    hit = _hits(table)
    _, targets = hit.nonzero(as_tuple=True)
    begin = (0, *hit.sum(1).cumsum(0).tolist())
    of_row = hit.sum(0)
    rank = hit.cumsum(1) - 1 + (torch.arange(len(hit), device=hit.device)[:, None] << RANK_BITS)
    by_row = rank.T[hit.T].int()
    lists = table.neighbours[hit], targets.int(), of_row.cumsum(0).int(), by_row
    return Pairs(table, *lists, begin, max(of_row.tolist(), default=0), symmetric)


def _hits(table: Table) -> Tensor:
    """[V, N] bool: which entries are pairs."""
    hit = table.neighbours >= 0
    if table.count is not None:
        hit &= torch.arange(hit.shape[1], device=hit.device) < table.count
    return hit


@fake("list_pairs")
def _fake_list_pairs(neighbours, count, ends, row_ends, total):
    return tuple(neighbours.new_empty(total) for _ in range(3))


def gather_rows(
    features: Tensor,  # [N_in, C]
    lists: Tensor,  # [pairs] rows of the features
    begin: Sequence[int],
    slot: Sequence[int],  # where each offset's rows begin in the buffer
    order: Sequence[int],  # of the offsets in the buffer
    slots: int,
) -> Tensor:  # [slots, C], zero where no pair stands
    """A buffer with the rows of all offsets."""
    if not on_kernels(features):
        return gather_rows_definition(features, lists, begin, slot, order, slots)
    return torch.ops.millisecond_lab.gather_rows(features, lists, begin, slot, order, slots)


def gather_rows_definition(
    features: Tensor,
    lists: Tensor,
    begin: Sequence[int],
    slot: Sequence[int],
    order: Sequence[int],
    slots: int,
) -> Tensor:
    """`gather_rows` in plain torch."""
    buffer = features.new_zeros(slots, features.shape[1])
    for v in order:
        size = begin[v + 1] - begin[v]
        if slot[v] < slots:
            buffer[slot[v] : slot[v] + size] = features[lists[begin[v] : begin[v + 1]].long()]
    return buffer


@fake("gather_rows")
def _fake_gather_rows(features, lists, begin, slot, order, slots):
    return features.new_empty(slots, features.shape[1])


def add_products(
    products: Tensor,  # [slots, C_out] float32
    pairs: Pairs,
    slot: Sequence[int],  # as of `gather_rows`; empty where products lie as the pairs are listed
    order: Sequence[int],
    dtype: torch.dtype,
    bias: Tensor | None,
    residual: Tensor | None,
    relu: bool,
) -> Tensor:  # [N, C_out]
    """out[n] = sum over v of products of n, + bias, + residual, ReLU."""
    rest = slot, order, dtype, bias, residual, relu
    if not on_kernels(products):
        return add_products_definition(products, pairs, *rest)
    rows = pairs.row_ends, pairs.by_row, pairs.table.count
    return torch.ops.millisecond_lab.add_products(products, *rows, pairs.begin, *rest)


def add_products_definition(
    products: Tensor,
    pairs: Pairs,
    slot: Sequence[int],
    order: Sequence[int],
    dtype: torch.dtype,
    bias: Tensor | None,
    residual: Tensor | None,
    relu: bool,
) -> Tensor:
    """`add_products` in plain torch."""
    out = products.new_zeros(len(pairs.row_ends), products.shape[1])
    starts = slot or pairs.begin[:-1]
    for start, (begin, end) in zip(starts, pairwise(pairs.begin), strict=True):
        out[pairs.targets[begin:end].long()] += products[start : start + end - begin]
    return finished(out, pairs.table.count, bias, residual, relu).to(dtype)


@fake("add_products")
def _fake_add_products(
    products, row_ends, by_row, count, begin, slot, order, dtype, bias, residual, relu
):
    return products.new_empty(len(row_ends), products.shape[1], dtype=dtype)


def fetch_on_demand(
    features: Tensor,  # [N_in, C_in]
    weight: Tensor,  # [V, C_in, C_out]
    pairs: Pairs,
    bias: Tensor | None,
    residual: Tensor | None,
    relu: bool,
    tf32: bool,
) -> Tensor:  # [N_out, C_out]
    """The convolution; products are left in a buffer, except the last product of a row."""
    rest = bias, residual, relu, tf32
    if pairs.single:
        return fetch_rows(features, weight, pairs, *rest)
    centre = pairs.centre
    products = fetch_products(features, weight, pairs, centre, tf32)
    if centre is not None:
        return conv_centre(features, weight, products, pairs, centre, *rest)
    dtype = features.dtype
    return add_products(products, pairs, [], [], dtype, bias, residual, relu)


def fetch_products(
    features: Tensor,  # [N_in, C_in]
    weight: Tensor,  # [V, C_in, C_out]
    pairs: Pairs,
    centre: int | None,  # an offset that is left out
    tf32: bool,
) -> Tensor:  # [pairs but the centre's, C_out] float32
    """products[pair] = features[source] @ weight of its offset."""
    if not on_kernels(features):
        return fetch_products_definition(features, weight, pairs, centre, tf32)
    flipped, left_out = pairs.table.flipped, -1 if centre is None else centre
    return torch.ops.millisecond_lab.fetch_products(
        features, weight, flipped, pairs.sources, pairs.begin, left_out, tf32
    )


def fetch_products_definition(
    features: Tensor, weight: Tensor, pairs: Pairs, centre: int | None, tf32: bool
) -> Tensor:
    """`fetch_products` in plain torch."""
    rows = features[pairs.sources.long()].float()
    weight = (weight.flip(0) if pairs.table.flipped else weight).float()
    others = [v for v in range(len(weight)) if v != centre]
    return torch.cat([rows[pairs.begin[v] : pairs.begin[v + 1]] @ weight[v] for v in others])


@fake("fetch_products")
def _fake_fetch_products(features, weight, flipped, sources, begin, centre, tf32):
    left_out = 0 if centre < 0 else begin[centre + 1] - begin[centre]
    return features.new_empty(len(sources) - left_out, weight.shape[2], dtype=torch.float32)


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
    rest = bias, residual, relu, tf32
    if not on_kernels(features):
        return conv_centre_definition(features, weight, products, pairs, centre, *rest)
    rows = products, pairs.row_ends, pairs.by_row, pairs.begin, centre
    return torch.ops.millisecond_lab.conv_centre(
        features, weight, pairs.table.flipped, *rows, *rest
    )


def conv_centre_definition(
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
    """`conv_centre` in plain torch."""
    matrix = weight[len(weight) - 1 - centre if pairs.table.flipped else centre]
    middle = features[: pairs.sizes[centre]].float() @ matrix.float()
    before = pairs.begin[centre]
    all_of_them = torch.cat([products[:before], middle, products[before:]])
    rest = features.dtype, bias, residual, relu
    return add_products_definition(all_of_them, pairs, [], [], *rest)


@fake("conv_centre")
def _fake_conv_centre(
    features, weight, flipped, products, row_ends, by_row, begin, centre, bias, residual, relu, tf32
):
    return features.new_empty(len(row_ends), weight.shape[2])


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
    rest = bias, residual, relu, tf32
    if not on_kernels(features):
        return fetch_rows_definition(features, weight, pairs, *rest)
    lists = pairs.sources, pairs.targets, pairs.begin
    return torch.ops.millisecond_lab.fetch_rows(
        features, weight, pairs.table.flipped, *lists, *rest
    )


def fetch_rows_definition(
    features: Tensor,
    weight: Tensor,
    pairs: Pairs,
    bias: Tensor | None,
    residual: Tensor | None,
    relu: bool,
    tf32: bool,
) -> Tensor:
    """`fetch_rows` in plain torch."""
    products = fetch_products_definition(features, weight, pairs, None, tf32)
    return add_products_definition(products, pairs, [], [], features.dtype, bias, residual, relu)


@fake("fetch_rows")
def _fake_fetch_rows(
    features, weight, flipped, sources, targets, begin, bias, residual, relu, tf32
):
    return features.new_empty(len(targets), weight.shape[2])
