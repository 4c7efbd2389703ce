"""The order of sites, by comparing tuples."""

import pytest
import torch

from millisecond.ops.line_maps import NOT_INCREASING, OUTSIDE, site_order
from tests.helpers.dense_oracle import random_sites

SHAPE = (5, 6, 7)
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("shape", [SHAPE, (40, 50)])
def test_order(shape, device):
    coords = random_sites(0, 3, shape)
    cases = {
        0: coords,
        NOT_INCREASING: coords[torch.randperm(len(coords))],
        OUTSIDE: torch.cat((coords, coords.new_tensor([[3, *(0 for _ in shape)]]))),
    }
    for axis in range(len(shape)):
        wrong = coords.clone()
        wrong[-1, 1 + axis] = shape[axis]
        cases[OUTSIDE + 4 * axis] = wrong
    for expected, given in cases.items():
        assert site_order(given.to(device), 3, shape).item() == expected % 4
    assert site_order(coords[:0].to(device), 3, shape).item() == 0
    for i in range(1, len(coords)):
        pair = coords[[i, i - 1]].to(device)
        assert site_order(pair, 3, shape).item() == NOT_INCREASING
        assert site_order(coords[[i, i]].to(device), 3, shape).item() == NOT_INCREASING
        if i == 40:
            break
    both = torch.tensor([[0, -1, *(0 for _ in shape[1:])]] * 2, dtype=torch.int32, device=device)
    assert site_order(both, 3, shape).item() == NOT_INCREASING + OUTSIDE


@pytest.mark.gpu
def test_opcheck():
    coords = random_sites(1, 2, SHAPE).cuda().contiguous()
    torch.library.opcheck(torch.ops.millisecond.site_order, (coords, 2, SHAPE))
