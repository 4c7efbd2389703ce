"""Location tables: how rows find their neighbours without a kernel map, and kernel maps by them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from math import prod

import torch
from torch import Tensor
from torch.nn.functional import pad

from ops.cuda import locations as cuda
from ops.dataflow import LocationMap, Locations
from ops.dispatch import on_kernels
from ops.geometry import ConvGeometry, per_axis
from ops.reference import locations as reference
from ops.reference.coords import check_coords, coords_of_keys, linear_keys
from ops.rulebook import KernelMap, Table

MOST_CELLS = 1 << 30  # of an array: 4 GiB


def location_map(
    coords: Tensor,  # [N_in, 1 + D] int32
    spatial_shape: Sequence[int],
    batch_size: int,
    geometry: ConvGeometry,
    out_coords: Tensor,  # [N_out, 1 + D] int32
    table: str = "hash",
) -> LocationMap:
    """What the direct dataflow takes: inputs at `coords`, outputs at `out_coords` (the coords
    themselves for a submanifold convolution, whose padding is dilation * (kernel // 2)).

    table: array, 4 bytes per cell of the grid, or hash, at least 24 per site. Coords are sorted and
    unique, else ValueError; on a GPU the host waits for that check.
    """
    if table not in ("array", "hash"):
        raise ValueError(f"table: {table!r} is neither array nor hash")
    shape = per_axis("spatial_shape", spatial_shape, len(spatial_shape), least=1)
    geometry = ConvGeometry.of(*geometry, dims=len(shape))
    check_coords(coords, shape, batch_size)  # sync: an unsorted row is the caller's mistake
    check_coords(out_coords, geometry.output_shape(shape), batch_size)
    kernel, stride, padding, dilation = geometry
    padded = [n + 2 * p for n, p in zip(shape, padding, strict=True)]
    cells = batch_size * prod(padded)
    if table == "array" and cells > MOST_CELLS:
        raise ValueError(f"table: an array of {cells} cells takes more than 4 GiB; say hash")
    inputs = linear_keys(coords + coords.new_tensor([0, *padding]), padded)
    outputs = linear_keys(out_coords * coords.new_tensor([1, *stride]), padded)
    steps = coords.new_tensor(list(product(*map(range, kernel)))) * coords.new_tensor(dilation)
    offsets = linear_keys(pad(steps, (1, 0)), padded)
    # No key is another cell's: windows lie inside of the padded grid, and what an input less an
    # offset wraps to, where it is negative on an axis, is a cell where no window begins.
    backend = cuda if on_kernels(coords) else reference
    size = cells if table == "array" else None
    keys, rows = backend.store(inputs, size)
    forward = Locations(keys, rows, outputs, offsets, len(inputs))
    keys, rows = backend.store(outputs, size)
    return LocationMap(forward, Locations(keys, rows, inputs, -offsets, len(outputs)))


def kernel_map(locations: LocationMap) -> KernelMap:
    """Both tables of neighbours, each filled by a search in the location table."""
    backend = cuda if on_kernels(locations.forward.rows) else reference
    return KernelMap(*(Table(backend.locate(side)) for side in locations))


def output_sites(
    coords: Tensor,  # [N, 1 + D] int32
    spatial_shape: Sequence[int],
    batch_size: int,
    geometry: ConvGeometry,
) -> tuple[Tensor, tuple[int, ...]]:
    """Outputs of a strided convolution [M, 1 + D] int32, sorted, and their grid: those of
    `strided_map`, found by a hash (fused downsampling of TorchSparse) where that has a bitmap."""
    shape = per_axis("spatial_shape", spatial_shape, len(spatial_shape), least=1)
    check_coords(coords, shape, batch_size)  # sync: an unsorted row is the caller's mistake
    geometry = ConvGeometry.of(*geometry, dims=len(shape))
    out_shape = geometry.output_shape(shape)
    backend = cuda if on_kernels(coords) else reference
    return coords_of_keys(backend.reach(coords, geometry, out_shape), out_shape), out_shape


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
