"""What programs written for spconv do around its layers, in their manner."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import millisecond.ops.spconv as spconv
from millisecond.ops.spconv.functional import _indice_to_scalar
from millisecond.ops.spconv.hash import HashTable
from tests.helpers import dense_spconv
from tests.helpers.dense_oracle import assert_same, draws, random_sites

SHAPE = (9, 7, 8)


def tensor(seed=0, channels=4):
    indices = random_sites(seed, 2, SHAPE, 0.2)
    indices = indices[torch.randperm(len(indices), generator=torch.Generator().manual_seed(seed))]
    return spconv.SparseConvTensor(draws(seed)(len(indices), channels), indices, SHAPE, 2)


def filled(network):
    draw = draws(1)
    for parameter in network.double().parameters():
        parameter.data = 0.3 * draw(*parameter.shape)
    return network


def ublock(engine, widths, level=1):
    """PointGroup's: tensors built by hand between the layers, a convolution with its own forward,
    blocks by name, keys made of the level."""

    class Single(engine.SparseConv3d):
        def forward(self, x):
            weight = self.weight.view(len(self.weight), -1)
            return x.replace_feature(torch.mm(x.features, weight.permute(1, 0)))

    class Residual(engine.SparseModule):
        def __init__(self, c_in, c_out):
            super().__init__()
            same = c_in == c_out
            self.i_branch = engine.SparseSequential(
                nn.Identity() if same else Single(c_in, c_out, 1, bias=False)
            )
            self.conv_branch = engine.SparseSequential(
                nn.BatchNorm1d(c_in),
                nn.ReLU(),
                engine.SubMConv3d(c_in, c_out, 3, padding=1, bias=False, indice_key=f"s{level}"),
                nn.BatchNorm1d(c_out),
                nn.ReLU(),
                engine.SubMConv3d(c_out, c_out, 3, padding=1, bias=False, indice_key=f"s{level}"),
            )

        def forward(self, x):
            identity = engine.SparseConvTensor(x.features, x.indices, x.spatial_shape, x.batch_size)
            out = self.conv_branch(x)
            return out.replace_feature(out.features + self.i_branch(identity).features)

    def blocks(*sizes):
        return engine.SparseSequential(**{f"block{a}_{b}": Residual(a, b) for a, b in sizes})

    class UBlock(nn.Module):
        def __init__(self):
            super().__init__()
            wide = widths[0]
            self.blocks = blocks((wide, wide))
            if len(widths) == 1:
                return
            plain = {"bias": False, "indice_key": f"d{level}"}
            down = engine.SparseConv3d(wide, widths[1], 2, 2, **plain)
            up = engine.SparseInverseConv3d(widths[1], wide, 2, **plain)
            self.conv = engine.SparseSequential(nn.BatchNorm1d(wide), nn.ReLU(), down)
            self.u = ublock(engine, widths[1:], level + 1)
            self.deconv = engine.SparseSequential(nn.BatchNorm1d(widths[1]), nn.ReLU(), up)
            self.tail = blocks((2 * wide, wide), (wide, wide))

        def forward(self, x):
            x = self.blocks(x)
            if len(widths) == 1:
                return x
            shape = x.spatial_shape, x.batch_size
            identity = engine.SparseConvTensor(x.features, x.indices, *shape)
            decoded = self.deconv(self.u(self.conv(x)))
            features = torch.cat((identity.features, decoded.features), dim=1)
            return self.tail(x.replace_feature(features))

    return UBlock()


def test_a_network_that_builds_its_tensors_by_hand():
    ours, dense = (filled(ublock(engine, (4, 6, 8))) for engine in (spconv, dense_spconv))
    x = tensor()
    y = ours(x)
    wanted = dense(dense_spconv.SparseConvTensor(x.features, x.indices, SHAPE, 2))
    assert_same(y.features, wanted.features, 1e-9)
    assert torch.equal(y.indices, x.indices)


def test_rows_sorted_by_a_program_and_back():
    """As TRELLIS: frames in order between a strided convolution and its inverse."""
    down = filled(spconv.SparseConv3d(4, 6, 3, 2, 1, indice_key="d", algo=spconv.ConvAlgo.Native))
    up = filled(spconv.SparseInverseConv3d(6, 4, 3, "d"))
    x = tensor()
    y = down(x)
    forth = (-y.indices[:, 0]).argsort(stable=True)
    back = torch.zeros_like(forth).scatter_(0, forth, torch.arange(len(forth)))
    moved = spconv.SparseConvTensor(
        y.features[forth], y.indices[forth], y.spatial_shape, y.batch_size, y.grid, y.voxel_num
    )
    moved._features = moved.features.view(-1, 2, 3)  # heads
    again = y.replace_feature(moved.features.flatten(1)[back])
    assert_same(up(again).features, up(y).features)


def test_a_copy_of_spconvs_sum_by_hash():
    tensors = [tensor(seed) for seed in range(3)]
    first = tensors[0]
    shape = [first.batch_size, *first.spatial_shape]
    table = HashTable(first.features.device, torch.int32, torch.int32, max_size=2000)
    scalars = [_indice_to_scalar(x.indices, shape) for x in tensors]
    for scalar in scalars:
        table.insert(scalar)
    count = table.assign_arange_().item()
    features = first.features.new_zeros(count, 4)
    indices = torch.zeros(count, 4, dtype=torch.int32)
    for x, scalar in zip(tensors, scalars, strict=True):
        rows, missing = table.query(scalar)
        assert (~missing).all()
        features[rows.long()] += x.features
        indices[rows.long()] = x.indices
    total = spconv.SparseConvTensor(features, indices, first.spatial_shape, 2)
    assert_same(total.dense(), sum(x.dense() for x in tensors))


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointing(reentrant):
    network = filled(
        spconv.SparseSequential(
            spconv.SubMConv3d(4, 16, 3, indice_key="a"),
            nn.BatchNorm1d(16),
            nn.ReLU(),
            spconv.SparseConv3d(16, 4, 3, 2, 1),
        )
    )
    x = tensor()
    features = x.features.requires_grad_()

    def run(features):
        return network(x.replace_feature(features)).features

    leaves = [features, *network.parameters()]
    wanted = torch.autograd.grad(run(features).square().sum(), leaves)
    checkpoint(run, features, use_reentrant=reentrant).square().sum().backward()
    for leaf, gradient in zip(leaves, wanted, strict=True):
        assert_same(leaf.grad, gradient)


def test_a_shape_is_a_tensors_own():
    x = tensor()
    y = x.replace_feature(x.features)
    y.spatial_shape[0] += 1
    assert x.spatial_shape == list(SHAPE)
    assert y.dense().shape[2:] == (10, *SHAPE[1:])


@pytest.mark.parametrize("kind", [np.array, torch.tensor, tuple])
def test_a_shape_may_be_an_array(kind):
    x = tensor()
    wanted = x.dense()
    x.spatial_shape = kind(SHAPE)
    assert_same(x.dense(), wanted)
    y = x.shadow_copy()
    assert y.spatial_shape == list(SHAPE)
    assert all(type(number) is int for number in y.spatial_shape)


def test_features_of_other_rows_get_one_line():
    x = tensor()
    fewer = x.replace_feature(x.features[:5])
    line = rf"^features: \[5, 4\], indices have {len(x.indices)} rows$"
    with pytest.raises(ValueError, match=line):
        fewer.dense()
    fewer.indices = x.indices[:5]  # as programs do that cut rows off, or append some
    assert_same(fewer.dense(), x.select_by_index(np.arange(5)).dense())
