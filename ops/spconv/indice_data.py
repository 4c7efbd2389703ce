"""What layers share by an `indice_key`: sites, and the pairs of rows of each offset.

`SharedMap` is what the layers here leave. Layers of a program's own leave `IndiceData` or
`ImplicitGemmIndiceData`, as the layers of spconv 2 do.
"""

from __future__ import annotations

from abc import ABC
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple

import torch
from torch import Tensor

from millisecond.ops.geometry import ConvGeometry
from millisecond.ops.rulebook import KernelMap
from millisecond.ops.sites import Sites
from millisecond.ops.spconv.repeated import RepeatedSites


class ConvAlgo(Enum):
    """spconv's algorithms. All are accepted; there is one, and it gives the same result."""

    Native = 0
    MaskImplicitGemm = 1
    MaskSplitImplicitGemm = 2


class AlgoHint(Enum):
    """spconv's hints for tuning; nothing here is tuned."""

    NoHint = 0
    Fowrard = 1  # spconv's spelling
    BackwardInput = 2
    BackwardWeight = 4


class SharedMap(NamedTuple):
    """What a layer with an `indice_key` leaves for those that share it; spconv 2's names."""

    inputs: Sites
    outputs: Sites
    kernel_map: KernelMap
    is_subm: bool
    geometry: ConvGeometry
    algo: ConvAlgo | None = None

    @classmethod
    def on(
        cls,
        sites: Sites,
        geometry: ConvGeometry,
        subm: bool,
        output_padding: Sequence[int] | None = None,  # of a transposed convolution
        algo: ConvAlgo | None = None,
        begun: bool = False,  # a submanifold map: the caller asks whether the sites are `sure`
    ) -> SharedMap:
        """Of a layer with these sites as its input."""
        if subm:
            make = sites.begun if begun else sites.submanifold
            kernel_map = make(geometry.kernel_size, geometry.dilation)
            return cls(sites, sites, kernel_map, subm, geometry, algo)
        transposed, more = output_padding is not None, output_padding or ()
        return cls(sites, *sites.strided(geometry, transposed, more), subm, geometry, algo)

    @property
    def ksize(self) -> list[int]:
        return list(self.geometry.kernel_size)

    @property
    def stride(self) -> list[int]:
        return list(self.geometry.stride)

    @property
    def padding(self) -> list[int]:
        return list(self.geometry.padding)

    @property
    def dilation(self) -> list[int]:
        return list(self.geometry.dilation)

    @property
    def indices(self) -> Tensor:
        """[N_in, 1 + D]"""
        return self.inputs.indices

    @property
    def out_indices(self) -> Tensor:
        """[N_out, 1 + D]"""
        return self.outputs.indices

    @property
    def spatial_shape(self) -> list[int]:
        return list(self.inputs.shape)

    @property
    def out_spatial_shape(self) -> list[int]:
        return list(self.outputs.shape)

    @property
    def pair_fwd(self) -> Tensor:
        """[V, N_out] int32: the input row that offset v of an output row reads, -1 = none."""
        if isinstance(self.inputs, RepeatedSites):
            raise NotImplementedError("pairs: indices have a site twice or outside of the grid")
        table = self.kernel_map.forward
        return table.filled().flip(0) if table.flipped else table.filled()

    @property
    def pair_bwd(self) -> Tensor:
        """[V, N_in] int32: the output row that reads an input row by offset v, -1 = none."""
        pairs = self.pair_fwd
        offset, row = (pairs >= 0).nonzero(as_tuple=True)
        back = pairs.new_full((len(pairs), len(self.indices)), -1)
        back[offset, pairs[offset, row].long()] = row.int()
        return back

    @property
    def indice_pairs(self) -> Tensor:
        """[2, V, N_in] int32: rows of the input, and of the output, of each offset; the first
        indice_pair_num of them, behind them -1."""
        back = self.pair_bwd
        offset, row = (back >= 0).nonzero(as_tuple=True)
        count = self.indice_pair_num.long()
        place = torch.arange(len(row), device=row.device) - (count.cumsum(0) - count)[offset]
        pairs = back.new_full((2, *back.shape), -1)
        pairs[0, offset, place], pairs[1, offset, place] = row.int(), back[offset, row]
        return pairs

    @property
    def indice_pair_num(self) -> Tensor:
        """[V] int32: pairs of each offset."""
        return (self.pair_fwd >= 0).sum(dim=1, dtype=torch.int32)


@dataclass
class IndiceData(ABC):
    """What spconv 2's layers leave with `ConvAlgo.Native`; a `SharedMap` is one, too."""

    out_indices: Tensor  # [N_out, 1 + D]
    indices: Tensor  # [N_in, 1 + D]
    indice_pairs: Tensor  # [2, V, N_in]
    indice_pair_num: Tensor  # [V]
    spatial_shape: Sequence[int]
    out_spatial_shape: Sequence[int]
    is_subm: bool
    algo: ConvAlgo
    ksize: Sequence[int]
    stride: Sequence[int]
    dilation: Sequence[int]
    padding: Sequence[int]
    voxel_num: Any = None


@dataclass
class ImplicitGemmIndiceData(ABC):
    """What spconv 2's layers leave with the other algorithms; a `SharedMap` is one, too."""

    out_indices: Tensor  # [N_out, 1 + D]
    indices: Tensor  # [N_in, 1 + D]
    pair_fwd: Tensor  # [V, N_out]
    pair_bwd: Tensor  # [V, N_in]
    pair_mask_fwd_splits: Sequence[Tensor]
    pair_mask_bwd_splits: Sequence[Tensor]
    mask_argsort_fwd_splits: Sequence[Tensor]
    mask_argsort_bwd_splits: Sequence[Tensor]
    masks: Sequence
    spatial_shape: Sequence[int]
    out_spatial_shape: Sequence[int]
    is_subm: bool
    algo: ConvAlgo
    ksize: Sequence[int]
    stride: Sequence[int]
    dilation: Sequence[int]
    padding: Sequence[int]
    in_voxel_num: Any = None
    out_voxel_num: Any = None


IndiceData.register(SharedMap)
ImplicitGemmIndiceData.register(SharedMap)
