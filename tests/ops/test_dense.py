"""Rows scattered to dense grids."""

import torch

from millisecond.ops import bev_map, dense
from tests.helpers.dense_oracle import assert_same_gradients, draws, random_sites


def test_dense_leaves_out_what_is_beyond_the_count():
    coords = torch.tensor([[0, 1, 1], [1, 0, 2], [-1, -1, -1]], dtype=torch.int32)
    features = torch.ones(3, 2, requires_grad=True)
    count = torch.tensor([2], dtype=torch.int32)
    grid = dense(features, coords, (2, 3), 2, count)
    assert grid.sum() == 4 and grid[0, :, 1, 1].eq(1).all() and grid[1, :, 0, 2].eq(1).all()
    grid.sum().backward()
    assert features.grad.tolist() == [[1, 1], [1, 1], [0, 0]]


def test_bev_map_stacks_the_layers():
    shape, coords, draw = (3, 5, 6), random_sites(30, 2, (3, 5, 6)), draws(31)
    features = draw(len(coords), 4).requires_grad_()
    got, expected = bev_map(features, coords, shape, 2), dense(features, coords, shape, 2)
    assert got.is_contiguous(memory_format=torch.channels_last)
    assert_same_gradients(got, expected.transpose(1, 2).flatten(1, 2), (features,))
