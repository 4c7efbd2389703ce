"""`spconv.pytorch.ops`: the sizes of grids, and the pairs of rows of a layer.

The kernels behind the layers are in `ops` itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from millisecond.ops.geometry import ConvGeometry, per_axis
from millisecond.ops.sites import sites_of, transposed_shape
from millisecond.ops.spconv.core import ConvAlgo, check_indices, whole_numbers
from millisecond.ops.spconv.indice_data import SharedMap

__all__ = [
    "ConvAlgo",
    "get_conv_output_size",
    "get_deconv_output_size",
    "get_indice_pairs",
    "get_indice_pairs_implicit_gemm",
]
Numbers = int | Sequence[int]


def get_conv_output_size(
    input_size: Sequence[int],
    kernel_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
) -> list[int]:
    """The grid of a strided convolution."""
    shape = whole_numbers(input_size)
    geometry = _geometry(len(shape), (kernel_size, stride, padding, dilation))
    return list(geometry.output_shape(shape))


def get_deconv_output_size(
    input_size: Sequence[int],
    kernel_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    output_padding: Sequence[int],
) -> list[int]:
    """The grid of a transposed convolution."""
    shape = whole_numbers(input_size)
    geometry = _geometry(len(shape), (kernel_size, stride, padding, dilation))
    more = per_axis("output_padding", _plain(output_padding), len(shape), least=0)
    return list(transposed_shape(shape, geometry, more))


def get_indice_pairs(
    indices: Tensor,  # [N_in, 1 + D] int32
    batch_size: int,
    spatial_shape: Sequence[int],
    algo: ConvAlgo,
    ksize: Numbers,
    stride: Numbers,
    padding: Numbers,
    dilation: Numbers,
    out_padding: Numbers,
    subm: bool = False,
    transpose: bool = False,
    num_out_act_bound: int = -1,
) -> tuple[Tensor, Tensor, Tensor]:
    """A convolution's output sites [N_out, 1 + D], and its pairs: see `SharedMap`, indice_pairs
    [2, V, N_in] and indice_pair_num [V]. num_out_act_bound has no effect."""
    window = ksize, stride, padding, dilation
    data = _pairs(indices, batch_size, spatial_shape, window, out_padding, subm, transpose)
    return data.out_indices, data.indice_pairs, data.indice_pair_num


def get_indice_pairs_implicit_gemm(
    indices: Tensor,  # [N_in, 1 + D] int32
    batch_size: int,
    spatial_shape: Sequence[int],
    algo: ConvAlgo,
    ksize: Numbers,
    stride: Numbers,
    padding: Numbers,
    dilation: Numbers,
    out_padding: Numbers,
    subm: bool = False,
    transpose: bool = False,
    is_train: bool = True,
    alloc: Any = None,
    timer: Any = None,
    num_out_act_bound: int = -1,
    direct_table: bool = True,
    do_sort: bool = True,
) -> tuple:
    """The same as tables: output sites, pairs of each offset [V], pair_fwd [V, N_out] and pair_bwd
    [V, N_in] of `SharedMap`. Behind them five empty lists, where spconv 2 has the masks of its
    kernels. What comes after `transpose` has no effect."""
    window = ksize, stride, padding, dilation
    data = _pairs(indices, batch_size, spatial_shape, window, out_padding, subm, transpose)
    tables = data.out_indices, data.indice_pair_num, data.pair_fwd, data.pair_bwd
    return *tables, [], [], [], [], []


def _pairs(
    indices: Tensor,
    batch_size: int,
    spatial_shape: Sequence[int],
    window: Sequence[Numbers],
    out_padding: Numbers,
    subm: bool,
    transpose: bool,
) -> SharedMap:
    shape = whole_numbers(spatial_shape)
    check_indices(indices, shape, batch_size)
    geometry = _geometry(len(shape), window)
    sites = sites_of(indices, shape, batch_size)
    more = None
    if transpose and not subm:
        more = per_axis("out_padding", _plain(out_padding), len(shape), least=0)
    return SharedMap.on(sites, geometry, subm, more)


def _geometry(ndim: int, window: Sequence[Numbers]) -> ConvGeometry:
    """Of kernel size, stride, padding and dilation; ValueError where one is out of its range."""
    kernel, stride, padding, dilation = map(_plain, window)
    return ConvGeometry.of(kernel, stride, padding, dilation, ndim)


def _plain(numbers: Numbers) -> Numbers:
    return numbers if isinstance(numbers, int) else whole_numbers(numbers)
