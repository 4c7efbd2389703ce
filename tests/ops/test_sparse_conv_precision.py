"""What sparse convolution rounds, and when: types, autocast, settings of torch."""

from importlib import import_module

import pytest
import torch

from millisecond.ops import sparse_conv, submanifold_map
from tests.helpers.dense_oracle import draws, gradients, random_sites
from tests.helpers.warm_processes import WarmProcess


@pytest.fixture(params=["kernels of a CPU", "plain torch"])
def route(request, monkeypatch):
    if request.param == "plain torch":
        module = import_module("millisecond.ops.sparse_conv")
        monkeypatch.setattr(module, "on_cpu_kernels", lambda _: False)


@pytest.mark.usefixtures("route")
@pytest.mark.parametrize("dtype, unit", [(torch.float16, 2**-11), (torch.bfloat16, 2**-8)])
def test_half_types_round_once(dtype, unit):
    """Sums in float32 over 27 * 64 products of half numbers, which are exact in float64."""
    shape, coords, draw = (6, 7, 8), random_sites(12, 1, (6, 7, 8), 0.8), draws(13, dtype)
    kernel_map = submanifold_map(coords, shape, 1)
    features = draw(len(coords), 64).requires_grad_()
    weight = (draw(27, 64, 16) / 32).requires_grad_()
    bias, residual = draw(16).requires_grad_(), draw(len(coords), 16).requires_grad_()
    leaves = (features, weight, bias, residual)
    wide = [leaf.detach().double().requires_grad_() for leaf in leaves]
    got = sparse_conv(*leaves[:2], kernel_map, *leaves[2:])
    exact = sparse_conv(*wide[:2], kernel_map, *wide[2:])
    assert got.dtype == dtype
    torch.testing.assert_close(got.double(), exact, rtol=1.01 * unit, atol=1e-5)
    grad = draw(*got.shape)
    expected = torch.autograd.grad(exact, wide, grad.double())
    for leaf, a, b in zip(leaves, torch.autograd.grad(got, leaves, grad), expected, strict=True):
        assert a.dtype == leaf.dtype
        torch.testing.assert_close(a.double(), b, rtol=1.01 * unit, atol=2e-4)


@pytest.mark.usefixtures("route")
def test_float32_is_near_float64():
    shape, coords, draw = (6, 7, 8), random_sites(14, 2, (6, 7, 8), 0.5), draws(15)
    kernel_map = submanifold_map(coords, shape, 2)
    features, weight = draw(len(coords), 32), draw(27, 32, 16)
    got = sparse_conv(features.float(), weight.float(), kernel_map)
    assert got.dtype == torch.float32
    torch.testing.assert_close(
        got.double(), sparse_conv(features, weight, kernel_map), rtol=0, atol=2e-4
    )


@pytest.mark.usefixtures("route")
def test_autocast_computes_in_its_dtype():
    coords, draw = random_sites(16, 1, (4, 5, 6)), draws(17, torch.float32)
    kernel_map = submanifold_map(coords, (4, 5, 6), 1)
    features = draw(len(coords), 8).requires_grad_()
    weight = draw(27, 8, 8).requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        got = sparse_conv(features, weight, kernel_map)
        grads = gradients(got, (features, weight))
    assert got.dtype == torch.bfloat16
    half = [leaf.detach().bfloat16().requires_grad_() for leaf in (features, weight)]
    expected = sparse_conv(*half, kernel_map)
    assert torch.equal(got, expected)
    for a, b in zip(grads, gradients(expected, half), strict=True):
        assert a.dtype == torch.float32 and torch.equal(a, b.float())


@pytest.mark.skipif(
    not hasattr(torch.backends.cuda.matmul, "fp32_precision"), reason="an older torch"
)
def test_the_newer_setting_of_torch_is_read():
    """torch.get_float32_matmul_precision raises once torch.backends...fp32_precision was used."""
    program = (
        "import torch; from millisecond.ops.dispatch import tf32_allowed; "
        "print(tf32_allowed()); torch.backends.cuda.matmul.fp32_precision = 'tf32'; "
        "print(tf32_allowed()); torch.backends.cuda.matmul.fp32_precision = 'ieee'; "
        "print(tf32_allowed())"
    )
    said, _ = WarmProcess(["-c", program], {}).communicate(timeout=60)
    assert said.split() == ["False", "True", "False"]
