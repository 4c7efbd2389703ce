"""Voxelizing in plain torch: one stable sort of the points by the linear key of their cell."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor

from ops.reference.coords import coords_of_keys


def voxelize(
    points: Tensor,
    offsets: Tensor,
    grid,
    max_points: int,
    max_voxels: int,
    capacity: int | None,
    workspace: Tensor | None,  # not needed here
) -> tuple[Tensor, Tensor, Tensor | None, Tensor]:
    """See ops.voxelize.voxelize: features, coords, count, dropped."""
    check_offsets(offsets.tolist(), len(points))  # sync: the reference is driven from the host
    finite = points.isfinite().all(dim=1)
    keys, ids = cells_of_points(points, finite, offsets, grid)
    keys, order = keys.sort(stable=True)
    ids = ids[order]

    new = torch.ones_like(keys, dtype=torch.bool)
    new[1:] = keys[1:] != keys[:-1]
    start = new.nonzero().squeeze(1)
    length = torch.diff(start, append=start.new_tensor([len(keys)]))
    kept = _seen_first(ids[start], offsets, max_voxels)
    if capacity is not None:
        kept &= kept.cumsum(0) <= capacity
    dropped = torch.stack([(~finite).sum(), (length * ~kept).sum()])
    start, length = start[kept], length[kept].clamp_(max=max_points)

    features = points[ids[start]]
    for number in range(1, int(length.max()) if len(length) else 1):
        more = (length > number).nonzero().squeeze(1)
        features[more] += points[ids[start[more] + number]]
    features /= length[:, None]
    coords = coords_of_keys(keys[start], grid.shape)
    if capacity is None:
        return features, coords, None, dropped
    count = offsets.new_tensor([len(coords)])
    spare = capacity - len(coords)
    features = torch.nn.functional.pad(features, (0, 0, 0, spare))
    return features, torch.nn.functional.pad(coords, (0, 0, 0, spare), value=-1), count, dropped


def cells_of_points(points: Tensor, finite: Tensor, offsets: Tensor, grid) -> tuple[Tensor, Tensor]:
    """Linear keys over (b, z, y, x) and indices of the points inside the grid."""
    shape = grid.shape
    lower = points.new_tensor(grid.point_range[:3])
    size = points.new_tensor(grid.voxel_size)
    cell = ((points[:, :3] - lower) / size).floor()
    limit = points.new_tensor(shape[::-1])
    inside = finite & (cell >= 0).all(dim=1) & (cell < limit).all(dim=1)
    ids = inside.nonzero().squeeze(1)
    x, y, z = cell[ids].long().unbind(dim=1)
    frame = torch.searchsorted(offsets, ids, right=True) - 1
    return ((frame * shape[0] + z) * shape[1] + y) * shape[2] + x, ids


def _seen_first(first: Tensor, offsets: Tensor, max_voxels: int) -> Tensor:
    """Which voxels are among the first max_voxels of their frame; first [N]: their first points."""
    by_point, order = first.sort()
    rank = torch.arange(len(first), device=first.device)
    frame = torch.searchsorted(offsets, by_point, right=True)
    rank -= torch.searchsorted(by_point, offsets.long())[frame - 1]
    kept = torch.empty_like(first, dtype=torch.bool)
    kept[order] = rank < max_voxels
    return kept


def check_offsets(offsets: list[int], points: int) -> None:
    """ValueError unless they rise from 0 to the number of points."""
    steps = pairwise(offsets)
    if offsets[0] != 0 or offsets[-1] != points or any(b < a for a, b in steps):
        raise ValueError(f"offsets: expected to rise from 0 to {points} points, got {offsets}")
