"""The naive sparse convolution on CUDA, see csrc/conv/naive.cu: the first rung of the ladder.

It needs no kernel map: it finds neighbours in a table of all cells, of 4 bytes each (a KITTI grid
has 92 million). It is here to be read, and to be compared with; no network uses it.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from math import prod
from typing import NamedTuple

import torch
from torch import Tensor

from ops.cuda.fakes import fake
from ops.cuda.library import extension
from ops.reference.coords import linear_keys


class Tables(NamedTuple):
    """Where a convolution finds its inputs: location and offset table of Luo and Lai, 2024."""

    locations: Tensor  # [cells] int32: row of the site in a cell of the padded grids, -1 = none
    offsets: Tensor  # [V] int64: cells from the first cell of a window to that of each offset
    sites: Tensor  # [N_out] int64: first cell of each output's window


def tables(
    coords: Tensor,  # [N_in, 1 + D] int32
    spatial_shape: Sequence[int],
    batch_size: int,
    geometry,  # ConvGeometry
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
    """As ops.reference.naive.sparse_conv; no gradient."""
    extension()
    return torch.ops.millisecond.conv_naive(
        features.detach().contiguous(), weight.detach().contiguous(), *found
    )


@fake("conv_naive")
def _conv_naive(features, weight, locations, offsets, sites) -> Tensor:
    return features.new_empty(sites.shape[0], weight.shape[2])
