"""ops.spconv on CUDA against itself on the CPU in float64, which dense grids judge."""

import copy

import pytest
import torch
from torch import nn

import millisecond.ops.spconv as spconv
from millisecond.ops import line_maps
from millisecond.ops.lab import spconv_networks as models
from tests.conftest import CONV_BLOCKS, CONVOLUTION
from tests.helpers.dense_oracle import draws, random_sites
from tests.helpers.sparse import error

pytestmark = pytest.mark.gpu
SHAPE = (41, 18, 16)
HALVES = [torch.float16, torch.bfloat16]


@pytest.fixture(params=["bitmap", "lines"])
def index(request, monkeypatch):
    """Kernel maps from the bitmap of the grid, and from its lines."""
    if request.param == "lines":
        monkeypatch.setattr(line_maps, "MOST_BYTES", 0)


def sites(seed, density=0.05, batch=3):
    found = random_sites(seed, batch, SHAPE, density)
    found = found[found[:, 0] != 1]  # an empty frame
    return found[torch.randperm(len(found), generator=torch.Generator().manual_seed(seed))]


def run(network, features, indices, device, dtype=torch.float64):
    x = features.to(device, dtype)
    y = network(spconv.SparseConvTensor(x, indices.to(device), SHAPE, 3))
    return y.features if isinstance(y, spconv.SparseConvTensor) else y


@pytest.mark.usefixtures("index")
@pytest.mark.parametrize(
    ("build", "channels", "deep"),
    [
        (models.second, 4, True),
        (lambda engine: models.unet(engine, channels=16, levels=2), 4, False),
        (models.positional_encoding, 6, False),
    ],
    ids=["second", "unet", "positional encoding"],
)
def test_networks_in_training_and_inference(build, channels, deep):
    """Rounding turns a few ReLUs of a deep network, so its gradients are not compared."""
    torch.manual_seed(0)
    ours = build(spconv)
    wanted, got = copy.deepcopy(ours).double(), ours.cuda()
    for seed in range(3):  # the maps of the second and third are foreseen
        indices, rows = sites(seed, 0.03 * (1 + seed)), draws(seed)
        features = rows(len(indices), channels)
        expected = run(wanted, features, indices, "cpu")
        result = run(got, features, indices, "cuda", torch.float32)
        assert error(result, expected) < CONV_BLOCKS[torch.float32]
    expected.square().mean().backward()
    result.square().mean().backward()
    for (name, a), b in zip(got.named_parameters(), wanted.parameters(), strict=True):
        if (
            not deep and b.grad.norm() > 1e-9
        ):  # not a bias before a normalisation, whose gradient is zero
            assert error(a.grad, b.grad) < 5e-3, name
    with torch.no_grad():
        for _ in range(2):
            expected = run(wanted.eval(), features, indices, "cpu")
            result = run(got.eval(), features, indices, "cuda", torch.float32)
            assert error(result, expected) < CONV_BLOCKS[torch.float32]


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize(
    ("c_in", "c_out", "kernel", "groups"),
    [
        (5, 7, 3, 1),
        (1, 16, 3, 1),
        (4, 16, 5, 1),
        (6, 33, 5, 1),
        (6, 33, 5, 3),
        (128, 144, 3, 1),
        (128, 144, 3, 8),
        (32, 32, 7, 32),
    ],
)
def test_convolutions_of_every_width(c_in, c_out, kernel, groups, dtype):
    indices, draw = sites(3), draws(0, dtype)
    features = draw(len(indices), c_in)
    conv = spconv.SubMConv3d(c_in, c_out, kernel, groups=groups, bias=False).to(dtype)
    with torch.no_grad():
        expected = run(copy.deepcopy(conv).double(), features, indices, "cpu")
    conv, x = conv.cuda(), features.cuda().requires_grad_()
    y = conv(spconv.SparseConvTensor(x, indices.cuda(), SHAPE, 3)).features
    assert error(y, expected) < CONVOLUTION[dtype, "highest"]  # a kernel in pieces is rounded once
    seen = draw(*y.shape).cuda()
    again = conv(spconv.SparseConvTensor(x, indices.cuda(), SHAPE, 3)).features
    first = torch.autograd.grad(y, [x, conv.weight], seen)
    second = torch.autograd.grad(again, [x, conv.weight], seen)
    assert torch.equal(y, again)
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    double = copy.deepcopy(conv).double().cpu()
    rows = features.double().requires_grad_()
    reference = run(double, rows, indices, "cpu")
    wanted = torch.autograd.grad(reference, [rows, double.weight], seen.double().cpu())
    for a, b in zip(first, wanted, strict=True):
        assert error(a, b) < 3 * CONVOLUTION[dtype, "highest"]


@pytest.mark.parametrize("dtype", HALVES)
def test_a_wide_block_under_autocast(dtype):
    torch.manual_seed(0)
    indices, draw = sites(4, 0.1), draws(0)
    features = draw(len(indices), 128)
    network = models.stack(spconv, 128, layers=1)
    wanted, got = copy.deepcopy(network).double(), network.cuda()
    with torch.autocast("cuda", dtype):
        result = run(got, features, indices, "cuda", torch.float32)
    assert result.dtype == dtype
    expected = run(wanted, features, indices, "cpu")
    assert error(result, expected) < CONV_BLOCKS[dtype]
    result.float().square().mean().backward()
    expected.square().mean().backward()
    for a, b in zip(got.parameters(), wanted.parameters(), strict=True):
        assert error(a.grad, b.grad) < CONV_BLOCKS[dtype]
    with torch.no_grad(), torch.autocast("cuda", dtype):
        result = run(got.eval(), features, indices, "cuda", torch.float32)
        assert error(result, run(wanted.eval(), features, indices, "cpu")) < CONV_BLOCKS[dtype]


