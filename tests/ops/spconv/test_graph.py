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
    return [each for each in graphs._parts(value) if isinstance(each, torch.Tensor)]


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


def runs(graph, x):
    graph.start(x, ())
    return graph.fits()


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
            assert runs(graph, x)
            assert_same(graph.result(), network(x), exact=False)


@pytest.mark.usefixtures("on_cpu")
@torch.no_grad()
def test_a_level_without_room_is_told():
    network = trained(models.residual(spconv))
    dense = tensor(0)
    few = random_sites(0, BATCH, (4, 18, 16), 0.3)[: len(dense.indices)]  # one above the other
    near = spconv.SparseConvTensor(dense.features[: len(few)], few, SHAPE, BATCH)
    graph = graph_of(network, near)
    assert capacity_of(len(few)) > len(few) >= 600
    far = tensor(1, 0.029)
    far = far.select_by_index(torch.arange(len(few)))
    assert not runs(graph, far)
    assert runs(graph, near)
    with torch.no_grad():
        assert_same(graph.result(), network(near), exact=False)


@pytest.mark.usefixtures("on_cpu")
@pytest.mark.parametrize(
    ("forward", "kind", "message"),
    [
        (lambda m, x: x.features - x.features.mean(0), RuntimeError, "across rows"),
        (lambda m, x: x.features.sum(0), RuntimeError, "across rows"),
        (lambda m, x: x.replace_feature(x.features.flip(0)), RuntimeError, "across rows"),
        (lambda m, x: torch.cat((x.features, m.down(x).features)), RuntimeError, "one level"),
        (lambda m, x: {"rows": len(x.indices)}, TypeError, "returns {}, which is {}"),
        (lambda m, x: [x.features, object()], TypeError, "returns object"),
        (lambda m, x: m.down(x.select_by_index(slice(9))), RuntimeError, "on other indices than x"),
        (lambda m, x: m.dilated(x), ValueError, r"dilation: \(2, 2, 2\)"),
    ],
    ids=["mean", "sum", "order", "two levels", "rows", "object", "indices", "dilation"],
)
def test_networks_without_a_graph(forward, kind, message):
    class Network(nn.Module):
        def __init__(self):
            super().__init__()
            self.down = spconv.SparseConv3d(4, 4, 2, 2)
            self.dilated = spconv.SubMConv3d(4, 4, 3, dilation=2)

    Network.forward = forward
    x = tensor(0)
    message = message.format(len(x.indices), capacity_of(len(x.indices)))
    with pytest.raises(kind, match=message):
        graph_of(Network().eval(), x)


def test_capacities():
    for rows in (*range(1, 3000), 20_000, 99_999, 131_071, 131_072, 352_000):
        assert rows < capacity_of(rows) <= max(rows * 1.125 + 1, rows + 128)
    assert len({capacity_of(rows) for rows in range(65_536, 131_072)}) == 8


def test_on_a_cpu_the_network_runs_as_it_is():
    network = trained(models.unet(spconv, channels=16))
    x = tensor(0)
    fast = spconv.graphed(network)
    with torch.no_grad():
        wanted = network(x)
    assert torch.equal(fast(tensor(0)), wanted)
    assert not fast(tensor(0)).requires_grad


def test_what_is_no_call_for_inference():
    network = trained(nn.Sequential(spconv.SubMConv3d(4, 16, 3, indice_key="a")))
    fast, x = spconv.graphed(network), tensor(0)
    with pytest.raises(TypeError, match="a SparseConvTensor, got dict"):
        fast({"voxel_features": x.features})
    with pytest.raises(TypeError, match=r"expected a torch.nn.Module, got function"):
        spconv.graphed(lambda x: x)
    with pytest.raises(TypeError, match="tensors alone"):
        fast(x, 3)
    with pytest.raises(ValueError, match="want gradients"):
        fast(x.replace_feature(x.features.requires_grad_()))
    with torch.no_grad(), pytest.raises(ValueError, match=r"indice_dict: has \['a'\]"):
        fast(network(tensor(0)).replace_feature(tensor(0).features))
    network[0].train()
    with pytest.raises(ValueError, match=r"SubMConv3d is in training mode.*model\.eval\(\)"):
        fast(tensor(0))


def changes(network):
    """What a user may do to a network between two calls."""
    yield "in place", lambda: network.stem[0].weight.mul_(1.5)
    yield "statistics", lambda: network.stem[1].running_var.mul_(2)
    state = {key: 0.5 * value for key, value in network.state_dict().items()}
    yield "load_state_dict", lambda: network.load_state_dict(state)
    yield (
        "another parameter",
        lambda: setattr(network.stem[0], "weight", nn.Parameter(network.stem[0].weight * 3)),
    )
    yield "another module", lambda: network.stem.add_module("2", nn.Identity().eval())
    yield "data", lambda: setattr(network.stem[0].weight, "data", network.stem[0].weight.data / 2)


