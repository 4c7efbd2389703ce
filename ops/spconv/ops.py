"""`spconv.pytorch.ops`: the sizes of grids. The kernels behind the layers are in `ops` itself."""

from __future__ import annotations

from collections.abc import Sequence

from ops.geometry import ConvGeometry
from ops.spconv.core import ConvAlgo
from ops.spconv.transposed import transposed_shape

__all__ = ["ConvAlgo", "get_conv_output_size", "get_deconv_output_size"]


def get_conv_output_size(
    input_size: Sequence[int],
    kernel_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
) -> list[int]:
    """The grid of a strided convolution."""
    numbers = kernel_size, stride, padding, dilation
    geometry = ConvGeometry(*(tuple(number) for number in numbers))
    return list(geometry.output_shape(input_size))


def get_deconv_output_size(
    input_size: Sequence[int],
    kernel_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    output_padding: Sequence[int],
) -> list[int]:
    """The grid of a transposed convolution."""
    numbers = kernel_size, stride, padding, dilation
    geometry = ConvGeometry(*(tuple(number) for number in numbers))
    return list(transposed_shape(input_size, geometry, output_padding))
