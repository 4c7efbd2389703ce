"""Location tables and the direct convolution on the kernels of csrc/dataflow/."""

from __future__ import annotations

import torch
from torch import Tensor

from ops.cuda.fakes import fake
from ops.cuda.library import extension
from ops.dataflow import Locations
from ops.reference import locations as reference


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


@fake("locate")
def _locate(keys, rows, sites, offsets):
    return rows.new_empty(len(offsets), len(sites))


@fake("conv_direct")
def _conv_direct(features, weight, keys, rows, sites, offsets, bias, residual, relu):
    return features.new_empty(len(sites), weight.shape[2])
