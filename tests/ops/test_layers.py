"""Layers against dense modules with the same weights."""

import copy

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from millisecond.ops import (
    InverseConv,
    SparseMaxPool,
    SparseTensor,
    StridedConv,
    SubmanifoldConv,
    TransposedConv,
    line_maps,
    strided_map,
    submanifold_map,
)
from tests.conftest import CONVOLUTION
from tests.helpers.dense_oracle import draws, random_sites, read, scatter
from tests.helpers.sparse import error, poison

SHAPE = (5, 6, 7)
CONV = {2: functional.conv2d, 3: functional.conv3d}
TRANSPOSED = {2: functional.conv_transpose2d, 3: functional.conv_transpose3d}
CUBES = [((9, 8, 7), (size,) * 3, dilation, (3, 4, 1)) for size in (3, 5, 7) for dilation in (1, 2)]
GROUPED = [  # grid, kernel, dilation, channels and groups
    ((5, 6, 7), (3, 3, 3), 1, (6, 4, 2)),
    ((5, 6, 7), (3, 1, 2), 1, (16, 16, 16)),
    ((9, 8), (4, 3), 2, (3, 6, 3)),
    ((9, 8), (5, 5), 1, (32, 16, 2)),
]


@pytest.fixture
def x() -> SparseTensor:
    torch.manual_seed(0)
    coords = (torch.rand(2, *SHAPE) < 0.3).nonzero().int()
    return SparseTensor(torch.randn(len(coords), 4), coords, SHAPE, 2)


def copy_weight(layer, module, transposed=False):
    kernel = module.kernel_size
    weight = layer.weight.detach().view(*kernel, *layer.weight.shape[1:])
    module.weight.data = weight.movedim((-2, -1) if transposed else (-1, -2), (0, 1)).contiguous()
    if layer.bias is not None:
        module.bias.data = layer.bias.detach()


def active(x: SparseTensor) -> torch.Tensor:
    return x.replace(torch.ones(len(x.coords), 1)).dense()


def down(x: SparseTensor, layer):
    return layer(x, *strided_map(x.coords, x.spatial_shape, x.batch_size, layer.geometry))


@pytest.mark.parametrize("bias", [False, True])
def test_submanifold_conv(x, bias):
    layer = SubmanifoldConv(4, 5, (3, 1, 5), dilation=(1, 1, 2), bias=bias)
    module = nn.Conv3d(4, 5, (3, 1, 5), dilation=(1, 1, 2), padding=(1, 0, 4), bias=bias)
    copy_weight(layer, module)
    kernel_map = submanifold_map(x.coords, SHAPE, 2, layer.kernel_size, layer.dilation)
    out = layer(x, kernel_map)
    assert out.coords is x.coords
    torch.testing.assert_close(out.dense(), module(x.dense()) * active(x), rtol=1e-5, atol=1e-5)


def test_strided_conv(x):
    layer = StridedConv(4, 5, 3, stride=2, padding=(0, 1, 1))
    module = nn.Conv3d(4, 5, 3, stride=2, padding=(0, 1, 1), bias=False)
    copy_weight(layer, module)
    torch.testing.assert_close(down(x, layer).dense(), module(x.dense()), rtol=1e-5, atol=1e-5)


