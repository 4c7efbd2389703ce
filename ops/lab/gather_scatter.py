"""Gather-GEMM-scatter: rows are gathered by offset, multiplied by cuBLAS in groups of offsets, and
added up in the output rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from millisecond.ops.lab.dataflow import Dataflow
from millisecond.ops.lab.pairs import Pairs, add_products, gather_rows


class Buffer(NamedTuple):
    """Where each offset's rows stand in a buffer: groups one after another, a group's offsets with
    equally much room."""

    groups: list[tuple[int, ...]]
    slot: list[int]
    order: list[int]
    slots: int  # in all
    gathered: int  # of these groups; the centre at the end is read in place

    @classmethod
    def of(cls, pairs: Pairs, dataflow: Dataflow) -> Buffer:
        sizes = pairs.sizes
        together = groups(sizes, pairs.centre, dataflow)
        slot, order, at, gathered = [0] * len(sizes), [], 0, 0
        for group in together:
            room = max(sizes[v] for v in group)
            for v in group:
                slot[v] = at
                order.append(v)
                at += room
            gathered = gathered if group == (pairs.centre,) else at
        empty = [v for v in range(len(sizes)) if not sizes[v]]
        for v in empty:
            slot[v] = at
        return cls(together, slot, order + empty, at, gathered)

    def part(self, tensor: Tensor, index: int) -> Tensor:
        """[slots, C] -> [offsets of the group, room, C]."""
        group = self.groups[index]
        first = self.slot[group[0]]
        last = self.slots if index + 1 == len(self.groups) else self.slot[self.groups[index + 1][0]]
        return tensor[first:last].view(len(group), -1, tensor.shape[1])


def groups(sizes: Sequence[int], centre: int | None, dataflow: Dataflow) -> list[tuple[int, ...]]:
    """Offsets that share a batched product, of sizes pairs each; none of empty offsets.

    The centre of a submanifold map, which needs no gathering, stands alone at the end.
    """
    volume = len(sizes)
    units: list[tuple[int, ...]]
    if centre is None:
        units = [(v,) for v in range(volume)]
    else:
        units = [(v, volume - 1 - v) for v in range(volume // 2)]
    units = [unit for unit in units if sizes[unit[0]]]
    if dataflow.grouping == "symmetric":
        found = units
    elif dataflow.grouping == "fixed":
        third = -(-len(units) // 3) or 1
        found = [_joined(units[i : i + third]) for i in range(0, len(units), third)]
    else:
        found = _adaptive(units, sizes, dataflow.epsilon, dataflow.threshold)
    alone = [] if centre is None or not sizes[centre] else [(centre,)]
    return found + alone


def _adaptive(
    units: Sequence[tuple[int, ...]], sizes: Sequence[int], epsilon: float, threshold: int
) -> list[tuple[int, ...]]:
    found: list[tuple[int, ...]] = []
    group: list[tuple[int, ...]] = []

    def padding(together: Sequence[tuple[int, ...]]) -> float:
        members = [sizes[v] for v in _joined(together)]
        return 1 - sum(members) / (len(members) * max(members))

    for unit in units:
        if sizes[unit[0]] > threshold:
            found += [(v,) for v in unit]
        elif group and padding([*group, unit]) > epsilon:
            found.append(_joined(group))
            group = [unit]
        else:
            group.append(unit)
    return found + ([_joined(group)] if group else [])


def _joined(units: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    return sum(units, ())


def gather_scatter(
    features: Tensor,  # [N_in, C_in]
    weight: Tensor,  # [V, C_in, C_out]
    pairs: Pairs,
    bias: Tensor | None,
    residual: Tensor | None,
    relu: bool,
    dataflow: Dataflow,
) -> Tensor:  # [N_out, C_out]
    buffer = Buffer.of(pairs, dataflow)
    gathered = _gathered(features, pairs.sources, pairs, buffer)
    products = features.new_empty(buffer.slots, weight.shape[2], dtype=torch.float32)
    for index, group in enumerate(buffer.groups):
        if group == (pairs.centre,):
            rows = features[None, : pairs.sizes[group[0]]]
        else:
            rows = buffer.part(gathered, index)
        _multiply(rows, _weights(weight, pairs, group), buffer.part(products, index))
    return add_products(
        products, pairs, buffer.slot, buffer.order, features.dtype, bias, residual, relu
    )


def weight_gradient(
    features: Tensor,  # [N_in, C_in]
    grad: Tensor,  # [N_out, C_out]
    pairs: Pairs,
    dataflow: Dataflow,
) -> Tensor:  # [V, C_in, C_out] float32
    buffer = Buffer.of(pairs, dataflow)
    inputs = _gathered(features, pairs.sources, pairs, buffer)
    outputs = _gathered(grad, pairs.targets, pairs, buffer)
    shape = len(pairs.sizes), features.shape[1], grad.shape[1]
    out = features.new_zeros(shape, dtype=torch.float32)
    for index, group in enumerate(buffer.groups):
        if group == (pairs.centre,):
            x, g = (tensor[None, : pairs.sizes[group[0]]] for tensor in (features, grad))
        else:
            x, g = buffer.part(inputs, index), buffer.part(outputs, index)
        product = features.new_empty(len(group), *shape[1:], dtype=torch.float32)
        _multiply(x.transpose(1, 2), g, product)
        for v, matrix in zip(group, product, strict=True):
            out[_of_weight(v, pairs)] = matrix
    return out


def _gathered(features: Tensor, lists: Tensor, pairs: Pairs, buffer: Buffer) -> Tensor:
    _, slot, order, _, gathered = buffer
    return gather_rows(features, lists, pairs.begin, slot, order, gathered)


def _multiply(a: Tensor, b: Tensor, out: Tensor) -> None:
    """out = a @ b, batches of products, accumulated and left in float32."""
    if a.dtype == torch.float32:
        torch.bmm(a, b, out=out)
        return
    try:
        torch.bmm(a, b, out_dtype=torch.float32, out=out)
    except TypeError:
        raise ValueError(
            f"dataflow gather_scatter: {a.dtype} needs torch 2.8, this is {torch.__version__}; "
            "take another dataflow"
        ) from None


def _weights(weight: Tensor, pairs: Pairs, group: tuple[int, ...]) -> Tensor:
    if len(group) == 1:
        return weight[_of_weight(group[0], pairs)][None]
    return torch.stack([weight[_of_weight(v, pairs)] for v in group])


def _of_weight(v: int, pairs: Pairs) -> int:
    return len(pairs.sizes) - 1 - v if pairs.table.flipped else v
