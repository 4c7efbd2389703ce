"""Layers of ops.layers that compute by a dataflow, and how a network takes the fastest ones.

Their kernel map may be a plain one, a `PairMap` or a `LocationMap`.
"""

from __future__ import annotations

from torch import Tensor, nn

from millisecond.ops import layers
from millisecond.ops.lab.dataflow import Dataflow
from millisecond.ops.lab.locations import LocationMap
from millisecond.ops.lab.pairs import PairMap
from millisecond.ops.lab.sparse_conv import sparse_conv
from millisecond.ops.lab.tuned import Tuned
from millisecond.ops.rulebook import KernelMap
from millisecond.ops.sparse_conv import product_type


class Tunable(layers.Conv):
    """A convolution with a dataflow of its own."""

    KIND = ""  # in ops.lab.tuned.KINDS
    dataflow: Dataflow | Tuned | None = None  # None: the implicit GEMM

    def convolve(self, features: Tensor, kernel_map: KernelMap | PairMap | LocationMap) -> Tensor:
        """[N_in, C_in] -> [N_out, C_out]."""
        flow = self.flow(features, kernel_map)
        weight = layers.block_diagonal(self.weight, self.groups)
        return sparse_conv(features, weight, kernel_map, self.bias, dataflow=flow)

    def flow(
        self, features: Tensor, kernel_map: KernelMap | PairMap | LocationMap
    ) -> Dataflow | None:
        """The dataflow of a call."""
        if isinstance(kernel_map, LocationMap):  # a LocationMap has one dataflow
            return None
        if isinstance(self.dataflow, Tuned):
            dtype = product_type(features)
            volume, inputs, c_out = self.weight.shape
            shape = volume, inputs * self.groups, c_out
            return self.dataflow.dataflow(self.KIND, shape, dtype, kernel_map)
        return self.dataflow


class SubmanifoldConv(Tunable, layers.SubmanifoldConv):
    """See `ops.SubmanifoldConv`."""

    KIND = "submanifold"


class StridedConv(Tunable, layers.StridedConv):
    """See `ops.StridedConv`."""

    KIND = "strided"


class InverseConv(Tunable, layers.InverseConv):
    """See `ops.InverseConv`."""

    KIND = "inverse"


def use_tuned(network: nn.Module, tuned: Tuned | None) -> None:
    """Every layer of the lab in the network takes its fastest measured dataflow. None: implicit
    GEMMs again. ValueError for a network without such a layer."""
    found = [module for module in network.modules() if isinstance(module, Tunable)]
    if not found:
        raise ValueError(
            f"network: {type(network).__name__} has no layer of ops.lab; make its convolutions "
            "lab.SubmanifoldConv, lab.StridedConv and lab.InverseConv"
        )
    for module in found:
        module.dataflow = tuned
