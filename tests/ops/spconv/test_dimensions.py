"""Layers of one dimension and of four, against dense convolutions."""

import pytest
import torch
from torch.nn.functional import conv1d, conv3d, conv_transpose1d, max_pool1d, pad

import millisecond.ops.spconv as spconv
from tests.helpers.dense_oracle import (
    assert_same,
    assert_same_gradients,
    draws,
    random_sites,
    read,
    scatter,
)

LINE, SPACE_TIME = (31,), (5, 6, 4, 3)
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


def tensor(shape, channels=3, device="cpu", seed=0):
    indices = random_sites(seed, 2, shape)
    indices = indices[torch.randperm(len(indices), generator=torch.Generator().manual_seed(seed))]
    features = draws(seed)(len(indices), channels).to(device).requires_grad_()
    return spconv.SparseConvTensor(features, indices.to(device), shape, 2)


def grid_of(x):
    return scatter(x.features, x.indices, x.spatial_shape, x.batch_size)


def conv4d(grid, weight, stride, padding):
    """By a sum of 3-D convolutions over the last axis."""
    grid = pad(grid, (padding[3], padding[3]))
    times = range(0, grid.shape[-1] - weight.shape[-1] + 1, stride[3])
    frames = [
        sum(
            conv3d(grid[..., t + k], weight[..., k], stride=stride[:3], padding=padding[:3])
            for k in range(weight.shape[-1])
        )
        for t in times
    ]
    return torch.stack(frames, dim=-1)


@pytest.mark.parametrize("device", DEVICES)
def test_four_dimensions(device):
    x = tensor(SPACE_TIME, device=device)
    first = spconv.SubMConv4d(3, 4, (3, 1, 3, 3), bias=False, indice_key="a").double().to(device)
    weight = first.weight.movedim(-1, 1)
    grid = conv4d(grid_of(x), weight, [1] * 4, [1, 0, 1, 1])
    y = first(x)
    assert y.indices is x.indices
    assert_same_gradients(y.features, read(grid, x.indices), [x.features, first.weight])
    stride, padding = [2, 2, 2, 1], [1, 1, 1, 0]
    down = spconv.SparseConv4d(3, 4, 3, stride, padding, bias=False, indice_key="d")
    down = down.double().to(device)
    z = down(x)
    grid = conv4d(grid_of(x), down.weight.movedim(-1, 1), stride, padding)
    assert z.spatial_shape == list(grid.shape[2:]) == [3, 3, 2, 1]
    assert_same_gradients(z.dense(), grid, [x.features, down.weight])
    back = spconv.SparseInverseConv4d(4, 2, 3, "d", bias=False).double().to(device)(z)
    assert back.indices is x.indices
    assert spconv.SubMConv4d(3, 2, 1).double().to(device)(x).features.shape == (len(x.indices), 2)


@pytest.mark.parametrize("device", DEVICES)
def test_one_dimension(device):
    x = tensor(LINE, device=device)
    same = spconv.SubMConv1d(3, 4, 5, dilation=2).double().to(device)
    weight = same.weight.movedim(-1, 1)
    grid = conv1d(grid_of(x), weight, same.bias, padding=4, dilation=2)
    assert_same_gradients(same(x).features, read(grid, x.indices), [x.features, same.weight])
    down = spconv.SparseConv1d(3, 4, 3, 2, 1, bias=False).double().to(device)
    grid = conv1d(grid_of(x), down.weight.movedim(-1, 1), stride=2, padding=1)
    assert_same_gradients(down(x).dense(), grid, [x.features, down.weight])
    up = spconv.SparseConvTranspose1d(3, 4, 3, 2, 1, bias=False).double().to(device)
    weight = up.weight.movedim(-1, 0).movedim(1, 1)  # [C_in, C_out, k]
    grid = conv_transpose1d(grid_of(x), weight, stride=2, padding=1)
    assert_same(up(x).dense(), grid)
    pooled = spconv.SparseMaxPool1d(2)(x)
    lowest = torch.full_like(grid_of(x), -torch.inf)
    lowest[x.indices[:, 0].long(), :, x.indices[:, 1].long()] = x.features
    assert_same(pooled.features, read(max_pool1d(lowest, 2), pooled.indices))


def test_a_network_in_space_and_time():
    x = tensor(SPACE_TIME, 4)
    net = spconv.SparseSequential(
        spconv.SubMConv4d(4, 16, 3, indice_key="a"),
        torch.nn.BatchNorm1d(16),
        torch.nn.ReLU(),
        spconv.SparseConv4d(16, 16, 2, 2, indice_key="d"),
        spconv.SparseInverseConv4d(16, 4, 2, indice_key="d"),
    )
    x = x.replace_feature(x.features.float())
    for training in (True, False):
        trained = net.train(training)(x).features
        with torch.no_grad():
            torch.testing.assert_close(net(x).features, trained, rtol=1e-4, atol=1e-4)
    empty = spconv.SparseConvTensor(torch.zeros(0, 4), x.indices[:0], SPACE_TIME, 2)
    assert net(empty).dense().shape == (2, 4, *SPACE_TIME)
