"""Several rows at one site, and sites outside of the grid: against numbers of spconv 2.3.8's CPU
build on one thread, and against its pairs of rows by hand, in float64."""

import copy
from itertools import product

import pytest
import torch
from torch.nn import functional

import millisecond.ops.spconv as spconv
from millisecond.ops.lab import spconv_networks as models
from tests.conftest import CONV_BLOCKS
from tests.helpers.dense_oracle import assert_same, assert_same_gradients, draws, gradients
from tests.helpers.sparse import error

ON_GPU = pytest.param("cuda", marks=pytest.mark.gpu)
GRIDS = {1: (9,), 2: (5, 6), 3: (6, 5, 4), 4: (3, 2, 3, 4)}
BATCH = 2
# rows 5 and 6, and 3 and 8, are at one site each; row 7 is outside
SITES = [(2, 1), (0, 0), (1, 2), (0, 2), (2, 0), (1, 0), (1, 0), (9, 9), (0, 2), (1, 1)]
OF_SPCONV = {
    "submanifold": [67, 148, 88, 114, 87, 143, 144, 40, 139, 204],
    "strided": [81, 22, 7],
    "inverse": [14, 81, 66, 22, 7, 243, 243, 0, 22, 324],
    "largest": [10, 9, 5],
}


def sites(seed, dims, rows=60, outside=4):
    """Indices of about two rows a site, a few of them outside."""
    generator = torch.Generator().manual_seed(seed)
    columns = [torch.randint(size, (rows,), generator=generator) for size in (BATCH, *GRIDS[dims])]
    indices = torch.stack(columns, 1).int()
    indices[:outside, 1] = torch.tensor([-70, 1 << 30, 70, -(1 << 31)][:outside], dtype=torch.int32)
    return indices[torch.randperm(rows, generator=generator)]


def tensor(indices, dims, channels=3, seed=0):
    features = draws(seed)(len(indices), channels).requires_grad_()
    return spconv.SparseConvTensor(features, indices, GRIDS[dims], BATCH)