def test_inverse_conv_gives_back_the_sites(x):
    encoder, decoder = StridedConv(4, 5, 3, stride=2, padding=1), InverseConv(5, 6, 3)
    coords, shape, kernel_map = strided_map(x.coords, SHAPE, 2, encoder.geometry)
    small = encoder(x, coords, shape, kernel_map)
    out = decoder(small, x, kernel_map)
    assert out.coords is x.coords and out.spatial_shape == SHAPE
    module = nn.ConvTranspose3d(5, 6, 3, stride=2, padding=1, output_padding=(0, 1, 0), bias=False)
    copy_weight(decoder, module, transposed=True)
    expected = module(small.dense()) * active(x)
    torch.testing.assert_close(out.dense(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("stride", [None, 3])
def test_max_pool(x, stride):
    x = x.replace(x.features.abs())
    expected = nn.MaxPool3d(2, stride)(x.dense())
    assert torch.equal(down(x, SparseMaxPool(2, stride)).dense(), expected)


def test_convolution_of_images(x):
    coords = (torch.rand(2, 8, 9) < 0.3).nonzero().int()
    image = SparseTensor(torch.randn(len(coords), 4), coords, (8, 9), 2)
    layer, module = StridedConv(4, 5, 3, 2, 1, dims=2), nn.Conv2d(4, 5, 3, 2, 1, bias=False)
    copy_weight(layer, module)
    torch.testing.assert_close(down(image, layer).dense(), module(image.dense()))


def test_initialisation_is_that_of_the_dense_module():
    """Uniform within 1 / sqrt(V * C_in), which Kaiming's rule with a = sqrt(5) comes to."""
    torch.manual_seed(1)
    layer, module = SubmanifoldConv(16, 64, bias=True), nn.Conv3d(16, 64, 3)
    assert layer.weight.shape == (27, 16, 64)
    for own, other in zip(layer.parameters(), module.parameters(), strict=True):
        assert own.abs().max() <= (27 * 16) ** -0.5
        torch.testing.assert_close(own.std(), other.std(), rtol=0.15, atol=0)
    assert dict(SubmanifoldConv(4, 4).named_parameters()).keys() == {"weight"}


def test_numpys_whole_numbers_are_whole_numbers(x):
    """As a grid has them that was computed from a range and the size of a voxel."""
    given = SparseTensor(x.features, x.coords, np.array(SHAPE), 2)
    twins = [StridedConv(4, 6, kernel, 2, 1) for kernel in (3, np.int64(3))]
    twins[1].load_state_dict(twins[0].state_dict())
    assert twins[1].geometry == twins[0].geometry
    expected, found = twins[0](x), twins[1](given)
    assert torch.equal(found.dense(), expected.dense())
    layer = SubmanifoldConv(4, 4, np.array([3, 1, 3]))
    assert torch.equal(layer(given).features, layer(x).features)
    with pytest.raises(
        ValueError, match=r"kernel_size: expected 3 whole numbers from 1 up, got 3\.0"
    ):
        SubmanifoldConv(4, 4, np.float64(3))


def test_even_submanifold_kernel_is_named():
    with pytest.raises(ValueError, match="kernel_size: a submanifold kernel has odd sizes only"):
        SubmanifoldConv(4, 4, 2)


@pytest.mark.parametrize("shape", [(27, 4), (27, 5, 6), (3, 3, 3, 4, 6)])
def test_a_weight_of_another_shape_is_named(x, shape):
    layer = SubmanifoldConv(4, 6)
    layer.weight = nn.Parameter(torch.zeros(shape))
    with pytest.raises(ValueError, match=r"weight: expected \[27, 4, C_out\], got"):
        layer(x)


@pytest.mark.parametrize("kind", [SubmanifoldConv, StridedConv, TransposedConv, SparseMaxPool])
def test_a_window_of_other_dimensions_is_named(x, kind):
    layer = kind(3, dims=2) if kind is SparseMaxPool else kind(4, 4, 3, dims=2)
    with pytest.raises(ValueError, match="kernel_size: expected 3 whole numbers from 1 up, got"):
        layer(x)


def test_layers_build_the_maps_that_are_passed_by_hand(x):
    """A second input gets its maps as the first one asked for them."""
    around, narrowing, pool = SubmanifoldConv(4, 6), StridedConv(6, 5, 3, 2, 1), SparseMaxPool(2)
    back = InverseConv(5, 4, 3)
    for number in range(3):
        coords = x.coords[number:]
        given = SparseTensor(x.features[number:], coords, SHAPE, 2)
        first = around(given)
        below = narrowing(first)
        by_hand = around(given, submanifold_map(coords, SHAPE, 2))
        out, shape, kernel_map = strided_map(coords, SHAPE, 2, narrowing.geometry)
        wanted = narrowing(by_hand, out, shape, kernel_map)
        assert torch.equal(first.features, by_hand.features)
        assert torch.equal(below.coords, out) and below.spatial_shape == shape
        assert torch.equal(below.features, wanted.features)
        returned, expected = back(below, first), back(wanted, by_hand, kernel_map)
        assert torch.equal(returned.features, expected.features)
        assert torch.equal(returned.coords, coords)
        assert torch.equal(pool(given).features, down(given, pool).features)
        (returned.features.sum() + pool(first).features.sum()).backward()
        for layer in (around, narrowing, back):
            assert layer.weight.grad is not None


def test_maps_are_shared_by_layers_on_the_same_sites(x):
    layers = [SubmanifoldConv(4, 4) for _ in range(2)]
    out = layers[1](layers[0](x))
    assert out.sites is x.sites
    kernel, dilation = layers[0].kernel_size, layers[0].dilation
    assert x.sites.submanifold(kernel, dilation) is out.sites.submanifold(kernel, dilation)


def test_no_half_of_a_map_and_no_unknown_way_back(x):
    layer = StridedConv(4, 4, 3, 2, 1)
    coords, shape, kernel_map = strided_map(x.coords, SHAPE, 2, layer.geometry)
    with pytest.raises(ValueError, match="pass all that strided_map returns, or none"):
        layer(x, coords, shape)
    below = layer(x, coords, shape, kernel_map)
    with pytest.raises(ValueError, match="pass that layer's kernel_map"):
        InverseConv(4, 4, 3)(below, x)


# ---- against torch's functions, any window and groups -------------------------------------------


def torchs(layer, grid, weight, bias=None, groups=1):
    """What torch makes of a dense grid by this layer's window and a weight such as the layer's."""
    dims, kernel = len(layer.kernel_size), layer.kernel_size
    weight = weight.view(*kernel, weight.shape[1], groups, -1)
    if isinstance(layer, TransposedConv):
        weight = weight.movedim((-2, -3, -1), (0, 1, 2)).flatten(0, 1)
        _, stride, padding, dilation = layer.geometry
        window = stride, padding, layer.output_padding, groups, dilation
        return TRANSPOSED[dims](grid, weight, bias, *window)
    weight = weight.flatten(-2).movedim((-1, -2), (0, 1))
    if isinstance(layer, StridedConv):
        return CONV[dims](grid, weight, bias, *layer.geometry[1:], groups)
    padding = [k // 2 * d for k, d in zip(kernel, layer.dilation, strict=True)]
    return CONV[dims](grid, weight, bias, 1, padding, layer.dilation, groups)


def case_of(kind, shape, kernel, dilation, channels):
    """A layer with a stride of 2 where it takes one, and its input."""
    c_in, c_out, groups = channels
    more = {"dilation": dilation, "bias": True, "dims": len(shape), "groups": groups}
    if kind is SubmanifoldConv:
        kernel = tuple(size + 1 - size % 2 for size in kernel)
    else:
        more |= {"stride": 2, "padding": tuple(size // 2 * dilation for size in kernel)}
    torch.manual_seed(1)
    coords = random_sites(len(kernel), 2, shape, 0.15)
    features = draws(2)(len(coords), c_in)
    return kind(c_in, c_out, kernel, **more), SparseTensor(features, coords, shape, 2)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-13), (torch.float32, 2e-6)])
@pytest.mark.parametrize(("shape", "kernel", "dilation", "channels"), CUBES + GROUPED)
@pytest.mark.parametrize("kind", [SubmanifoldConv, StridedConv, TransposedConv])
def test_is_torchs_convolution(kind, shape, kernel, dilation, channels, dtype, tolerance):
    """By the definition, in float64, and by the kernels of a CPU."""
    layer, x = case_of(kind, shape, kernel, dilation, channels)
    layer, x = layer.to(dtype), x.replace(x.features.to(dtype).requires_grad_())
    y = layer(x)
    leaves = [x.features, layer.weight, layer.bias]
    wide = [leaf.detach().double().requires_grad_() for leaf in leaves]
    grid = torchs(layer, scatter(wide[0], x.coords, shape, 2), *wide[1:], layer.groups)
    assert y.spatial_shape == tuple(grid.shape[2:])
    expected, seen = read(grid, y.coords), draws(3)(*y.features.shape)
    assert error(y.features, expected) < tolerance
    found = torch.autograd.grad(y.features, leaves, seen.to(dtype))
    for a, b in zip(found, torch.autograd.grad(expected, wide, seen), strict=True):
        assert error(a, b) < tolerance
    if kind is SubmanifoldConv:
        assert y.coords is x.coords
        return
    one = torch.ones(layer.weight.shape[0], 1, 1, dtype=torch.float64)
    reached = torchs(layer, active(x).double(), one)
    assert torch.equal(y.coords, (reached[:, 0] > 0).nonzero().int())


ON_TENSOR_CORES = [
    ((4, 9, 8), (size,) * 3, dilation, channels)
    for size, dilation, channels in (
        (3, 1, (64, 64, 4)),
        (3, 2, (128, 128, 128)),
        (5, 1, (8, 16, 1)),
        (7, 1, (4, 16, 1)),
        (7, 1, (8, 16, 2)),
        (7, 2, (32, 48, 1)),
        (5, 2, (128, 128, 2)),
    )
]


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("bitmap", [0, line_maps.MOST_BYTES], ids=["lines", "bitmaps"])
@pytest.mark.parametrize(
    ("shape", "kernel", "dilation", "channels"), CUBES + GROUPED + ON_TENSOR_CORES
)
@pytest.mark.parametrize("kind", [SubmanifoldConv, StridedConv, TransposedConv])
def test_on_a_gpu(kind, shape, kernel, dilation, channels, bitmap, dtype, monkeypatch):
    """As on a CPU in float64, with maps from lines and from bitmaps, and with a kept weight."""
    monkeypatch.setattr(line_maps, "MOST_BYTES", bitmap)
    layer, x = case_of(kind, shape, kernel, dilation, channels)
    layer, x = layer.to(dtype), x.replace(x.features.to(dtype))
    wide, rows = copy.deepcopy(layer).double(), x.features.double().requires_grad_()
    expected = wide(x.replace(rows))
    layer, features = layer.cuda(), x.features.cuda().requires_grad_()
    poison()
    y = layer(SparseTensor(features, x.coords.cuda(), shape, 2))
    tolerance = CONVOLUTION[dtype, "highest"]
    assert torch.equal(y.coords.cpu(), expected.coords)
    assert error(y.features, expected.features) <= tolerance
    seen = draws(3, dtype)(*y.features.shape)
    found = torch.autograd.grad(y.features, [features, *layer.parameters()], seen.cuda())
    leaves = [rows, *wide.parameters()]
    wanted = torch.autograd.grad(expected.features, leaves, seen.double())
    for a, b in zip(found, wanted, strict=True):
        assert error(a, b) <= 3 * tolerance
    with torch.no_grad():
        for factor in (1, 2, 2):  # what is kept of a weight follows its changes
            for parameter in layer.parameters():
                parameter *= factor
            kept = layer(SparseTensor(features, x.coords.cuda(), shape, 2))
    assert error(kept.features, 4 * expected.features) <= tolerance


def test_transposed_windows_of_every_kind():
    """Also with more padding than the window reaches, and with more output padding than stride."""
    generator = torch.Generator().manual_seed(5)
    for number in range(40):
        draw = lambda low, high: torch.randint(low, high, (2,), generator=generator).tolist()  # noqa: E731
        kernel, stride, padding, dilation = draw(1, 4), draw(1, 4), draw(0, 4), draw(1, 3)
        layer = TransposedConv(1, 1, kernel, stride, padding, draw(0, 3), dilation, dims=2).double()
        coords = random_sites(number, 2, (5, 6), 0.3)
        x = SparseTensor(draws(number)(len(coords), 1), coords, (5, 6), 2)
        reach = [(k - 1) * d + 1 for k, d in zip(kernel, dilation, strict=True)]
        axes = zip((5, 6), stride, padding, reach, layer.output_padding, strict=True)
        shape = tuple((n - 1) * s - 2 * p + k + more for n, s, p, k, more in axes)
        if min(shape) < 1:
            continue
        y = layer(x)
        whole = functional.conv_transpose2d(
            x.dense(), layer.weight.view(1, 1, *kernel), None, stride, 0, 0, 1, dilation
        )
        whole = functional.pad(whole, (0, 9, 0, 9))  # rows that only output padding makes
        cut = whole[..., padding[0] :, padding[1] :][..., : shape[0], : shape[1]]
        assert y.spatial_shape == shape
        assert error(y.dense(), cut) < 1e-13


def test_the_inverse_of_groups(x):
    encoder = StridedConv(4, 6, 3, stride=2, padding=1, groups=2)
    decoder = InverseConv(6, 4, 3, groups=2, bias=True)
    small = encoder(x)
    like = TransposedConv(6, 4, 3, 2, 1, (0, 1, 0))
    grid = torchs(like, small.dense(), decoder.weight, decoder.bias, 2)
    out = decoder(small, x)
    torch.testing.assert_close(out.features, read(grid, x.coords), rtol=1e-5, atol=1e-5)


def test_groups_draw_their_weights_as_torch_does():
    layer = StridedConv(16, 32, 3, groups=4)
    assert layer.weight.shape == (27, 4, 32)
    assert (27 * 4) ** -0.5 * 0.99 < layer.weight.abs().max() <= (27 * 4) ** -0.5
    for wrong in ((16, 30), (15, 32)):
        message = f"groups: 4 does not divide {wrong[0]} input and {wrong[1]} output channels"
        with pytest.raises(ValueError, match=message):
            StridedConv(*wrong, 3, groups=4)
    with pytest.raises(ValueError, match="groups: expected at least 1, got 0"):
        StridedConv(16, 32, 3, groups=0)
