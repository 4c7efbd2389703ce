"""Location tables and the direct convolution on the kernels of csrc/dataflow/."""

from __future__ import annotations

import torch
from torch import Tensor

from ops.cuda.bitmap import three_axes
from ops.cuda.fakes import fake
from ops.cuda.library import extension
from ops.dataflow import Locations
from ops.geometry import ConvGeometry
from ops.reference import locations as reference


def reach(coords: Tensor, geometry: ConvGeometry, out_shape: tuple[int, ...]) -> Tensor:
    """See ops.reference.locations.reach."""
    extension()
    pairs = zip(geometry, (1, 1, 0, 1), strict=True)
    window = sum((three_axes(numbers, filling) for numbers, filling in pairs), ())
    shape = three_axes(out_shape, 1)
    keys, count = torch.ops.millisecond.reach_outputs(coords.contiguous(), window, shape)
    return keys[: count.item()].sort().values  # sync: how many outputs there are


def store(sites: Tensor, cells: int | None) -> tuple[Tensor | None, Tensor]:
    """See ops.reference.locations.store."""
    extension()
    if cells is not None:
        return reference.store(sites, cells)
    return torch.ops.millisecond.hash_sites(sites)


def locate(locations: Locations) -> Tensor:
    """See ops.reference.locations.locate."""
    return torch.ops.millisecond.locate(*locations[:4])


def convolve(
    features: Tensor,
    weight: Tensor,
    locations: Locations,
    bias: Tensor | None,
    residual: Tensor | None,
    relu: bool,
) -> Tensor:
    """The direct convolution [N_out, C_out]; no gradient."""
    return torch.ops.millisecond.conv_direct(features, weight, *locations[:4], bias, residual, relu)


@fake("hash_sites")
def _hash_sites(sites):
    slots = 2
    while slots < 2 * len(sites):
        slots *= 2
    return sites.new_empty(slots), sites.new_empty(slots, dtype=torch.int32)


@fake("reach_outputs")
def _reach_outputs(coords, window, shape):
    most = len(coords)
    for kernel, stride, dilation in zip(window[:3], window[3:6], window[9:], strict=True):
        most *= -(-kernel // stride) if dilation == 1 else kernel
    return coords.new_empty(most, dtype=torch.int64), coords.new_empty(1)


@fake("locate")
def _locate(keys, rows, sites, offsets):
    return rows.new_empty(len(offsets), len(sites))


@fake("conv_direct")
def _conv_direct(features, weight, keys, rows, sites, offsets, bias, residual, relu):
    return features.new_empty(len(sites), weight.shape[2])
