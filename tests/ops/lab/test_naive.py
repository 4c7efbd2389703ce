"""The first rungs of the ladder: the eight-line definition, and the tables of the naive kernel."""

import pytest
import torch

from millisecond.ops import ConvGeometry, sparse_conv, strided_map, submanifold_map
from millisecond.ops.lab import naive

CONV = {2: torch.nn.functional.conv2d, 3: torch.nn.functional.conv3d}
STRIDED = [  # grid, kernel, stride, padding, dilation
    ((5, 6, 7), (3, 3, 3), (2, 2, 2), (1, 1, 1), (1, 1, 1)),
    ((5, 6, 7), (3, 1, 1), (2, 1, 1), (0, 0, 0), (1, 1, 1)),
    ((9, 8, 7), (2, 3, 3), (1, 2, 3), (1, 0, 1), (3, 2, 1)),
    ((8, 9), (4, 2), (2, 3), (2, 0), (2, 1)),
]
SUBMANIFOLD = [  # grid, kernel, dilation
    ((5, 6, 7), (3, 3, 3), (1, 1, 1)),
    ((5, 6, 7), (1, 3, 5), (1, 2, 1)),
    ((8, 9), (5, 3), (1, 2)),
]


def problems(channels=(3, 4), dtype=torch.float64):
    """(features, coords, weight, geometry, out_coords, shape, kernel_map), batches of two."""
    generator = torch.Generator().manual_seed(1)
    windows = [(shape, ConvGeometry(*numbers)) for shape, *numbers in STRIDED]
    for shape, kernel, dilation in SUBMANIFOLD:
        centre = tuple(k // 2 * d for k, d in zip(kernel, dilation, strict=True))
        windows.append((shape, ConvGeometry(kernel, (1,) * len(shape), centre, dilation)))
    for index, (shape, geometry) in enumerate(windows):
        coords = (torch.rand(2, *shape, generator=generator) < 0.3).nonzero().int()
        if index < len(STRIDED):
            out_coords, _, kernel_map = strided_map(coords, shape, 2, geometry)
        else:
            kernel, _, _, dilation = geometry
            out_coords, kernel_map = coords, submanifold_map(coords, shape, 2, kernel, dilation)
        volume = len(kernel_map.forward.neighbours)
        features = torch.randn(len(coords), channels[0], generator=generator, dtype=dtype)
        weight = torch.randn(volume, *channels, generator=generator, dtype=dtype)
        yield features, coords, weight, geometry, out_coords, shape, kernel_map


@pytest.mark.parametrize("problem", list(problems()))
def test_the_definition_is_the_dense_convolution_at_the_active_sites(problem):
    features, coords, weight, geometry, out_coords, shape, _ = problem
    grid = features.new_zeros(2, *shape, features.shape[1])
    grid[tuple(coords.long().T)] = features
    kernel, *window = geometry
    dense_weight = weight.view(*kernel, *weight.shape[1:]).movedim((-1, -2), (0, 1))
    expected = CONV[len(shape)](grid.movedim(-1, 1), dense_weight, None, *window)
    expected = expected.movedim(1, -1)[tuple(out_coords.long().T)]
    got = naive.definition(features, coords, weight, geometry, out_coords)
    torch.testing.assert_close(got, expected, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("problem", list(problems()))
def test_every_rung_computes_the_same(problem):
    features, coords, weight, geometry, out_coords, shape, kernel_map = problem
    expected = naive.definition(features, coords, weight, geometry, out_coords)
    got = sparse_conv(features, weight, kernel_map)
    torch.testing.assert_close(got, expected, rtol=1e-11, atol=1e-11)
    # what naive.cu does with its tables
    tables = naive.tables(coords, shape, 2, geometry, out_coords)
    got = torch.zeros_like(expected)
    for offset, matrix in zip(tables.offsets, weight, strict=True):
        source = tables.locations[tables.sites + offset]
        got[source >= 0] += features[source[source >= 0]] @ matrix
    torch.testing.assert_close(got, expected, rtol=1e-11, atol=1e-11)
