"""Normalised maps side by side against the formula in float64."""

import pytest
import torch

from millisecond.ops import norm_relu
from millisecond.ops.library import extension
from tests.conftest import ROUNDED_ONCE
from tests.helpers.sparse import error

ON_GPU = pytest.mark.gpu
CASES = [
    ("cpu", torch.float64, 5),
    *(pytest.param("cuda", d, c, marks=ON_GPU) for d in ROUNDED_ONCE for c in (5, 16, 128)),
]


@pytest.mark.parametrize(("device", "dtype", "channels"), CASES)
def test_maps_are_normalised_and_joined(device, dtype, channels):
    generator = torch.Generator().manual_seed(channels)
    draw = lambda *shape: torch.randn(*shape, generator=generator, dtype=torch.float64)  # noqa: E731
    shapes = [(2, channels, 9, 14), (2, 2 * channels, 9, 14)]
    given = [(draw(*shape) * 3 + 1).to(dtype) for shape in shapes]
    gradient = draw(2, 3 * channels, 9, 14).to(dtype)
    norms, maps, wanted, leaves = [], [], [], []
    for values in given:
        norm = torch.nn.BatchNorm2d(values.shape[1], eps=1e-3, momentum=0.01)
        torch.nn.init.normal_(norm.weight, 1, 0.2, generator=generator)
        torch.nn.init.normal_(norm.bias, 0, 0.3, generator=generator)
        x = values.double().requires_grad_()
        parameters = [p.detach().double().requires_grad_() for p in (norm.weight, norm.bias)]
        variance, mean = torch.var_mean(x, dim=(0, 2, 3), correction=0, keepdim=True)
        scale, shift = (p.view(-1, 1, 1) for p in parameters)
        wanted.append((x - mean) / (variance + 1e-3).sqrt() * scale + shift)
        leaves += [x, *parameters]
        norms.append(norm.to(device, torch.float64 if dtype == torch.float64 else None))
        maps.append(
            values.to(device).contiguous(memory_format=torch.channels_last).requires_grad_()
        )
    out = norm_relu(maps, norms)
    assert out.is_contiguous(memory_format=torch.channels_last) or device == "cpu"
    expected = torch.cat(wanted, dim=1)
    tolerance = 1e-6 if dtype == torch.float64 else ROUNDED_ONCE[dtype]
    assert error(out, expected.relu()) <= tolerance
    passed = torch.where(out.cpu() > 0, gradient, 0).double()
    own = [
        leaf for pair in zip(maps, norms, strict=True) for leaf in (pair[0], *pair[1].parameters())
    ]
    found = torch.autograd.grad(out, own, gradient.to(device))
    for one, other in zip(found, torch.autograd.grad(expected, leaves, passed), strict=True):
        assert error(one, other) <= 2 * tolerance
    for norm, values in zip(norms, given, strict=True):
        mean = values.double().mean((0, 2, 3))
        torch.testing.assert_close(
            norm.running_mean.cpu().double(), 0.01 * mean, rtol=1e-5, atol=1e-6
        )


@pytest.mark.gpu
def test_rows_that_lie_wrong_are_refused():
    extension()
    x, out = torch.zeros(6, 8, device="cuda"), torch.zeros(6, 9, device="cuda")[:, :8]
    channel = torch.zeros(8, device="cuda")
    with pytest.raises(RuntimeError, match="rows a multiple of 16 bytes apart"):
        torch.ops.millisecond.batch_norm_relu(x, *[channel] * 4, out, 0.1, 1e-3)
    moments = [channel] * 4
    backward = torch.ops.millisecond.batch_norm_relu_backward
    torch.library.opcheck(backward.default, (torch.ones_like(x), x, *moments))
    with pytest.raises(RuntimeError, match="gradient must be"):
        backward(x[:5], x, *moments)


def test_every_map_needs_a_norm():
    with pytest.raises(ValueError, match="maps: 1, norms: 0"):
        norm_relu([torch.zeros(1, 1, 2, 2)], [])


def test_a_norm_in_evaluation_mode_is_named():
    """Its running statistics would count on a CPU and change on a GPU."""
    norms = [torch.nn.BatchNorm2d(1), torch.nn.BatchNorm2d(1).eval()]
    with pytest.raises(ValueError, match=r"norms\[1\]: in evaluation mode; call its train\(\)"):
        norm_relu([torch.zeros(1, 1, 2, 2)] * 2, norms)