def pairs_by_hand(indices, shape, kernel):
    """As spconv's CPU build finds the pairs of a submanifold layer: (offset, input, output)."""
    limit, first = (BATCH, *shape), {}
    for row, site in enumerate(indices.tolist()):
        if all(0 <= c < n for c, n in zip(site, limit, strict=True)):
            first.setdefault(tuple(site), row)
    steps = [*product(*([range(-(k // 2), k // 2 + 1) for k in kernel]))]
    centre, found = len(steps) // 2, [(len(steps) // 2, row, row) for row in range(len(indices))]
    for offset, step in enumerate(steps[:centre]):
        for row, (frame, *site) in enumerate(indices.tolist()):
            other = first.get((frame, *(c - s for c, s in zip(site, step, strict=True))))
            if other is not None:
                found += [(offset, row, other), (len(steps) - 1 - offset, other, row)]
    return found


def numbered(layer):
    """The layer with the weight 1, 2, 3 and so on."""
    with torch.no_grad():
        layer.weight.copy_(torch.arange(1.0, layer.weight.numel() + 1).view_as(layer.weight))
    return layer


def test_numbers_of_spconv():
    features = torch.arange(1.0, len(SITES) + 1)[:, None]
    indices = torch.tensor([(0, *site) for site in SITES], dtype=torch.int32)
    x = spconv.SparseConvTensor(features, indices, (8, 8), 1)
    down = numbered(spconv.SparseConv2d(1, 1, 2, 2, bias=False, indice_key="d"))(x)
    found = {
        "submanifold": numbered(spconv.SubMConv2d(1, 1, 3, bias=False))(x),
        "strided": down,
        "inverse": numbered(spconv.SparseInverseConv2d(1, 1, 2, "d", bias=False))(down),
        "largest": spconv.SparseMaxPool2d(2, 2)(x),
    }
    assert {name: y.features.flatten().tolist() for name, y in found.items()} == OF_SPCONV
    assert down.indices.tolist() == [[0, 0, 0], [0, 0, 1], [0, 1, 0]]
    grid = x.dense()[0, 0]
    assert grid[:3, :3].tolist() == [[2, 0, 9], [7, 10, 3], [5, 1, 0]]
    assert grid.count_nonzero() == 7


def test_the_example_of_four_rows():
    indices = torch.tensor([[0, 5, 5], [0, 5, 6], [0, 5, 5], [0, 9, 9]], dtype=torch.int32)
    x = spconv.SparseConvTensor(torch.arange(1.0, 5)[:, None], indices, (8, 8), 1)
    conv = spconv.SubMConv2d(1, 1, 3, bias=False)
    torch.nn.init.ones_(conv.weight)
    assert conv(x).features.flatten().tolist() == [3, 6, 5, 4]


@pytest.mark.parametrize("dims", GRIDS)
def test_submanifold_layers_by_pairs(dims):
    kernel = (3, 5, 1, 3)[:dims]
    x = tensor(sites(dims, dims), dims)
    conv = getattr(spconv, f"SubMConv{dims}d")(3, 4, kernel).double()
    weight, expected = conv.weight.flatten(1, -2), conv.bias.expand(len(x.indices), -1)
    for offset, read, written in pairs_by_hand(x.indices, GRIDS[dims], kernel):
        given = x.features[read : read + 1] @ weight[:, offset].T
        expected = expected.index_add(0, torch.tensor([written]), given)
    y = conv(x)
    assert y.indices is x.indices
    assert_same_gradients(y.features, expected, [x.features, *conv.parameters()])


@pytest.mark.parametrize("dims", GRIDS)
def test_strided_layers_and_pools_add_or_compare_the_rows_of_a_site(dims):
    x = tensor(sites(dims, dims, rows=150), dims)
    inside = ((x.indices >= 0) & (x.indices < torch.tensor([BATCH, *GRIDS[dims]]))).all(1)
    different, number = x.indices[inside].unique(dim=0, return_inverse=True)
    assert number.bincount().max() > 2

    def of_sites(reduce):
        rows = x.features[inside]
        features = [reduce(rows[number == n]) for n in range(len(different))]
        return spconv.SparseConvTensor(torch.stack(features), different, GRIDS[dims], BATCH)

    window = {"stride": 2, "padding": 1, "indice_key": "d"}
    down = getattr(spconv, f"SparseConv{dims}d")(3, 4, 3, **window).double()
    up = getattr(spconv, f"SparseInverseConv{dims}d")(4, 3, 3, "d").double()
    y, wanted = down(x), down(of_sites(lambda rows: rows.sum(0)))
    leaves = [x.features, *down.parameters(), *up.parameters()]
    assert torch.equal(y.indices, wanted.indices)
    assert_same(y.features, wanted.features)
    back, expected = up(y).features, up(wanted).features
    assert_same(back[~inside], up.bias.expand(int((~inside).sum()), -1))
    assert_same_gradients(back[inside], expected[number], leaves)

    pool = getattr(spconv, f"SparseMaxPool{dims}d")(3, 2, 1)
    highest = of_sites(lambda rows: rows.max(0).values)
    assert_same_gradients(pool(x).features, pool(highest).features, [x.features])
    if dims < 4:
        pool = getattr(spconv, f"SparseAvgPool{dims}d")(3, 2, 1)
        sums = of_sites(lambda rows: functional.pad(rows, (0, 1), value=1.0).sum(0))
        mean = pool(sums).features
        assert_same_gradients(pool(x).features, mean[:, :-1] / mean[:, -1:], [x.features])


NETWORKS = {
    "unet": lambda: models.unet(spconv, levels=2),
    "stack": lambda: models.stack(spconv, 4),
}


@pytest.mark.parametrize("device", ["cpu", ON_GPU])
@pytest.mark.parametrize("name", NETWORKS)
def test_networks_in_training_and_inference(name, device):
    """Against the CPU in float64, module by module; and the same bits each time."""
    indices = sites(3, 3, rows=500).to(device)
    plain, features = NETWORKS[name]().double(), draws(0)(len(indices), 4)
    network = copy.deepcopy(plain).float().to(device)
    for module in plain.modules():
        module.register_forward_hook(lambda *_: None)  # nothing is computed in one call with others
    for training in (True, True, False, False):
        wide, rows = features.clone().requires_grad_(), features.float().to(device)
        x = spconv.SparseConvTensor(wide, indices.cpu(), GRIDS[3], BATCH)
        results, network, plain = [], network.train(training), plain.train(training)
        for _ in range(2):
            expected = plain(x)
            rows = rows.detach().requires_grad_()
            y = network(spconv.SparseConvTensor(rows, indices.clone(), GRIDS[3], BATCH))
            results.append([y.detach(), *gradients(y, [rows, *network.parameters()])])
        wanted = [expected, *gradients(expected, [wide])]
        for a, b in zip(results[0], wanted, strict=False):
            assert error(a, b) < 10 * CONV_BLOCKS[torch.float32]
        assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


@pytest.mark.parametrize("device", ["cpu", ON_GPU])
def test_all_rows_outside(device):
    indices = torch.tensor([[0, 9, 9, 9], [5, 1, 1, 1], [-1, 0, 0, 0]], device=device)
    features = torch.ones(3, 4, device=device, requires_grad=True)
    x = spconv.SparseConvTensor(features, indices, GRIDS[3], BATCH)
    conv = spconv.SubMConv3d(4, 16, 3).to(device)
    down = spconv.SparseConv3d(16, 8, 3, 2, 1, indice_key="d").to(device)
    up = spconv.SparseInverseConv3d(8, 4, 3, "d").to(device)
    y, centre = conv(x), conv.weight[:, 1, 1, 1]
    torch.testing.assert_close(y.features, features @ centre.T + conv.bias, rtol=1e-3, atol=1e-3)
    z = up(down(y))
    assert torch.equal(z.features, up.bias.expand(3, -1))
    assert z.dense().count_nonzero() == 0
    z.features.sum().backward()
    for pool in (spconv.SparseMaxPool3d(2), spconv.SparseAvgPool3d(2)):
        assert pool(x).features.shape == (0, 4)


def test_what_tells_rows_of_one_site_apart_says_so():
    x = tensor(sites(0, 3), 3)
    data = spconv.SubMConv3d(3, 3, 3, indice_key="a").double()(x).find_indice_pair("a")
    with pytest.raises(NotImplementedError, match="pairs: indices have a site twice"):
        _ = data.indice_pairs
    with pytest.raises(NotImplementedError, match="SparseMaxPool: subm, and indices have a site"):
        spconv.pool.SparseMaxPool(3, subm=True)(x)
