"""Sparse max pooling against the dense one of torch."""

import pytest
import torch
import torch.nn.functional as F

from millisecond.ops import ConvGeometry, sparse_max_pool, strided_map, submanifold_map
from tests.helpers.dense_oracle import (
    STRIDED,
    assert_same,
    draws,
    gradients,
    random_sites,
    read,
    scatter,
)

MAX_POOL = {2: F.max_pool2d, 3: F.max_pool3d}


@pytest.mark.parametrize("shape, kernel, stride, padding, dilation", STRIDED)
def test_max_pool_is_the_dense_one_on_positive_features(shape, kernel, stride, padding, dilation):
    padding = tuple(min(p, k // 2) for p, k in zip(padding, kernel, strict=True))
    coords, draw = random_sites(24, 2, shape), draws(25)
    features = (draw(len(coords), 3).abs() + 0.1).requires_grad_()
    out_coords, _, kernel_map = strided_map(
        coords, shape, 2, ConvGeometry(kernel, stride, padding, dilation)
    )
    got = sparse_max_pool(features, kernel_map)
    grid = MAX_POOL[len(shape)](
        scatter(features, coords, shape, 2), kernel, stride, padding, dilation
    )
    expected = read(grid, out_coords)
    assert torch.equal(got, expected)
    assert_same(gradients(got, [features])[0], gradients(expected, [features])[0])
    # channels do not meet, and of three the nine times larger Jacobian says nothing more
    one = features[:, :1].detach().requires_grad_()
    torch.autograd.gradcheck(lambda x: sparse_max_pool(x, kernel_map), [one])


def test_max_pool_sees_only_inputs_that_exist():
    coords = torch.tensor([[0, 0, 1], [0, 0, 2]], dtype=torch.int32)
    features = torch.tensor([[-3.0, 1.0], [-5.0, 1.0]], requires_grad=True)
    out = sparse_max_pool(features, submanifold_map(coords, (1, 4), 1))
    assert out.tolist() == [[-3, 1], [-3, 1]]
    out.sum().backward()
    assert features.grad.tolist() == [[2, 2], [0, 0]]  # of equal inputs the first
