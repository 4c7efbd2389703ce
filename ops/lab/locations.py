"""Location tables: rows find neighbours in them without a kernel map; also kernel maps from them.

A location table gives the row of a cell. An offset table gives how far the cells of a window are
from its first cell (Luo and Lai, arXiv:2402.07710). The kernels are in csrc/locations.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from math import prod
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from millisecond.ops.dispatch import on_kernels
from millisecond.ops.geometry import (
    ConvGeometry,
    check_cells,
    check_coords,
    coords_of_keys,
    grid_of,
    linear_keys,
    same_device,
)
from millisecond.ops.kernel_map import three_axes
from millisecond.ops.lab.library import extension, fake
from millisecond.ops.rulebook import KernelMap, Table

MOST_CELLS = 1 << 30  # of an array: 4 GiB


class Locations(NamedTuple):
    """Where the rows of a convolution look for their sources (location and offset table of Luo and
    Lai, 2024). A site's key is the number of its cell in the inputs' grid with its padding."""

    keys: Tensor | None  # [slots] int64 of a hash table, -1 = empty; None: an array of all cells
    rows: Tensor  # [slots] int32: row of the site with that key; [cells] of the array, -1 = none
    sites: Tensor  # [N] int64: the key of offset 0 of each row
    offsets: Tensor  # [V] int64: from there to the other offsets
    sources: int  # rows that may be found


class LocationMap(NamedTuple):
    """Takes the place of a kernel map in the direct dataflow."""

    forward: Locations
    backward: Locations

    def reversed(self) -> LocationMap:
        """The map of the inverse convolution."""
        return LocationMap(self.backward, self.forward)


def location_map(
    coords: Tensor,  # [N_in, 1 + D] int32
    spatial_shape: Sequence[int],
    batch_size: int,
    geometry: ConvGeometry,
    out_coords: Tensor,  # [N_out, 1 + D] int32
    table: str = "hash",
) -> LocationMap:
    """The input of the direct dataflow: inputs at `coords`, outputs at `out_coords` (the coords
    themselves for a submanifold convolution, whose padding is dilation * (kernel // 2)).

    table: array, 4 bytes per cell of the grid, or hash, at least 24 per site. Coords are sorted and
    unique, else ValueError; on a GPU the host waits for that check.
    """
    if table not in ("array", "hash"):
        raise ValueError(f"table: {table!r} is neither array nor hash")
    shape = grid_of(spatial_shape)
    geometry = ConvGeometry.of(*geometry, dims=len(shape))
    kernel, stride, padding, dilation = geometry
    padded = [n + 2 * p for n, p in zip(shape, padding, strict=True)]
    out_shape = geometry.output_shape(shape)
    check_cells(batch_size, [shape, padded, out_shape])
    same_device(coords=coords, out_coords=out_coords)
    check_coords(coords, shape, batch_size)  # sync: an unsorted row is the caller's mistake
    check_coords(out_coords, out_shape, batch_size)
    cells = batch_size * prod(padded)
    if table == "array" and cells > MOST_CELLS:
        raise ValueError(f"table: an array of {cells} cells takes more than 4 GiB; say hash")
    inputs = linear_keys(coords + coords.new_tensor([0, *padding]), padded)
    outputs = linear_keys(out_coords * coords.new_tensor([1, *stride]), padded)
    steps = coords.new_tensor(list(product(*map(range, kernel)))) * coords.new_tensor(dilation)
    offsets = linear_keys(pad(steps, (1, 0)), padded)
    # Two cells never share a key, since windows lie inside of the padded grid. An input less an
    # offset may be negative on an axis. Then its key wraps to a cell where no window begins.
    size = cells if table == "array" else None
    forward = Locations(*store(inputs, size), outputs, offsets, len(inputs))
    return LocationMap(forward, Locations(*store(outputs, size), inputs, -offsets, len(outputs)))


def kernel_map(locations: LocationMap) -> KernelMap:
    """Both tables of neighbours, each filled by a search in the location table."""
    return KernelMap(*(Table(locate(side)) for side in locations))


def output_sites(
    coords: Tensor,  # [N, 1 + D] int32
    spatial_shape: Sequence[int],
    batch_size: int,
    geometry: ConvGeometry,
) -> tuple[Tensor, tuple[int, ...]]:
    """Outputs of a strided convolution [M, 1 + D] int32, sorted, and their grid. They equal the
    outputs of `strided_map`, but a hash finds them (fused downsampling of TorchSparse) and not a
    bitmap."""
    shape = grid_of(spatial_shape)
    geometry = ConvGeometry.of(*geometry, dims=len(shape))
    out_shape = geometry.output_shape(shape)
    check_cells(batch_size, [shape, out_shape])
    check_coords(coords, shape, batch_size)  # sync: an unsorted row is the caller's mistake
    return coords_of_keys(reach(coords, geometry, out_shape), out_shape), out_shape


def reach(coords: Tensor, geometry: ConvGeometry, out_shape: tuple[int, ...]) -> Tensor:
    """Keys [M] int64, ascending, of the outputs in whose windows the rows of coords are."""
    if not on_kernels(coords):
        return reach_definition(coords, geometry, out_shape)
    extension()
    pairs = zip(geometry, (1, 1, 0, 1), strict=True)
    window = sum((three_axes(numbers, filling) for numbers, filling in pairs), ())
    shape = three_axes(out_shape, 1)
    keys, count = torch.ops.millisecond_lab.reach_outputs(coords.contiguous(), window, shape)
    return keys[: count.item()].sort().values  # sync: how many outputs there are


def reach_definition(coords: Tensor, geometry: ConvGeometry, out_shape: tuple[int, ...]) -> Tensor:
    """`reach` in plain torch."""
    _, stride, padding, dilation = map(coords.new_tensor, geometry)
    steps = coords.new_tensor(list(product(*map(range, geometry.kernel_size))))
    start = coords[:, None, 1:] + padding - steps * dilation
    site = torch.div(start, stride, rounding_mode="floor")
    valid = (start >= 0) & (start % stride == 0) & (site < coords.new_tensor(out_shape))
    batch = coords[:, None, :1].expand(-1, len(steps), -1)
    found = torch.cat([batch, site], 2)[valid.all(2)]
    return torch.unique(linear_keys(found, out_shape))


@fake("reach_outputs")
def _fake_reach_outputs(coords, window, shape):
    most = len(coords)
    for kernel, stride, dilation in zip(window[:3], window[3:6], window[9:], strict=True):
        most *= -(-kernel // stride) if dilation == 1 else kernel
    return coords.new_empty(most, dtype=torch.int64), coords.new_empty(1)


def store(sites: Tensor, cells: int | None) -> tuple[Tensor | None, Tensor]:
    """sites [N] int64, ascending -> keys and rows of `Locations`: an array of so many cells, or a
    hash of the keys."""
    if cells is not None or not on_kernels(sites):
        return store_definition(sites, cells)
    extension()
    return torch.ops.millisecond_lab.hash_sites(sites)


def store_definition(sites: Tensor, cells: int | None) -> tuple[Tensor | None, Tensor]:
    """`store` in plain torch; the sorted keys themselves replace the hash."""
    rows = torch.arange(len(sites), dtype=torch.int32, device=sites.device)
    if cells is None:
        return sites, rows
    array = rows.new_full((cells,), -1)
    array[sites] = rows
    return None, array


@fake("hash_sites")
def _fake_hash_sites(sites):
    slots = 2
    while slots < 2 * len(sites):
        slots *= 2
    return sites.new_empty(slots), sites.new_empty(slots, dtype=torch.int32)


def locate(locations: Locations) -> Tensor:
    """[V, N] int32: the row that stands where each offset of each row looks, -1 = none."""
    if not on_kernels(locations.rows):
        return locate_definition(locations)
    extension()
    return torch.ops.millisecond_lab.locate(*locations[:4])


def locate_definition(locations: Locations) -> Tensor:
    """`locate` in plain torch, on a table of `store_definition`."""
    wanted = locations.sites + locations.offsets[:, None]
    keys, rows = locations.keys, locations.rows
    if len(rows) == 0:
        return torch.full_like(wanted, -1, dtype=torch.int32)
    if keys is None:
        inside = (wanted >= 0) & (wanted < len(rows))
        return torch.where(inside, rows[wanted.clamp(0, len(rows) - 1)], -1)
    at = torch.searchsorted(keys, wanted).clamp(max=len(keys) - 1)
    return torch.where(keys[at] == wanted, rows[at], -1)


@fake("locate")
def _fake_locate(keys, rows, sites, offsets):
    return rows.new_empty(len(offsets), len(sites))


def conv_direct(
    features: Tensor,
    weight: Tensor,
    locations: Locations,
    bias: Tensor | None,
    residual: Tensor | None,
    relu: bool,
) -> Tensor:
    """The direct convolution [N_out, C_out] on the kernels; no gradient."""
    return torch.ops.millisecond_lab.conv_direct(
        features, weight, *locations[:4], bias, residual, relu
    )


@fake("conv_direct")
def _fake_conv_direct(features, weight, keys, rows, sites, offsets, bias, residual, relu):
    return features.new_empty(len(sites), weight.shape[2])


def check_direct(features: Tensor, weight: Tensor, locations: LocationMap) -> None:
    """ValueError unless features [N_in, C_in] and weight [V, C_in, C_out] fit the map."""
    rows, offsets = locations.forward.sources, len(locations.forward.offsets)
    if features.ndim != 2 or len(features) != rows:
        raise ValueError(f"features: expected {rows} rows, got {list(features.shape)}")
    if weight.ndim != 3 or weight.shape[:2] != (offsets, features.shape[1]):
        raise ValueError(
            f"weight: expected [{offsets}, {features.shape[1]}, C_out], got {list(weight.shape)}"
        )
    if weight.dtype != features.dtype:
        raise ValueError(f"weight: {weight.dtype}, features are {features.dtype}")
    for name, tensor in (("kernel_map", locations.forward.rows), ("weight", weight)):
        if tensor.device != features.device:
            raise ValueError(f"{name}: on {tensor.device}, features on {features.device}")
    if not torch.is_floating_point(features):
        raise ValueError(f"features: expected a floating dtype, got {features.dtype}")
