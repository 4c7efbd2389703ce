"""The sparse convolutions of spconv 2: same names, arguments and state dicts."""

from __future__ import annotations

from typing import Any

from millisecond.ops.spconv.convolution import Numbers, SparseConvolution
from millisecond.ops.spconv.indice_data import ConvAlgo


class _SubM(SparseConvolution):
    """Outputs on the inputs' sites; stride and padding are accepted and without effect."""

    NDIM = 0

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
            subm=True,
            indice_key=indice_key,
            algo=algo,
            fp32_accum=fp32_accum,
            large_kernel_fast_algo=large_kernel_fast_algo,
            name=name,
        )


class _Strided(SparseConvolution):
    """Outputs wherever the window touches a site."""

    NDIM = 0
    TRANSPOSED = False

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
            transposed=self.TRANSPOSED,
            indice_key=indice_key,
            algo=algo,
            fp32_accum=fp32_accum,
            large_kernel_fast_algo=large_kernel_fast_algo,
            record_voxel_count=record_voxel_count,
            name=name,
        )


class _Inverse(SparseConvolution):
    """Back to the sites, and their order, of the strided layer with this indice_key."""

    NDIM = 0

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


class SubMConv1d(_SubM):
    NDIM = 1


class SubMConv2d(_SubM):
    NDIM = 2


class SubMConv3d(_SubM):
    NDIM = 3


class SubMConv4d(_SubM):
    NDIM = 4


class SparseConv1d(_Strided):
    NDIM = 1


class SparseConv2d(_Strided):
    NDIM = 2


class SparseConv3d(_Strided):
    NDIM = 3


class SparseConv4d(_Strided):
    NDIM = 4


class SparseConvTranspose1d(_Strided):
    NDIM, TRANSPOSED = 1, True


class SparseConvTranspose2d(_Strided):
    NDIM, TRANSPOSED = 2, True


class SparseConvTranspose3d(_Strided):
    NDIM, TRANSPOSED = 3, True


class SparseConvTranspose4d(_Strided):
    NDIM, TRANSPOSED = 4, True


class SparseInverseConv1d(_Inverse):
    NDIM = 1


class SparseInverseConv2d(_Inverse):
    NDIM = 2


class SparseInverseConv3d(_Inverse):
    NDIM = 3


class SparseInverseConv4d(_Inverse):
    NDIM = 4
