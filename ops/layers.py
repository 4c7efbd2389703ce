"""nn.Module layers over sparse tensors; the kernel map is passed by hand.

A layer's `dataflow` says how a GPU computes it: a `Dataflow`, what was measured to be the fastest
(`Tuned`), or None for the implicit GEMM.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ops.dataflow import LocationMap, PairMap
from ops.geometry import ConvGeometry, per_axis, submanifold_window
from ops.max_pool import sparse_max_pool
from ops.rulebook import KernelMap
from ops.sparse_conv import sparse_conv
from ops.sparse_tensor import SparseTensor
from ops.tuned import Tunable, product_type

Map = KernelMap | PairMap | LocationMap


class Conv(Tunable, nn.Module):
    """What all convolutions share."""

    KIND = ""  # in ops.tuned.KINDS

    def __init__(
        self, in_channels: int, out_channels: int, kernel_size: tuple[int, ...], bias: bool
    ) -> None:
        super().__init__()
        self.kernel_size = kernel_size
        self.weight = nn.Parameter(torch.empty(math.prod(kernel_size), in_channels, out_channels))
        self.bias = nn.Parameter(torch.empty(out_channels)) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """As torch's dense convolutions: Kaiming uniform with a = sqrt(5), fan in = V * C_in."""
        bound = 1 / math.sqrt(self.weight.shape[0] * self.weight.shape[1])
        nn.init.uniform_(self.weight, -bound, bound)
        if self.bias is not None:
            nn.init.uniform_(self.bias, -bound, bound)

    def convolve(self, features: Tensor, kernel_map: Map) -> Tensor:
        """[N_in, C_in] -> [N_out, C_out]."""
        dataflow = None
        if not isinstance(kernel_map, LocationMap):  # there is one dataflow for it
            dataflow = self.chosen(self.KIND, self.weight.shape, product_type(features), kernel_map)
        return sparse_conv(features, self.weight, kernel_map, self.bias, dataflow=dataflow)

    def extra_repr(self) -> str:
        _, in_channels, out_channels = self.weight.shape
        return f"{in_channels}, {out_channels}, kernel_size={self.kernel_size}"


class SubmanifoldConv(Conv):
    """Outputs on the inputs' sites; takes the map of `submanifold_map`."""

    KIND = "submanifold"

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | Sequence[int] = 3,
        dilation: int | Sequence[int] = 1,
        bias: bool = False,
        dims: int = 3,
    ) -> None:
        kernel, dilation = submanifold_window(kernel_size, dilation, dims)
        super().__init__(in_channels, out_channels, kernel, bias)
        self.dilation = dilation

    def forward(self, x: SparseTensor, kernel_map: Map) -> SparseTensor:
        return x.replace(self.convolve(x.features, kernel_map))


class StridedConv(Conv):
    """Outputs wherever the window touches an input: `conv(x, *strided_map(..., conv.geometry))`."""

    KIND = "strided"

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | Sequence[int],
        stride: int | Sequence[int] = 1,
        padding: int | Sequence[int] = 0,
        dilation: int | Sequence[int] = 1,
        bias: bool = False,
        dims: int = 3,
    ) -> None:
        geometry = ConvGeometry.of(kernel_size, stride, padding, dilation, dims)
        super().__init__(in_channels, out_channels, geometry.kernel_size, bias)
        self.geometry = geometry

    def forward(
        self, x: SparseTensor, coords: Tensor, shape: tuple[int, ...], kernel_map: Map
    ) -> SparseTensor:
        features = self.convolve(x.features, kernel_map)
        return SparseTensor(features, coords, shape, x.batch_size)


class InverseConv(Conv):
    """Back to the sites a strided convolution came from; takes that convolution's map."""

    KIND = "inverse"

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | Sequence[int],
        bias: bool = False,
        dims: int = 3,
    ) -> None:
        kernel = per_axis("kernel_size", kernel_size, dims, least=1)
        super().__init__(in_channels, out_channels, kernel, bias)

    def forward(self, x: SparseTensor, like: SparseTensor, kernel_map: Map) -> SparseTensor:
        """`like` holds the sites of the output: the input of the strided convolution."""
        features = self.convolve(x.features, kernel_map.reversed())
        return like.replace(features)


class SparseMaxPool(nn.Module):
    """Largest existing input of each window; called as `StridedConv`."""

    def __init__(
        self,
        kernel_size: int | Sequence[int],
        stride: int | Sequence[int] | None = None,
        padding: int | Sequence[int] = 0,
        dilation: int | Sequence[int] = 1,
        dims: int = 3,
    ) -> None:
        super().__init__()
        stride = kernel_size if stride is None else stride
        self.geometry = ConvGeometry.of(kernel_size, stride, padding, dilation, dims)

    def forward(
        self, x: SparseTensor, coords: Tensor, shape: tuple[int, ...], kernel_map: KernelMap
    ) -> SparseTensor:
        return SparseTensor(sparse_max_pool(x.features, kernel_map), coords, shape, x.batch_size)
