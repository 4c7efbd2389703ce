"""Networks as CUDA graphs give what they give as they are."""

from collections import namedtuple

import pytest
import torch
from torch import nn

import millisecond.ops.spconv as spconv
from millisecond.ops.lab import spconv_networks as models
from millisecond.ops.sites import sites_of
from millisecond.ops.spconv import graph as graphs
from millisecond.ops.spconv.graph import Graph, Spare, capacity_of
from tests.helpers.dense_oracle import draws, random_sites

SHAPE, BATCH = (41, 18, 16), 2


def tensor(seed=0, density=0.03, channels=4, device="cpu", order="random"):
    indices = random_sites(seed, BATCH, SHAPE, density)
    if order == "random":
        at = torch.Generator().manual_seed(seed)
        indices = indices[torch.randperm(len(indices), generator=at)]
    features = draws(seed, torch.float32)(len(indices), channels)
    return spconv.SparseConvTensor(features.to(device), indices.to(device), SHAPE, BATCH)


def trained(network, device="cpu"):
    """In eval mode, with statistics as a training leaves them."""
    torch.manual_seed(0)
    for norm in network.modules():
        if isinstance(norm, nn.BatchNorm1d):
            nn.init.uniform_(norm.running_mean, -0.1, 0.1)
            nn.init.uniform_(norm.running_var, 0.5, 2)
    return network.eval().to(device)


class Pools(nn.Module):
    """Pooling, a transposed convolution, and layers of their own keys."""

    def __init__(self):
        super().__init__()
        self.first = spconv.SubMConv3d(4, 16, (1, 3, 3), indice_key="flat")
        self.most, self.mean = spconv.SparseMaxPool3d(2), spconv.SparseAvgPool3d(3, 2, 1)
        self.up = spconv.SparseConvTranspose3d(16, 16, 2, 2)
        self.whole, self.average = spconv.SparseGlobalMaxPool(), spconv.SparseGlobalAvgPool()

    def forward(self, x):
        x = self.first(x)
        down, mean = self.most(x), self.mean(x)
        return self.up(down), mean.features, self.whole(x), self.average(down), x.dense()


Found = namedtuple("Found", "levels point_features batch_size")


class FromDictionary(nn.Module):
    """A backbone as OpenPCDet's: it makes its sparse tensor of features and indices."""

    def __init__(self):
        super().__init__()
        self.stem = spconv.SubMConv3d(4, 16, 3, indice_key="a")
        self.down = spconv.SparseConv3d(16, 32, 3, 2, 1, indice_key="b")
        self.up = spconv.SparseInverseConv3d(32, 16, 3, indice_key="b")

    def backbone(self, batch):
        indices = batch["voxel_coords"].int()
        x = spconv.SparseConvTensor(batch["voxel_features"], indices, SHAPE, batch["batch_size"])
        stem = self.stem(x)
        down = self.down(stem)
        up = self.up(down)
        skip = torch.cat((up.features, stem.features), dim=1)
        levels = {"x_conv1": stem, "x_conv2": down}
        return batch | {"found": Found(levels, skip, batch["batch_size"]), "shape": [*SHAPE]}

    def forward(self, x, scale=None):
        features = x.features if scale is None else x.features * scale
        batch = {"voxel_features": features, "voxel_coords": x.indices}
        return self.backbone(batch | {"batch_size": x.batch_size})


NETWORKS = {
    "second": models.second,
    "residual": models.residual,
    "unet": lambda engine: models.unet(engine, channels=16),
    "pools": lambda engine: Pools(),
    "dictionary": lambda engine: FromDictionary(),
}


def leaves(value):
    return [each for each in graphs._leaves(value) if isinstance(each, torch.Tensor)]


def assert_same(found, wanted, exact=True):
    found, wanted = leaves(found), leaves(wanted)
    assert len(found) == len(wanted)
    for mine, own in zip(found, wanted, strict=True):
        if exact:
            assert torch.equal(mine, own)
        else:
            torch.testing.assert_close(mine, own, rtol=1e-4, atol=1e-5)


class CallsAgain:
    """In place of a CUDA graph: each replay leaves its result in the same memory."""

    def __init__(self, call):
        self._call, self.result = call, call()

    def replay(self):
        for mine, new in zip(leaves(self.result), leaves(self._call()), strict=True):
            mine.copy_(new)


def captured_by_calls(call, pool):
    again = CallsAgain(call)
    return again, again.result


@pytest.fixture
def on_cpu(monkeypatch):
    monkeypatch.setattr(graphs, "captured", captured_by_calls)


def graph_of(network, x, sorts=True):
    with torch.no_grad():
        sites = sites_of(x.indices, SHAPE, BATCH)
        sites.ordered()
        wanted = graphs._call(network, x.features, sites, ())
        graph = Graph(network, x, (), Spare(x, sites, sorts), None)
        graph.check(x, (), wanted)
    return graph


@pytest.mark.usefixtures("on_cpu")
@pytest.mark.parametrize("name", NETWORKS)
def test_a_capacity_of_rows(name):
    """The rows that a network does not have change nothing, in any order of the rows."""
    network = trained(NETWORKS[name](spconv))
    graph = graph_of(network, tensor(0))
    for seed in (1, 2):
        x = tensor(seed, 0.03 - 0.003 * seed)
        with torch.no_grad():
            assert graph.runs(x, ())
            assert_same(graph.result(), network(x), exact=False)
