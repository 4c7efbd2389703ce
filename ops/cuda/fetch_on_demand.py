"""Fetch on demand: the products of an offset read the rows of its pairs where they stand."""

from __future__ import annotations

from torch import Tensor

from ops.cuda import pairs as kernels
from ops.dataflow import Pairs

CENTRE_OFFSETS = 32  # of a kernel that conv_centre takes: pairs.h


def convolve(
    features: Tensor,  # [N_in, C_in]
    weight: Tensor,  # [V, C_in, C_out]
    pairs: Pairs,
    bias: Tensor | None,
    residual: Tensor | None,
    relu: bool,
    tf32: bool,
) -> Tensor:  # [N_out, C_out]
    centre = pairs.centre if len(weight) <= CENTRE_OFFSETS else None
    products = kernels.fetch_products(features, weight, pairs, centre, tf32)
    if centre is not None:
        rest = bias, residual, relu, tf32
        return kernels.conv_centre(features, weight, products, pairs, centre, *rest)
    return kernels.add_products(products, pairs, [], [], features.dtype, bias, residual, relu)
