"""Which dataflow was measured to be the fastest for a layer, and how layers take it.

Nothing is searched when a network runs: what was not measured is an implicit GEMM.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from ops.cuda.precision import tf32_allowed
from ops.dataflow import IMPLICIT_GEMM, Dataflow, PairMap
from ops.pairs import pair_map
from ops.rulebook import KernelMap

KINDS = ("submanifold", "strided", "inverse")
HALVES = {torch.float16: "fp16", torch.bfloat16: "bf16"}
PRECISIONS = (*HALVES.values(), "tf32", "fp32")


class Work(NamedTuple):
    """What is measured: a layer at one size."""

    kind: str  # one of KINDS
    offsets: int
    c_in: int
    c_out: int
    precision: str  # one of PRECISIONS
    training: bool  # with the backward pass
    size: int  # bits of the number of output rows: 17 for 65536 to 131071

    @classmethod
    def of(
        cls, kind: str, weight_shape: Sequence[int], dtype: torch.dtype, rows: int, training: bool
    ) -> Work:
        """Of a weight [V, C_in, C_out]."""
        volume, c_in, c_out = weight_shape
        return cls(kind, volume, c_in, c_out, precision_of(dtype), training, rows.bit_length())


class Choice(NamedTuple):
    """The fastest dataflow of a work."""

    listed: Dataflow  # on a map whose pairs are listed
    unlisted: Dataflow  # where they have to be listed for this layer alone


@dataclass(frozen=True)
class Tuned:
    """The fastest dataflow of each work, measured on one kind of GPU; `read_tuned` reads it."""

    fastest: Mapping[Work, Choice]

    def dataflow(
        self,
        kind: str,
        weight_shape: Sequence[int],
        dtype: torch.dtype,
        kernel_map: KernelMap | PairMap,
    ) -> Dataflow:
        """For a layer's call that computes in `dtype`, see `product_type`."""
        rows, training = kernel_map.forward.neighbours.shape[1], torch.is_grad_enabled()
        choice = self.fastest.get(Work.of(kind, weight_shape, dtype, rows, training))
        if choice is None or dtype == torch.float64:
            return IMPLICIT_GEMM
        return choice.listed if isinstance(kernel_map, PairMap) else choice.unlisted


class Tunable:
    """A module whose convolutions compute by a dataflow of their own."""

    dataflow: Dataflow | Tuned | None = None  # None: the implicit GEMM

    def chosen(
        self,
        kind: str,
        weight_shape: Sequence[int],
        dtype: torch.dtype,
        kernel_map: KernelMap | PairMap,
    ) -> Dataflow | None:
        """The dataflow of a call; None for the implicit GEMM."""
        dataflow = self.dataflow
        if isinstance(dataflow, Tuned):
            dataflow = dataflow.dataflow(kind, weight_shape, dtype, kernel_map)
        return None if dataflow == IMPLICIT_GEMM else dataflow


class PairLists:
    """The pairs of kernel maps, listed once for all layers that share a map."""

    def __init__(self) -> None:
        self._found: dict[int, PairMap] = {}  # they hold the tensors that have the ids

    def __call__(self, kernel_map: KernelMap) -> PairMap:
        forward, backward = kernel_map
        found = self._found.get(id(forward.neighbours))
        if found is None:
            found = self._found[id(forward.neighbours)] = pair_map(kernel_map)
            if backward is not None and backward.neighbours is not forward.neighbours:
                self._found[id(backward.neighbours)] = found.reversed()
        return found


def use_tuned(network: nn.Module, tuned: Tuned | None) -> None:
    """Every sparse convolution in the network takes the dataflow that was the fastest for it: those
    of `ops.layers`, of `ops.spconv` and of the detector's encoder. None: implicit GEMMs again."""
    for module in network.modules():
        if isinstance(module, Tunable):
            module.dataflow = tuned


def product_type(features: Tensor) -> torch.dtype:
    """The type in which a convolution of the features computes."""
    kind = features.device.type
    if torch.is_autocast_enabled(kind) and features.dtype != torch.float64:
        return torch.get_autocast_dtype(kind)
    return features.dtype


def precision_of(dtype: torch.dtype) -> str:
    """One of PRECISIONS; that of float32 is what torch is set to."""
    return HALVES.get(dtype, "tf32" if tf32_allowed() else "fp32")
