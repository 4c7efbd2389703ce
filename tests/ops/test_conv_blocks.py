"""Training blocks against a dense convolution, its batch statistics and ReLU in float64."""

import pytest
import torch
import torch.nn.functional as F

from millisecond.ops import ConvGeometry, conv_blocks, strided_map, submanifold_map
from tests.helpers.dense_oracle import (
    assert_same_gradients,
    dense_weight,
    draws,
    random_sites,
    read,
    scatter,
)

SHAPE = (5, 6, 7)


def norms(channels):
    return [torch.nn.BatchNorm1d(c, eps=1e-3, momentum=0.01).double() for c in channels]


def test_blocks_are_dense_convolutions_normalised_over_the_active_sites():
    coords, draw = random_sites(1, 2, SHAPE), draws(2)
    same = submanifold_map(coords, SHAPE, 2)
    down_coords, down_shape, down = strided_map(coords, SHAPE, 2, ConvGeometry.of(3, 2, 1))
    features = draw(len(coords), 3).requires_grad_()
    weights = [draw(27, 3, 4).requires_grad_(), draw(27, 4, 5).requires_grad_()]
    own = norms((4, 5))
    out = conv_blocks(features, weights, [same, down], own)
    x, sites, shape = features, coords, SHAPE
    for weight, stride, target, grid, norm in (
        (weights[0], 1, coords, SHAPE, own[0]),
        (weights[1], 2, down_coords, down_shape, own[1]),
    ):
        kernel = dense_weight(weight, (3, 3, 3))
        x = read(F.conv3d(scatter(x, sites, shape, 2), kernel, stride=stride, padding=1), target)
        variance, mean = torch.var_mean(x, dim=0, correction=0)
        x = ((x - mean) / (variance + 1e-3).sqrt()).relu()
        torch.testing.assert_close(norm.running_mean, 0.01 * mean)
        sites, shape = target, grid
    torch.testing.assert_close(out, x)
    leaves = (features, *weights)
    gradient = draw(*out.shape)
    found, wanted = (torch.autograd.grad(y, leaves, gradient) for y in (out, x))
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("shared", [False, True])
def test_the_last_block_adds_a_residual(shared):
    """It may be the features themselves, which then get both gradients."""
    coords, draw = random_sites(1, 2, SHAPE), draws(2)
    same = submanifold_map(coords, SHAPE, 2)
    features = draw(len(coords), 4).requires_grad_()
    residual = features if shared else draw(len(coords), 4).requires_grad_()
    weights = [draw(27, 4, 4).requires_grad_() for _ in range(2)]
    out = conv_blocks(features, weights, [same, same], norms((4, 4)), residual)
    x = features
    for weight, added in zip(weights, (0, residual), strict=True):
        kernel = dense_weight(weight, (3, 3, 3))
        x = read(F.conv3d(scatter(x, coords, SHAPE, 2), kernel, padding=1), coords)
        variance, mean = torch.var_mean(x, dim=0, correction=0)
        x = ((x - mean) / (variance + 1e-3).sqrt() + added).relu()
    leaves = (features, *weights) if shared else (features, residual, *weights)
    assert_same_gradients(out, x, leaves)


def test_a_residual_of_another_shape_is_an_error():
    kernel_map = submanifold_map(random_sites(1, 1, SHAPE), SHAPE, 1)
    rows = len(kernel_map.backward.neighbours[0])
    given = torch.zeros(rows, 3).double(), [torch.zeros(27, 3, 4).double()], [kernel_map]
    with pytest.raises(ValueError, match=rf"residual: expected \[{rows}, 4\], got \[1, 4\]"):
        conv_blocks(*given, norms((4,)), torch.zeros(1, 4))


def test_every_block_needs_its_parts():
    kernel_map = submanifold_map(random_sites(1, 1, SHAPE), SHAPE, 1)
    weights = [torch.zeros(27, 3, 3)] * 2
    with pytest.raises(ValueError, match="weights: 2, kernel_maps: 1, norms: 2"):
        conv_blocks(torch.zeros(5, 3), weights, [kernel_map], norms((3, 3)))


def test_no_block_is_an_error():
    with pytest.raises(ValueError, match="weights: none"):
        conv_blocks(torch.zeros(5, 3), [], [], [])
