"""The sparse convolutions of spconv 2: same names, arguments and state dicts."""

# ruff: noqa: F401 - programs take these names from here

from __future__ import annotations

from typing import Any

from millisecond.ops.spconv.convolution import Numbers, SparseConvolution
from millisecond.ops.spconv.core import (
    ImplicitGemmIndiceData,
    IndiceData,
    SparseConvTensor,
    expand_nd,
    of_dimensions,
)
from millisecond.ops.spconv.indice_data import ConvAlgo
from millisecond.ops.spconv.modules import SparseModule


class _Direct(SparseConvolution):
    """All layers but the inverse ones."""

    NDIM: int
    SUBM = TRANSPOSED = False

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Numbers,
        stride: Numbers = 1,
        padding: Numbers = 0,
        dilation: Numbers = 1,
        groups: int = 1,
        bias: bool = True,
        indice_key: Any = None,
        algo: ConvAlgo | None = None,
        fp32_accum: bool | None = None,
        *,  # spconv's two kinds of layers have these in another order
        record_voxel_count: bool = False,
        large_kernel_fast_algo: bool = False,
        name: str | None = None,
    ):
        super().__init__(
            self.NDIM,
            in_channels,
            out_channels,
            kernel_size,
            stride,
            padding,
            dilation,
            groups,
            bias,
            subm=self.SUBM,
            transposed=self.TRANSPOSED,
            indice_key=indice_key,
            algo=algo,
            fp32_accum=fp32_accum,
            record_voxel_count=record_voxel_count,
            large_kernel_fast_algo=large_kernel_fast_algo,
            name=name,
        )


class _SubM(_Direct):
    """Outputs on the inputs' sites; stride and padding are accepted and without effect."""

    SUBM = True


class _Strided(_Direct):
    """Outputs wherever the window touches a site."""


class _Transposed(_Direct):
    """The convolution whose outputs are where a strided one has its inputs."""

    TRANSPOSED = True


class _Inverse(SparseConvolution):
    """Back to the sites, and their order, of the strided layer with this indice_key."""

    NDIM: int

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Numbers,
        indice_key: Any,
        bias: bool = True,
        algo: ConvAlgo | None = None,
        fp32_accum: bool | None = None,
        large_kernel_fast_algo: bool = False,
        name: str | None = None,
    ):
        super().__init__(
            self.NDIM,
            in_channels,
            out_channels,
            kernel_size,
            bias=bias,
            inverse=True,
            indice_key=indice_key,
            algo=algo,
            fp32_accum=fp32_accum,
            large_kernel_fast_algo=large_kernel_fast_algo,
            name=name,
        )


SubMConv1d, SubMConv2d, SubMConv3d, SubMConv4d = of_dimensions("SubMConv", _SubM)
SparseConv1d, SparseConv2d, SparseConv3d, SparseConv4d = of_dimensions("SparseConv", _Strided)
SparseConvTranspose1d, SparseConvTranspose2d, SparseConvTranspose3d, SparseConvTranspose4d = (
    of_dimensions("SparseConvTranspose", _Transposed)
)
SparseInverseConv1d, SparseInverseConv2d, SparseInverseConv3d, SparseInverseConv4d = of_dimensions(
    "SparseInverseConv", _Inverse
)
