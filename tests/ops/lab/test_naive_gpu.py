"""The naive kernel against the definition."""

import pytest
import torch

from millisecond.ops import ConvGeometry, sparse_conv, submanifold_map
from millisecond.ops.lab import naive
from tests.ops.lab.test_naive import problems

pytestmark = pytest.mark.gpu

TOLERANCE = 2e-6  # float32, as in test_sparse_conv_gpu.py


def error(value: torch.Tensor, reference: torch.Tensor) -> float:
    value, reference = value.double().cpu(), reference.double().cpu()
    assert value.shape == reference.shape
    return float((value - reference).norm() / reference.norm())


@pytest.mark.parametrize(
    "channels", [(1, 1), (3, 4), (4, 16), (33, 31), (64, 64), (70, 130)], ids=str
)
def test_equals_the_definition(channels):
    for features, coords, weight, geometry, out_coords, shape, _ in problems(channels):
        features, weight = features.float(), weight.float()
        expected = naive.definition(
            features.double(), coords, weight.double(), geometry, out_coords
        )
        tables = naive.tables(coords.cuda(), shape, 2, geometry, out_coords.cuda())
        got = naive.sparse_conv(features.cuda(), weight.cuda(), tables)
        assert error(got, expected) <= TOLERANCE


@pytest.mark.parametrize("channels", [(4, 16), (32, 64)], ids=str)
def test_equals_the_next_rung(channels):
    generator = torch.Generator().manual_seed(2)
    shape = (9, 60, 60)
    coords = (torch.rand(2, *shape, generator=generator) < 0.2).nonzero().int().cuda()
    features = torch.randn(len(coords), channels[0], generator=generator).cuda()
    weight = torch.randn(27, *channels, generator=generator).cuda()
    geometry = ConvGeometry((3, 3, 3), (1, 1, 1), (1, 1, 1), (1, 1, 1))
    tables = naive.tables(coords, shape, 2, geometry, coords)
    runs = [naive.sparse_conv(features, weight, tables) for _ in range(10)]
    assert all(torch.equal(run, runs[0]) for run in runs)
    with torch.no_grad():
        expected = sparse_conv(features, weight, submanifold_map(coords, shape, 2))
    assert error(runs[0], expected) <= TOLERANCE


def test_no_rows():
    coords = torch.zeros(0, 4, dtype=torch.int32).cuda()
    geometry = ConvGeometry((3, 3, 3), (1, 1, 1), (1, 1, 1), (1, 1, 1))
    tables = naive.tables(coords, (5, 5, 5), 1, geometry, coords)
    out = naive.sparse_conv(torch.zeros(0, 3).cuda(), torch.zeros(27, 3, 4).cuda(), tables)
    assert out.shape == (0, 4)


def test_opcheck():
    features, coords, weight, geometry, out_coords, shape, _ = next(problems())
    tables = naive.tables(coords.cuda(), shape, 2, geometry, out_coords.cuda())
    features, weight = features.float().cuda(), weight.float().cuda()
    naive.sparse_conv(features, weight, tables)  # loads the operators
    torch.library.opcheck(torch.ops.millisecond_lab.conv_naive.default, (features, weight, *tables))
