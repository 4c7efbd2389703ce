"""Sparse convolution in eight lines of plain Python: the definition of all others."""

from __future__ import annotations

from itertools import product

from torch import Tensor


def sparse_conv(
    features: Tensor,  # [N_in, C_in]
    coords: Tensor,  # [N_in, 1 + D] int32, the active sites
    weight: Tensor,  # [V, C_in, C_out], offsets in C order
    geometry,  # ConvGeometry: input = output * stride - padding + offset * dilation
    out_coords: Tensor,  # [N_out, 1 + D] int32, the sites that are asked for
) -> Tensor:  # [N_out, C_out]
    """Every output site adds up what its window finds, in any order of rows. Slow, and short."""
    row_of = {tuple(site): row for row, site in enumerate(coords.tolist())}
    out = features.new_zeros(len(out_coords), weight.shape[2])
    for n, (b, *site) in enumerate(out_coords.tolist()):
        for v, offset in enumerate(product(*map(range, geometry.kernel_size))):
            axes = zip(site, offset, *geometry[1:], strict=True)
            source = (b, *(i * stride - pad + o * dilation for i, o, stride, pad, dilation in axes))
            if source in row_of:
                out[n] += features[row_of[source]] @ weight[v]
    return out
