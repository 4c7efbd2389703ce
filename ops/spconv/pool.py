"""Sparse pooling, as in spconv 2: of the active sites of a window, and of whole frames."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from millisecond.ops.layers import uncompiled
from millisecond.ops.max_pool import sparse_max_pool
from millisecond.ops.spconv.convolution import (
    MAX_NUM_VOXELS,
    Numbers,
    check_dimensions,
    check_window,
    window,
)
from millisecond.ops.spconv.core import SparseConvTensor, check_rows, expand_nd, of_dimensions
from millisecond.ops.spconv.indice_data import ConvAlgo, SharedMap
from millisecond.ops.spconv.modules import SparseModule
from millisecond.ops.spconv.repeated import RepeatedSites


class _Pool(SparseModule):
    """Outputs wherever the window touches a site; an `indice_key` keeps the map for the inverse
    convolution."""

    def __init__(
        self,
        ndim: int,
        kernel_size: Numbers = 3,
        stride: Numbers | None = 1,
        padding: Numbers = 0,
        dilation: Numbers = 1,
        indice_key: Any = None,
        subm: bool = False,
        algo: ConvAlgo | None = None,
        record_voxel_count: bool = False,
        name: str | None = None,
    ):
        super().__init__(name=name)
        self.ndim, self.kernel_size = ndim, expand_nd(ndim, kernel_size)
        self.stride = expand_nd(ndim, kernel_size if stride is None else stride)
        self.padding, self.dilation = expand_nd(ndim, padding), expand_nd(ndim, dilation)
        self.subm, self.indice_key, self.algo = subm, indice_key, algo
        check_window(self)
        if record_voxel_count and not subm:
            self.register_buffer(MAX_NUM_VOXELS, torch.zeros(1, dtype=torch.int32))

    def forward(self, input: SparseConvTensor) -> SparseConvTensor:
        if torch.compiler.is_compiling():
            return uncompiled(self, input)
        return self._forward(input)

    def _forward(self, input: SparseConvTensor) -> SparseConvTensor:
        check_dimensions(self, input)
        check_rows(input)
        key = self.indice_key
        if input.find_indice_pair(key) is not None:
            raise ValueError(f"indice_key {key!r}: there already, pooling shares none")
        input.sites.follow(self)
        geometry, subm, algo = window(self), self.subm, self.algo
        data = input.on_sites(lambda sites: SharedMap.on(sites, geometry, subm, algo=algo))
        if subm and isinstance(data.inputs, RepeatedSites):
            raise NotImplementedError(
                f"{type(self).__name__}: subm, and indices have a site twice or outside of the grid"
            )
        out = input.on(data.outputs, self._pooled(input.features, data))
        if key is not None:
            out.indice_dict = input.indice_dict | {key: data}
        count = self.get_max_num_voxels()
        if count is not None:
            count.clamp_(min=len(data.out_indices))
        return out

    def _pooled(self, features: Tensor, data: SharedMap) -> Tensor:
        raise NotImplementedError

    def get_max_num_voxels(self) -> Tensor | None:
        return getattr(self, MAX_NUM_VOXELS, None)

    def extra_repr(self) -> str:
        return (
            f"kernel_size={self.kernel_size}, stride={self.stride}, padding={self.padding}, "
            f"dilation={self.dilation}"
        )


class SparseMaxPool(_Pool):
    """The largest active input of each window, by channel."""

    def _pooled(self, features: Tensor, data: SharedMap) -> Tensor:
        if isinstance(data.inputs, RepeatedSites):
            features = data.inputs.largest(features)
        return sparse_max_pool(features, data.kernel_map)


class SparseAvgPool(_Pool):
    """The mean of the active inputs of each window, by channel."""

    def _pooled(self, features: Tensor, data: SharedMap) -> Tensor:
        rows = features.to(_sum_type(features))
        rows = torch.cat((rows, rows.new_ones(len(rows), 1)), dim=1)  # the last channel counts
        if isinstance(data.inputs, RepeatedSites):
            rows = data.inputs.sums(rows)
        neighbours, padded = data.kernel_map.forward.filled(), pad(rows, (0, 0, 1, 0))
        total = padded.new_zeros(neighbours.shape[1], rows.shape[1])
        for row in neighbours:  # one offset reads a row once: no order of atomics in the gradient
            total = total + padded.index_select(0, row + 1)
        return (total[:, :-1] / total[:, -1:].clamp(min=1)).to(features.dtype)


def _sum_type(features: Tensor) -> torch.dtype:
    """Sums of halves are rounded once, at their end."""
    return torch.float64 if features.dtype == torch.float64 else torch.float32


class _GlobalPool(SparseModule):
    """[B, C] of the active sites of each frame; zero for a frame without any."""

    def forward(self, input: SparseConvTensor) -> Tensor:
        frame = input.indices[:, 0]
        pooled = [self._of(input.features, frame == b) for b in range(input.batch_size)]
        return torch.stack(pooled)

    def _of(self, features: Tensor, rows: Tensor) -> Tensor:
        raise NotImplementedError


class SparseGlobalMaxPool(_GlobalPool):
    """The largest value of each frame, by channel: [B, C]."""

    def _of(self, features: Tensor, rows: Tensor) -> Tensor:
        if len(features) == 0:
            return features.sum(0)
        masked = torch.where(rows[:, None], features, -torch.inf)
        return torch.where(rows.any(), masked.max(dim=0).values, 0)


class SparseGlobalAvgPool(_GlobalPool):
    """The mean of each frame, by channel: [B, C]. (spconv 2.3.8 returns one number per frame.)"""

    def _of(self, features: Tensor, rows: Tensor) -> Tensor:
        total = torch.where(rows[:, None], features, 0).sum(0, dtype=_sum_type(features))
        return (total / rows.sum().clamp(min=1)).to(features.dtype)


class _OfDimensions(_Pool):
    """A pool whose constructor does not take its number of dimensions."""

    NDIM: int

    def __init__(
        self,
        kernel_size: Numbers,
        stride: Numbers | None = None,
        padding: Numbers = 0,
        dilation: Numbers = 1,
        indice_key: Any = None,
        algo: ConvAlgo | None = None,
        record_voxel_count: bool = False,
        name: str | None = None,
    ):
        window = kernel_size, stride, padding, dilation
        super().__init__(self.NDIM, *window, indice_key, False, algo, record_voxel_count, name)


SparseMaxPool1d, SparseMaxPool2d, SparseMaxPool3d, SparseMaxPool4d = of_dimensions(
    "SparseMaxPool", _OfDimensions, SparseMaxPool
)
SparseAvgPool1d, SparseAvgPool2d, SparseAvgPool3d = of_dimensions(
    "SparseAvgPool", _OfDimensions, SparseAvgPool, most=3
)
