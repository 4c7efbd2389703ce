"""What the CUDA index says and does about wrong coords, tensors and want of memory."""

import math

import pytest
import torch

from millisecond.ops import index_pyramid, index_workspace, submanifold_map
from millisecond.ops.geometry import coords_of_keys
from tests.helpers.levels import SECOND, assert_same, random_coords

pytestmark = pytest.mark.gpu

FAULT = 1 << 30  # the bit of Pyramid.overflow for wrong coords

WRONG = {
    "outside of": ([[0, 0, 0, 1], [0, 1, 2, 9]], "row 1"),
    "outside": ([[0, 0, 0, 1], [2, 1, 2, 3]], "row 1"),
    "outside of 2": ([[-1, 0, 0, 1], [1, 1, 2, 3]], "row 0"),
    "duplicate": ([[0, 0, 0, 1], [0, 1, 2, 3], [0, 1, 2, 3]], "row 2"),
    "not sorted": ([[0, 0, 0, 1], [1, 1, 2, 3], [1, 1, 1, 3], [0, 0, 0, 0]], "row 2"),
}


@pytest.mark.parametrize("fault", WRONG)
def test_wrong_coords(fault):
    rows, row = WRONG[fault]
    coords = torch.tensor(rows, dtype=torch.int32).cuda()
    workspace = index_workspace((4, 5, 6), 2, SECOND[:1], coords.device)
    with pytest.raises(ValueError, match=f"coords: {row} .*{fault}"):
        index_pyramid(coords, (4, 5, 6), 2, SECOND[:1], workspace=workspace)
    assert not workspace.any()
    with pytest.raises(ValueError, match=f"coords: {row}"):
        submanifold_map(coords, (4, 5, 6), 2)
    bounded = index_pyramid(coords, (4, 5, 6), 2, SECOND[:1], capacities=(9, 9))
    assert int(bounded.overflow) & FAULT
    for level in bounded.levels:
        assert int(level.count) <= 9


@pytest.mark.parametrize("fault", ["outside", "duplicate", "not sorted"])
def test_wrong_rows_take_nothing_from_their_neighbours(fault):
    """A voxel leaves to the one before it what both mark, which a wrong one does not mark."""
    shape = (9, 12, 200)
    generator = torch.Generator().manual_seed(11)
    coords = coords_of_keys(torch.arange(2 * math.prod(shape)), shape)
    dense = (torch.rand(len(coords), generator=generator) < 0.5) | (coords[:, 3] < 3)
    coords = coords[dense & (coords[:, 1] % 4 == 0) & (coords[:, 2] % 5 == 0)]  # few share outputs
    wrong, kept = coords.clone(), torch.ones(len(coords), dtype=torch.bool)
    if fault == "outside":
        kept = coords[:, 3] != 0
        wrong[~kept, 3] = -1
    else:
        for row in (0, 30, 32, 62, 255, 400, 402, len(coords) - 2):
            if fault == "duplicate":
                wrong[row + 1] = wrong[row]
                kept[row + 1] = False
            else:
                wrong[[row, row + 1]] = wrong[[row + 1, row]]
    want = index_pyramid(coords[kept].contiguous(), shape, 2, SECOND[:3])
    got = index_pyramid(wrong.cuda(), shape, 2, SECOND[:3], capacities=[30000] * 4)
    assert int(got.overflow) & FAULT
    for a, b in zip(got.levels[1:], want.levels[1:], strict=True):
        assert_same("coords", a.coords[: int(a.count)], b.coords)


def test_wrong_tensors():
    coords = random_coords(2, 1, (4, 5, 6), 20).cuda()
    with pytest.raises(ValueError, match="coords: expected int32"):
        submanifold_map(coords.long(), (4, 5, 6), 1)
    short = torch.zeros(8, dtype=torch.int32).cuda()
    with pytest.raises(RuntimeError, match=r"workspace must have .* elements, has 8"):
        index_pyramid(coords, (4, 5, 6), 1, (), workspace=short)
    with pytest.raises(RuntimeError, match="count must be Int"):
        index_pyramid(coords, (4, 5, 6), 1, (), capacities=(9,), count=coords[:1, 0].float())


def test_without_enough_memory_the_workspace_is_zero_again():
    shape, step = (4, 30, 40), SECOND[0]
    coords = random_coords(3, 2, shape, 200).cuda()
    workspace = index_workspace(shape, 2, [step], coords.device)
    rows = [(1 << 30) - 2] * 2  # whose tables take 116 GB each
    with pytest.raises(torch.OutOfMemoryError):
        index_pyramid(coords, shape, 2, [step], capacities=rows, workspace=workspace)
    torch.cuda.empty_cache()
    assert not workspace.any()
