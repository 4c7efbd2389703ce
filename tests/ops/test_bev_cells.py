"""Cells of a bird's-eye-view network as rows, against maps of labels and a loop over cells."""

import pytest
import torch
import torch.nn.functional as F

from millisecond.ops import BevHeads, Level, bev_cells, bev_spread
from millisecond.ops.bev import SquareWindow, joined_cells, planned

SAME, DOWN = SquareWindow(3, 1, 1), SquareWindow(3, 2, 1)
CASES = [  # map, frames, blocks of convolutions
    ((200, 176), 1, [[SAME] * 6, [DOWN] + [SAME] * 5]),
    ((13, 37), 3, [[DOWN] * 2, [SAME] * 2]),
    ((40, 33), 2, [[SAME], [SquareWindow(5, 3, 2)], [SquareWindow(2, 1, 0)]]),
    ((5, 3), 40, [[SAME] * 2]),
]
DENSITIES = (0.0, 0.001, 0.05, 1.0)


def sites(seed: int, batch_size: int, shape, density: float) -> Level:
    """Two heights of random sites, in their order."""
    random = torch.Generator().manual_seed(seed)
    coords = (torch.rand(batch_size, 2, *shape, generator=random) < density).nonzero().int()
    return Level(coords, None, (2, *shape), None, None)


def windows_of(maps: torch.Tensor, window: SquareWindow, fill: int) -> torch.Tensor:
    """[B, Z, Y, X] -> [B, Y', X', size * size * Z], in the order (y, x, z)."""
    size, stride, padding = window
    maps = F.pad(maps, (padding,) * 4, value=fill)
    parts = maps.unfold(2, size, stride).unfold(3, size, stride)  # [B, Z, Y', X', size, size]
    return parts.permute(0, 2, 3, 4, 5, 1).flatten(3)


def first_of_each(values: torch.Tensor) -> torch.Tensor:
    """[Y, X, V] -> [Y, X]: of each cell the first one that holds the same."""
    kinds = torch.zeros(values.shape[:2].numel(), dtype=torch.int64)
    for column in values.flatten(0, 1).T:
        kinds = (kinds * 10**6 + column).unique(return_inverse=True)[1]
    cells = torch.arange(len(kinds))
    first = cells.new_full((len(kinds),), len(kinds)).scatter_reduce(0, kinds, cells, "amin")
    return first[kinds].view(values.shape[:2])


def numbered(touched: torch.Tensor, empty: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Which cells [B + 1, Y, X] have a row, and the row of each cell. empty: `first_of_each` of the
    cells of an empty map."""
    cells = torch.arange(empty.numel()).view(empty.shape)
    computed = torch.cat((touched, (empty == cells)[None]))
    rows = (computed.flatten().cumsum(0) - 1).view(computed.shape)
    alike = rows[-1].flatten()[empty]
    return computed, torch.where(computed, rows, alike)


@pytest.mark.parametrize(("shape", "batch_size", "blocks"), CASES)
def test_the_tables_are_those_of_cells_with_labels(shape, batch_size, blocks):
    """A label for each value of a cell in an empty map, carried through all windows."""
    plan = planned(blocks, shape, torch.device("cpu"))
    labels = [torch.full(shape, -1)]
    for window in (window for block in blocks for window in block):
        labels.append(first_of_each(windows_of(labels[-1][None, None], window, -1)[0]))
    for seed, density in enumerate(DENSITIES):
        level = sites(seed, batch_size, shape, density)
        found = bev_cells(level, batch_size, plan)
        row = torch.full((batch_size + 1, 2, *shape), -1)
        row[tuple(level.coords.long().T)] = torch.arange(len(level.coords))
        touched, layer = (row[:-1] >= 0).any(1), 0
        for block, rows in zip(blocks, found.rows, strict=True):
            for window in block:
                touched = windows_of(touched[:, None].int(), window, 0).any(-1)
                computed, below = numbered(touched, labels[layer + 1])
                wanted = windows_of(row, window, -1)[computed].T
                assert torch.equal(found.tables[layer].neighbours, wanted.int())
                row, layer = below[:, None], layer + 1
            assert torch.equal(rows, row[:-1, 0].int())


@pytest.mark.parametrize(("shape", "factors"), [((40, 33), [1, 2, 4]), ((24, 12), [2, 4, 8])])
def test_joined_maps_hold_the_rows_of_every_cell(shape, factors):
    """Rows are shared by cells that read the same rows of all maps, and by no others."""
    blocks = [[SAME], [DOWN, SAME], [DOWN]]
    shape = [size // 8 * 8 for size in shape]
    plan = planned(blocks, shape, torch.device("cpu"))
    for seed, density in enumerate(DENSITIES):
        cells = bev_cells(sites(seed, 2, shape, density), 2, plan)
        rows, kernel_maps = joined_cells(cells, plan, factors)
        read = torch.cat([kernel_map.forward.neighbours for kernel_map in kernel_maps])
        assert read.unique(dim=1).shape == read.shape
        for b, y, x in torch.cartesian_prod(*map(torch.arange, rows.shape)).tolist():
            wanted = [
                int(row[b, y // f, x // f]) * f**2 + y % f * f + x % f
                for row, f in zip(cells.rows, factors, strict=True)
            ]
            assert read[:, rows[b, y, x]].tolist() == wanted


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