@pytest.mark.usefixtures("index")
def test_sorted_and_shuffled_sites_in_turn():
    """A map of sorted sites is built before they are known to be sorted."""
    conv, features = spconv.SubMConv3d(4, 16, 3).cuda(), draws(7)(3, 4)
    indices = random_sites(7, 3, SHAPE, 0.05)
    features = features[torch.arange(len(indices)) % 3] * torch.arange(len(indices))[:, None]
    expected = run(copy.deepcopy(conv).double().cpu(), features, indices, "cpu")
    in_order, shuffled = torch.arange(len(indices)), torch.randperm(len(indices))
    for rows in (in_order, in_order, shuffled, in_order, shuffled):
        found = run(conv, features[rows], indices[rows], "cuda", torch.float32)
        assert error(found, expected[rows]) < CONVOLUTION[torch.float32, "highest"]


@pytest.mark.parametrize("normed", [False, True])
def test_weights_of_one_dimension(normed):
    """They have three, as [V, C_in, C_out] has, but in another order."""
    torch.manual_seed(0)
    layers = [spconv.SubMConv1d(16, 32, 3, bias=not normed)]
    layers += [nn.BatchNorm1d(32), nn.ReLU()] if normed else []
    network, indices = spconv.SparseSequential(*layers), random_sites(9, 2, (300,))
    features, results = draws(3)(len(indices), 16), []
    for device, dtype in (("cpu", torch.float64), ("cuda", torch.float32)):
        net = copy.deepcopy(network).to(device, dtype)
        x = features.to(device, dtype).requires_grad_()
        y = net(spconv.SparseConvTensor(x, indices.to(device), (300,), 2)).features
        results.append([y, *torch.autograd.grad(y.square().sum(), [x, *net.parameters()])])
    for wanted, found in zip(*results, strict=True):
        assert error(found, wanted) < CONV_BLOCKS[torch.float32]


def test_empty_inputs():
    conv = spconv.SparseSequential(
        spconv.SubMConv3d(16, 16, 3), nn.BatchNorm1d(16), nn.ReLU(), spconv.SparseMaxPool3d(2)
    ).cuda()
    none = torch.zeros(0, 4, dtype=torch.int32, device="cuda")
    y = conv(spconv.SparseConvTensor(torch.zeros(0, 16, device="cuda"), none, SHAPE, 2))
    assert y.dense().shape == (2, 16, 20, 9, 8)


@pytest.mark.parametrize("dtype", [torch.float32, *HALVES])
@pytest.mark.parametrize(
    "pool",
    [
        spconv.SparseMaxPool3d(3, 2, 1),
        spconv.SparseAvgPool3d(2, 2),
        spconv.SparseGlobalMaxPool(),
        spconv.SparseGlobalAvgPool(),
    ],
    ids=lambda pool: type(pool).__name__,
)
def test_pools(pool, dtype):
    indices, draw = sites(5), draws(1, dtype)
    features = draw(len(indices), 24)
    wide, narrow = features.double().requires_grad_(), features.cuda().requires_grad_()
    expected, found = run(pool, wide, indices, "cpu"), run(pool, narrow, indices, "cuda", dtype)
    seen = draw(*found.shape)
    wanted = torch.autograd.grad(expected, wide, seen.double())[0]
    assert error(found, expected) < CONVOLUTION[dtype, "highest"]
    assert error(torch.autograd.grad(found, narrow, seen.cuda())[0], wanted) < 5e-3


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize(("c_in", "c_out"), [(16, 32), (7, 9), (128, 128)])
def test_a_convolution_alone_under_autocast(dtype, c_in, c_out):
    """Its weights stay in float32, and what is kept of them follows their changes."""
    indices, draw = sites(6), draws(2)
    features, conv = draw(len(indices), c_in), spconv.SubMConv3d(c_in, c_out, 3).cuda()
    wide, x = features.double().requires_grad_(), features.cuda().requires_grad_()
    with torch.autocast("cuda", dtype):
        found = run(conv, x, indices, "cuda", torch.float32)
    assert found.dtype == dtype
    double = copy.deepcopy(conv).double().cpu()
    expected, seen = run(double, wide, indices, "cpu"), draw(*found.shape)
    inputs = [wide, double.weight, double.bias]
    wanted = torch.autograd.grad(expected, inputs, seen.to(dtype).double())
    got = torch.autograd.grad(found, [x, conv.weight, conv.bias], seen.cuda().to(dtype))
    for a, b in zip((found, *got), (expected, *wanted), strict=True):
        assert error(a, b) < CONV_BLOCKS[dtype]
    assert got[1].dtype == torch.float32
    for factor in (1, 2, 2):
        with torch.no_grad(), torch.autocast("cuda", dtype):
            conv.weight *= factor
            conv.bias *= factor
            kept = run(conv, x, indices, "cuda", torch.float32)
        if factor == 1:
            assert torch.equal(kept, found)
    assert error(kept, 4 * expected) < CONV_BLOCKS[dtype]
