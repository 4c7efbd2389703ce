"""Tables from lines of sites against the tables of kernel maps."""

import pytest
import torch

from millisecond.ops import ConvGeometry, line_maps, strided_map, submanifold_map
from millisecond.ops.line_maps import NOT_INCREASING, OUTSIDE, line_table, site_table
from tests.helpers.dense_oracle import STRIDED, random_sites

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("shape", *"ksp", "dilation"), STRIDED)
def test_strided_and_back(shape, k, s, p, dilation, device):
    coords, geometry = random_sites(1, 3, shape).to(device), ConvGeometry(k, s, p, dilation)
    outputs, out_shape, expected = strided_map(coords, shape, 3, geometry)
    table = line_table(outputs, coords, 3, shape, geometry)
    assert torch.equal(table, expected.forward.neighbours)
    table = line_table(coords, outputs, 3, out_shape, geometry, transposed=True)
    assert torch.equal(table, expected.backward.neighbours)
    found, found_shape, kernel_map = line_maps.strided_map(coords, shape, 3, geometry)
    assert found_shape == out_shape
    assert torch.equal(found, outputs)
    assert torch.equal(kernel_map.forward.neighbours, expected.forward.neighbours)
    assert line_maps.strided_map(coords, shape, 3, geometry, False)[2].backward is None


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("shape", [(5, 6, 7), (8, 9)])
def test_submanifold(shape, device):
    kernel, dilation = (3, 5, 3)[-len(shape) :], (1, 1, 2)[-len(shape) :]
    for seed, density in ((2, 0.3), (3, 0.0)):
        coords = random_sites(seed, 2, shape, density).to(device)
        found = line_maps.submanifold_map(coords, shape, 2, kernel, dilation)
        expected = submanifold_map(coords, shape, 2, kernel, dilation)
        assert torch.equal(found.forward.neighbours, expected.forward.neighbours)


@pytest.mark.gpu
def test_more_lines_than_a_block_finds():
    shape = (60, 201, 11)
    coords = random_sites(4, 2, shape, 0.02)
    coords = coords[(coords[:, 1] < 7) | (coords[:, 1] > 41)]  # blocks of lines without sites
    found = line_maps.submanifold_map(coords.cuda().contiguous(), shape, 2, (3, 3, 3), (1, 1, 1))
    expected = submanifold_map(coords, shape, 2)
    assert torch.equal(found.forward.neighbours.cpu(), expected.forward.neighbours)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("shape", [(5, 6, 7), (8, 9)])
def test_of_sites_that_may_be_sorted(shape, device):
    dims = len(shape)
    kernel, steps = (3, 5, 3)[-dims:], (1,) * dims
    window = ConvGeometry(kernel, steps, tuple(k // 2 for k in kernel), steps)
    coords = random_sites(2, 2, shape, 0.3).to(device)
    table, fault = site_table(coords, 2, shape, window)
    assert fault == 0
    assert torch.equal(table, submanifold_map(coords, shape, 2, kernel).forward.neighbours)
    assert site_table(coords[:0], 2, shape, window)[1] == 0
    assert site_table(coords.flip(0), 2, shape, window)[1] == NOT_INCREASING
    assert site_table(coords[[0, 0, 1]], 2, shape, window)[1] == NOT_INCREASING
    assert site_table(coords, 2, (shape[0] - 1, *shape[1:]), window)[1] & OUTSIDE


@pytest.mark.gpu
def test_opcheck():
    coords = random_sites(1, 2, (5, 6, 7)).cuda().contiguous()
    window = (3, 3, 3, 1, 1, 1, 1, 1, 1, 1, 1, 1)
    arguments = coords, coords, 2, (5, 6, 7), window, False
    torch.library.opcheck(torch.ops.millisecond.line_table, arguments)
    arguments = coords, 2, (3, 3, 4), window
    torch.library.opcheck(torch.ops.millisecond.site_table, (coords, 2, (5, 6, 7), window))
    checks = ("test_schema", "test_faketensor")  # of the rows, some are room
    torch.library.opcheck(torch.ops.millisecond.reached_sites, arguments, test_utils=checks)
