"""The first rungs of the ladder: the definition of a sparse convolution in eight lines of Python,
and the naive kernel (csrc/naive/naive.cu).

The kernel needs no kernel map: it finds neighbours in a table of all cells, of 4 bytes each (a
KITTI grid has 92 million). Both are here to be read, and to be compared with; no network uses them.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from math import prod
from typing import NamedTuple

import torch
from torch import Tensor

from millisecond.ops.geometry import ConvGeometry, linear_keys
from millisecond.ops.lab.library import extension, fake


def definition(
    features: Tensor,  # [N_in, C_in]
    coords: Tensor,  # [N_in, 1 + D] int32, the active sites
    weight: Tensor,  # [V, C_in, C_out], offsets in C order
    geometry: ConvGeometry,  # input = output * stride - padding + offset * dilation
    out_coords: Tensor,  # [N_out, 1 + D] int32, the sites that are asked for
) -> Tensor:  # [N_out, C_out]
    """Every output site adds up the products of its window, in any order of rows. Slow, and
    short."""
    row_of = {tuple(site): row for row, site in enumerate(coords.tolist())}
    out = features.new_zeros(len(out_coords), weight.shape[2])
    for n, (b, *site) in enumerate(out_coords.tolist()):
        for v, offset in enumerate(product(*map(range, geometry.kernel_size))):
            axes = zip(site, offset, *geometry[1:], strict=True)
            source = (b, *(i * stride - pad + o * dilation for i, o, stride, pad, dilation in axes))
            if source in row_of:
                out[n] += features[row_of[source]] @ weight[v]
    return out


class Tables(NamedTuple):
    """Where a convolution finds its inputs: location and offset table of Luo and Lai, 2024."""

    locations: Tensor  # [cells] int32: row of the site in a cell of the padded grids, -1 = none
    offsets: Tensor  # [V] int64: cells from the window's first cell to the cell of each offset
    sites: Tensor  # [N_out] int64: first cell of each output's window


def tables(
    coords: Tensor,  # [N_in, 1 + D] int32
    spatial_shape: Sequence[int],
    batch_size: int,
    geometry: ConvGeometry,
    out_coords: Tensor,  # [N_out, 1 + D] int32
) -> Tables:
    """The grid gets its padding on all sides, so that no window ends outside of it."""
    kernel, stride, padding, dilation = geometry
    shape = [n + 2 * p for n, p in zip(spatial_shape, padding, strict=True)]
    cells = linear_keys(coords + coords.new_tensor([0, *padding]), shape)
    locations = coords.new_full((batch_size * prod(shape),), -1)
    locations[cells] = torch.arange(len(coords), dtype=torch.int32, device=coords.device)
    steps = coords.new_tensor(list(product(*map(range, kernel)))) * coords.new_tensor(dilation)
    offsets = linear_keys(torch.nn.functional.pad(steps, (1, 0)), shape)
    sites = linear_keys(out_coords * coords.new_tensor([1, *stride]), shape)
    return Tables(locations, offsets, sites)


def sparse_conv(
    features: Tensor,  # [N_in, C_in] float32
    weight: Tensor,  # [V, C_in, C_out] float32
    found: Tables,
) -> Tensor:  # [N_out, C_out]
    """As `definition`, on a GPU; no gradient."""
    extension()
    return torch.ops.millisecond_lab.conv_naive(
        features.detach().contiguous(), weight.detach().contiguous(), *found
    )


@fake("conv_naive")
def _fake_conv_naive(features, weight, locations, offsets, sites) -> Tensor:
    return features.new_empty(sites.shape[0], weight.shape[2])
