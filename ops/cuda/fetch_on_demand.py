"""Fetch on demand: the products of an offset read the rows of its pairs where they stand."""

from __future__ import annotations

from torch import Tensor

from ops.cuda import pairs as kernels
from ops.dataflow import Pairs


def convolve(
    features: Tensor,  # [N_in, C_in]
    weight: Tensor,  # [V, C_in, C_out]
    pairs: Pairs,
    bias: Tensor | None,
    residual: Tensor | None,
    relu: bool,
    tf32: bool,
) -> Tensor:  # [N_out, C_out]
    rest = bias, residual, relu, tf32
    if pairs.single:
        return kernels.fetch_rows(features, weight, pairs, *rest)
    centre = pairs.centre
    products = kernels.fetch_products(features, weight, pairs, centre, tf32)
    if centre is not None:
        return kernels.conv_centre(features, weight, products, pairs, centre, *rest)
    dtype = features.dtype
    return kernels.add_products(products, pairs, [], [], dtype, bias, residual, relu)
