"""The index of a network: all levels at once are the maps one by one, padded or cut."""

import pytest
import torch

from millisecond.ops import KernelMap, Table, index_pyramid, strided_map, submanifold_map
from tests.helpers.dense_oracle import random_sites
from tests.helpers.levels import KITTI, SECOND


def assert_same_map(one: KernelMap | None, other: KernelMap | None):
    assert (one is None) == (other is None)
    for a, b in zip(one or (), other or (), strict=True):
        assert torch.equal(a.neighbours, b.neighbours) and a.flipped == b.flipped


@pytest.mark.parametrize("last_submanifold", [False, True])
def test_pyramid_is_its_levels_one_by_one(last_submanifold):
    shape, coords = (9, 12, 14), random_sites(4, 2, (9, 12, 14), 0.1)
    pyramid = index_pyramid(coords, shape, 2, SECOND[:3], 3, last_submanifold)
    assert pyramid.overflow is None and len(pyramid.levels) == 4
    down = None
    for index, level in enumerate(pyramid.levels):
        assert torch.equal(level.coords, coords) and level.spatial_shape == shape
        last = index == 3 and not last_submanifold
        assert_same_map(level.submanifold, None if last else submanifold_map(coords, shape, 2))
        assert_same_map(level.down, down)
        if index < 3:
            coords, shape, down = strided_map(coords, shape, 2, SECOND[index])


def test_second_grids():
    coords = torch.tensor([[0, 5, 6, 7]], dtype=torch.int32)
    pyramid = index_pyramid(coords, KITTI, 1, SECOND)
    assert [level.spatial_shape for level in pyramid.levels] == [
        (41, 1600, 1408),
        (21, 800, 704),
        (11, 400, 352),
        (5, 200, 176),
        (2, 200, 176),
    ]


def cut(table: Table, rows: int, source_rows: int) -> torch.Tensor:
    expected = torch.full((len(table.neighbours), rows), -1, dtype=torch.int32)
    kept = table.neighbours[:, :rows].clone()
    kept[kept >= source_rows] = -1
    expected[:, : kept.shape[1]] = kept
    return expected


@pytest.mark.parametrize("spare", [(7, 9, 3), (0, 0, 0), (5, -3, 2), (-4, 6, -1), (-2, -2, -2)])
def test_pyramid_with_capacities_is_the_exact_one_padded_or_cut(spare):
    shape, coords = (6, 8, 9), random_sites(5, 2, (6, 8, 9), 0.1)
    downs = SECOND[:2]
    exact = index_pyramid(coords, shape, 2, downs, last_submanifold=True)
    lengths = [len(level.coords) for level in exact.levels]
    capacities = [length + extra for length, extra in zip(lengths, spare, strict=True)]
    padding = torch.full((11, 4), -1, dtype=torch.int32)
    count = torch.tensor([len(coords)], dtype=torch.int32)
    padded = index_pyramid(
        torch.cat([coords, padding]), shape, 2, downs, 3, True, capacities, count
    )
    overflow = sum(1 << level for level, extra in enumerate(spare) if extra < 0)
    assert padded.overflow.tolist() == [overflow]
    for index, (level, whole) in enumerate(zip(padded.levels, exact.levels, strict=True)):
        rows, kept = capacities[index], min(lengths[index], capacities[index])
        assert level.count.tolist() == [kept] and level.count.dtype == torch.int32
        assert torch.equal(level.coords[:kept], whole.coords[:kept])
        assert len(level.coords) == rows and (level.coords[kept:] == -1).all()
        submanifold = cut(whole.submanifold.forward, rows, rows)
        for table, flipped in zip(level.submanifold, (False, True), strict=True):
            assert torch.equal(table.neighbours, submanifold) and table.flipped == flipped
            assert table.count is level.count
        if index:
            above = capacities[index - 1]
            forward = cut(whole.down.forward, rows, above)
            backward = cut(whole.down.backward, above, rows)
            assert torch.equal(level.down.forward.neighbours, forward)
            assert torch.equal(level.down.backward.neighbours, backward)
            assert level.down.forward.count is level.count
            assert level.down.backward.count is padded.levels[index - 1].count