@torch.no_grad()
def test_a_changed_network_is_seen():
    network = trained(models.residual(spconv))
    for name, change in changes(network):
        before = graphs._state_of(network)
        assert graphs._state_of(network)[0] == before[0]
        change()
        assert graphs._state_of(network)[0] != before[0], name


# ---- on a GPU -----------------------------------------------------------------------------------


@pytest.fixture
def captures(monkeypatch):
    """How many graphs were captured, as the length of a list."""
    seen, captured = [], graphs.captured

    def counted(*args, **kwargs):
        seen.append(None)
        return captured(*args, **kwargs)

    monkeypatch.setattr(graphs, "captured", counted)
    return seen


EXACT = ["second", "residual", "unet", "dictionary"]


@pytest.mark.gpu
@pytest.mark.parametrize("order", ["random", "sorted"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("name", EXACT)
def test_the_same_bits_at_every_size(name, dtype, order, captures):
    network = trained(NETWORKS[name](spconv), "cuda").to(dtype)
    fast, kept = spconv.graphed(network), []
    for density in (0.02, 0.019, 0.045, 0.021, 0.043, 0.02, 0.001):
        x = tensor(int(1e4 * density), density, device="cuda", order=order)
        x = x.replace_feature(x.features.to(dtype))
        with torch.no_grad():
            wanted = network(x.shadow_copy())
        kept.append((fast(x), wanted))
        count = len(captures)
        kept.append((fast(x), wanted))
        assert len(captures) == count  # the second call is a replay
    assert 3 <= len(fast._graphs) <= count
    for found, wanted in kept:  # later calls have changed no result
        assert_same(found, wanted)


@pytest.mark.gpu
@torch.no_grad()
def test_layers_whose_products_depend_on_the_rows():
    """A matrix product of torch, and a sum over rows, may take another way for other rows."""
    encoding = trained(models.positional_encoding(spconv), "cuda")
    pools = trained(Pools(), "cuda")
    fast = {network: spconv.graphed(network) for network in (encoding, pools)}
    for seed in range(4):
        for network, channels in ((encoding, 6), (pools, 4)):
            x = tensor(seed, 0.03 - 0.0005 * seed, channels, "cuda")
            for _ in range(2):
                assert_same(fast[network](x), network(x.shadow_copy()), exact=False)


@pytest.mark.gpu
@torch.no_grad()
def test_a_level_without_room_is_captured_anew(captures):
    network = trained(models.residual(spconv), "cuda")
    fast = spconv.graphed(network)
    few = random_sites(0, BATCH, (4, 18, 16), 0.3)
    features = draws(0, torch.float32)(len(few), 4).cuda()
    near = spconv.SparseConvTensor(features, few.cuda(), SHAPE, BATCH)
    wide = random_sites(1, BATCH, SHAPE, 0.05)
    wide = wide[torch.randperm(len(wide))[: len(few)]].cuda()
    far = spconv.SparseConvTensor(features, wide, SHAPE, BATCH)
    wanted = [network(x.shadow_copy()) for x in (near, far)]
    for count, at in ((1, 0), (1, 0), (2, 1), (2, 1), (2, 0)):
        assert torch.equal(fast([near, far][at]), wanted[at])
        assert len(captures) == count
    assert len(fast._graphs) == 1


@pytest.mark.gpu
@torch.no_grad()
def test_changed_networks(captures):
    network = trained(models.residual(spconv), "cuda")
    fast = spconv.graphed(network)
    for number, (name, change) in enumerate(changes(network), start=1):
        for _ in range(2):
            assert torch.equal(fast(tensor(0, device="cuda")), network(tensor(0, device="cuda")))
        assert len(captures) == number, name
        change()


@pytest.mark.gpu
@torch.no_grad()
def test_weights_that_layers_keep(captures):
    network = trained(models.residual(spconv), "cuda").half()
    fast, x = spconv.graphed(network), tensor(0, device="cuda")
    x = x.replace_feature(x.features.half())
    wanted = fast(x)
    network.float()(tensor(0, device="cuda"))  # other weights are kept instead
    network.half()
    filled = [torch.full((n,), torch.nan, device="cuda") for n in (1 << 8, 1 << 14, 1 << 20) * 50]
    assert torch.equal(fast(x), wanted)
    del filled
    network.stem[0].weight.data.mul_(2)  # as some mean teachers do: nothing tells
    network.eval()
    count = len(captures)
    assert not torch.equal(fast(x), wanted) and len(captures) == count + 1
    assert torch.equal(fast(x), network(x.shadow_copy())) and len(captures) == count + 1


@pytest.mark.gpu
@torch.no_grad()
def test_rows_in_another_order_twice_and_outside(captures):
    network = trained(models.unet(spconv, channels=16), "cuda")
    fast = spconv.graphed(network)
    rows = tensor(0, device="cuda", order="sorted")
    mixed = rows.select_by_index(torch.randperm(len(rows.indices), device="cuda"))
    twice, outside = rows.indices.clone(), rows.indices.clone()
    twice[7], outside[-1, 1] = twice[3], SHAPE[0]
    inputs = [rows, mixed]
    inputs += [spconv.SparseConvTensor(rows.features, i, SHAPE, BATCH) for i in (twice, outside)]
    for _ in range(2):
        for x in inputs:
            wanted = network(x.shadow_copy())
            assert torch.equal(fast(x), wanted)
    assert len(captures) == 2  # one of sorted rows, one that sorts
    empty = rows.select_by_index(torch.zeros(len(rows.indices), dtype=torch.bool, device="cuda"))
    assert fast(empty).shape == (0, 16)


@pytest.mark.gpu
@torch.no_grad()
def test_networks_that_wait_for_the_gpu():
    class Reads(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = spconv.SubMConv3d(4, 16, 3)

        def forward(self, x):
            x = self.conv(x)
            return x.replace_feature(x.features * float(x.features.shape[1] + x.indices[0, 0]))

    network, x = Reads().cuda().eval(), tensor(0, device="cuda")
    for _ in range(2):
        with pytest.raises(RuntimeError, match=r"Reads has no graph.*test_graph\.py:\d+"):
            spconv.graphed(network)(x)
    fast, good = spconv.graphed(network.conv), network.conv(tensor(0, device="cuda"))
    for _ in range(2):
        assert_same(fast(x), good)

    class Counts(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("calls", torch.zeros(1))

        def forward(self, x):
            self.calls += 1
            return x

    with pytest.raises(RuntimeError, match="Counts changes its parameters or buffers"):
        spconv.graphed(Counts().cuda().eval())(x)


@pytest.mark.gpu
def test_kinds_of_calls(captures):
    """Autocast, precision, inference mode and more tensors have graphs of their own; at most
    MOST_GRAPHS stay."""
    network = trained(models.positional_encoding(spconv), "cuda")
    fast, x = spconv.graphed(network), tensor(0, channels=6, device="cuda")
    for number, half in enumerate((False, True, False, True)):
        with torch.inference_mode(), torch.autocast("cuda", torch.float16, half):
            wanted = network(tensor(0, channels=6, device="cuda"))
            for _ in range(2):
                found = fast(x)
                assert found.dtype == wanted.dtype
                torch.testing.assert_close(found, wanted, rtol=1e-2, atol=5e-3)
        assert len(captures) == min(number + 1, 2)
    scaled = spconv.graphed(FromDictionary().cuda().eval())
    for scale in (1.0, 2.0, 3.0):
        more = torch.full((4,), scale, device="cuda")
        x = tensor(0, device="cuda")
        with torch.no_grad():
            assert_same(scaled(x, more), scaled.model(tensor(0, device="cuda"), more))
    conv = spconv.graphed(spconv.SubMConv3d(4, 16, 3).cuda().eval())
    for rows in range(200, 200 + 128 * (graphs.MOST_GRAPHS + 3), 128):
        x = tensor(0, 0.2, device="cuda")
        conv(x.select_by_index(torch.arange(rows, device="cuda")))
    assert len(conv._graphs) == graphs.MOST_GRAPHS


@pytest.mark.gpu
@torch.no_grad()
def test_streams():
    network = trained(models.residual(spconv), "cuda").half()
    fast = spconv.graphed(network)
    inputs = [tensor(seed, 0.04, device="cuda", order="sorted") for seed in range(4)]
    inputs = [x.replace_feature(x.features.half()) for x in inputs]
    wanted = [network(x.shadow_copy()) for x in inputs]
    torch.cuda.synchronize()
    found = []
    for turn in range(12):
        with torch.cuda.stream(torch.cuda.Stream()):
            found.append(fast(inputs[turn % 4]))
    torch.cuda.synchronize()
    for turn, result in enumerate(found):
        assert torch.equal(result, wanted[turn % 4])
