"""Cells of a bird's-eye-view network as rows, against a network of ones and a loop over cells."""

import pytest
import torch

from detector.models.bev_cells import Cells, Window, planned
from ops import BevHeads, Level, bev_cells, bev_spread

SAME, DOWN = Window(3, 1, 1), Window(3, 2, 1)
CASES = [  # map, frames, blocks of convolutions
    ((200, 176), 1, [[SAME] * 6, [DOWN] + [SAME] * 5]),
    ((13, 37), 3, [[DOWN] * 2, [SAME] * 2]),
    ((40, 33), 2, [[SAME], [Window(5, 3, 2)], [Window(2, 1, 0)]]),
    ((5, 3), 40, [[SAME] * 2]),
]
DENSITIES = (0.0, 0.001, 0.05, 1.0)


def sites(seed: int, batch_size: int, shape, density: float) -> Level:
    """Two heights of random sites, in their order."""
    random = torch.Generator().manual_seed(seed)
    coords = (torch.rand(batch_size, 2, *shape, generator=random) < density).nonzero().int()
    return Level(coords, None, (2, *shape), None, None)


@pytest.mark.parametrize(("shape", "batch_size", "blocks"), CASES)
def test_the_tables_are_those_of_the_network_on_a_cpu(shape, batch_size, blocks):
    plan = planned(blocks, shape, torch.device("cpu"))
    for seed, density in enumerate(DENSITIES):
        level = sites(seed, batch_size, shape, density)
        found = bev_cells(level, batch_size, plan)
        cells, layer = Cells.of_sites(level, batch_size), 0
        for block, rows in zip(blocks, found.rows, strict=True):
            for window in block:
                cells, kernel_map = cells.convolved(window)
                assert torch.equal(found.tables[layer].neighbours, kernel_map.forward.neighbours)
                layer += 1
            assert torch.equal(rows, cells.row[:-1, 0])


def test_spread_is_the_sum_of_each_cell():
    random = torch.Generator().manual_seed(0)
    rows = [torch.randint(9, (2, 6, 4), generator=random), torch.randint(5, (2, 3, 2))]
    values = [torch.randn(9, 8, generator=random), torch.randn(5 * 4, 8, generator=random)]
    first, second = bev_spread(values, [row.int() for row in rows], [1, 2], [2, 5])
    assert first.shape == (2, 6, 4, 2) and second.shape == (2, 6, 4, 5)
    for b, y, x in torch.cartesian_prod(*map(torch.arange, (2, 6, 4))).tolist():
        part = rows[1][b, y // 2, x // 2] * 4 + y % 2 * 2 + x % 2
        expected = values[0][rows[0][b, y, x]] + values[1][part]
        assert torch.equal(torch.cat((first[b, y, x], second[b, y, x])), expected[:7])


def test_heads_are_two_products():
    random = torch.Generator().manual_seed(0)
    up, up_bias, head, head_bias, rows = (
        torch.randn(size, generator=random) for size in ((6, 4 * 5), 4 * 5, (5, 7), 7, (11, 6))
    )
    found = BevHeads(up, up_bias, head, head_bias, parts=4)(rows)
    wanted = ((rows @ up + up_bias).relu().view(44, 5)) @ head + head_bias
    torch.testing.assert_close(found, wanted)
