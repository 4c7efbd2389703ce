"""Location tables in plain torch; a hash is stood in for by the sorted keys themselves."""

from __future__ import annotations

from itertools import product

import torch
from torch import Tensor

from ops.dataflow import Locations
from ops.geometry import ConvGeometry
from ops.reference.coords import linear_keys


def reach(coords: Tensor, geometry: ConvGeometry, out_shape: tuple[int, ...]) -> Tensor:
    """Keys [M] int64, ascending, of the outputs in whose windows the rows of coords are."""
    _, stride, padding, dilation = map(coords.new_tensor, geometry)
    steps = coords.new_tensor(list(product(*map(range, geometry.kernel_size))))
    start = coords[:, None, 1:] + padding - steps * dilation
    site = torch.div(start, stride, rounding_mode="floor")
    valid = (start >= 0) & (start % stride == 0) & (site < coords.new_tensor(out_shape))
    batch = coords[:, None, :1].expand(-1, len(steps), -1)
    found = torch.cat([batch, site], 2)[valid.all(2)]
    return torch.unique(linear_keys(found, out_shape))


def store(sites: Tensor, cells: int | None) -> tuple[Tensor | None, Tensor]:
    """sites [N] int64, ascending -> keys and rows of `Locations`: an array of so many cells, or a
    table of the keys."""
    rows = torch.arange(len(sites), dtype=torch.int32, device=sites.device)
    if cells is None:
        return sites, rows
    array = rows.new_full((cells,), -1)
    array[sites] = rows
    return None, array


def locate(locations: Locations) -> Tensor:
    """[V, N] int32: the row that stands where each offset of each row looks, -1 = none."""
    wanted = locations.sites + locations.offsets[:, None]
    keys, rows = locations.keys, locations.rows
    if len(rows) == 0:
        return torch.full_like(wanted, -1, dtype=torch.int32)
    if keys is None:
        inside = (wanted >= 0) & (wanted < len(rows))
        return torch.where(inside, rows[wanted.clamp(0, len(rows) - 1)], -1)
    at = torch.searchsorted(keys, wanted).clamp(max=len(keys) - 1)
    return torch.where(keys[at] == wanted, rows[at], -1)
