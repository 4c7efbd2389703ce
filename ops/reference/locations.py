"""Location tables in plain torch; a hash is stood in for by the sorted keys themselves."""

from __future__ import annotations

import torch
from torch import Tensor

from ops.dataflow import Locations


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
