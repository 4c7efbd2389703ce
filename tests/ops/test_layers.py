"""Layers against dense modules with the same weights."""

import pytest
import torch
from torch import nn

from millisecond.ops import (
    InverseConv,
    SparseMaxPool,
    SparseTensor,
    StridedConv,
    SubmanifoldConv,
    strided_map,
    submanifold_map,
)

SHAPE = (5, 6, 7)


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


def test_even_submanifold_kernel_is_named():
    with pytest.raises(ValueError, match="kernel_size: a submanifold kernel has odd sizes only"):
        SubmanifoldConv(4, 4, 2)


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
