"""Batch normalisation with ReLU inside conv_blocks against torch's batch norm in fp64."""

import pytest
import torch
from torch import Tensor

from millisecond.ops.library import extension
from tests.conftest import ROUNDED_ONCE
from tests.helpers.sparse import error, poison

pytestmark = pytest.mark.gpu

EPS, MOMENTUM = 1e-3, 0.01
DTYPES = [torch.float32, torch.float16, torch.bfloat16]
STATISTICS = 1e-6  # in fp32 whatever the type
NAMES = "out", "mean", "inverse", "running_mean", "running_var"
GRADIENTS = "x", "scale", "shift", "residual"


@pytest.fixture(autouse=True)
def operators():
    extension()


def draw(rows: int, channels: int, dtype: torch.dtype, offset: float = 0.0, spread: float = 1.0):
    """x, the gradient of the output and the parameters, all on the CPU."""
    generator = torch.Generator().manual_seed(rows + channels)
    normal = lambda *shape: torch.randn(*shape, generator=generator)  # noqa: E731
    x = (normal(rows, channels) * spread + offset + normal(channels) * spread).to(dtype)
    gradient = (normal(rows, channels) + normal(channels)).to(dtype)
    return x, gradient, 1 + 0.2 * normal(channels), 0.3 * normal(channels)


def found(
    x: Tensor, gradient: Tensor, scale: Tensor, shift: Tensor, residual: Tensor | None = None
) -> tuple[dict, dict]:
    """Ours, through a convolution that hands on the very bits: one offset, the unit matrix."""
    rows, channels = x.shape
    x, gradient, scale, shift = (t.cuda() for t in (x, gradient, scale, shift))
    added = None if residual is None else residual.cuda()
    same = torch.arange(rows, dtype=torch.int32)[None].cuda()
    unit = torch.eye(channels)[None].cuda()
    running = torch.linspace(-1, 1, channels).cuda(), torch.linspace(1, 2, channels).cuda()
    poison()
    parameters = [unit], [scale], [shift], *([values] for values in running)
    batches = torch.tensor(2).cuda()
    saved = torch.ops.millisecond.conv_blocks(
        x, *parameters, [batches], [same], [], [], MOMENTUM, EPS, residual=added
    )
    assert batches.item() == 3
    out, sums, (mean, inverse) = saved
    torch.testing.assert_close(sums, x, rtol=0, atol=0, equal_nan=True)
    poison()
    of_x, _, *of_parameters = torch.ops.millisecond.conv_blocks_backward(
        gradient, x, [unit], [scale], [shift], saved, [same], [], [same], [], [], [0], EPS, True,
        residual=residual is not None,
    )  # fmt: skip
    assert len(of_parameters) == (2 if residual is None else 3)
    forward = dict(zip(NAMES, (out, mean, inverse, *running), strict=True))
    return forward, dict(zip(GRADIENTS, (of_x, *of_parameters), strict=False))


def wanted(
    x: Tensor,
    gradient: Tensor,
    scale: Tensor,
    shift: Tensor,
    out: Tensor,
    residual: Tensor | None = None,
):
    """Torch's in fp64; the gradient passes where `out` does, not where rounding would differ."""
    channels = x.shape[1]
    x, scale, shift = (t.double().requires_grad_() for t in (x, scale, shift))
    running = torch.linspace(-1, 1, channels).double(), torch.linspace(1, 2, channels).double()
    normal = torch.nn.functional.batch_norm(x, *running, scale, shift, True, MOMENTUM, EPS)
    passed = torch.where(out.cpu() > 0, gradient, 0).double()
    gradients = [*torch.autograd.grad(normal, (x, scale, shift), passed), passed]
    if residual is not None:
        normal = normal + residual.double()
    mean, var = x.mean(0), x.var(0, correction=0)
    forward = normal.relu(), mean, (var + EPS).rsqrt(), *running
    return dict(zip(NAMES, forward, strict=True)), dict(zip(GRADIENTS, gradients, strict=True))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("channels", [3, 16, 32, 64, 128, 200])
@pytest.mark.parametrize("rows", [2, 17, 1000, 70001])
def test_agrees_with_torch_in_fp64(rows, channels, dtype):
    compare(rows, channels, dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("channels", [1, 100, 520, 600])
def test_more_channels_than_a_block_takes_and_odd_ones(channels, dtype):
    compare(1000, channels, dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("channels", [3, 64, 200])
@pytest.mark.parametrize("rows", [17, 1000, 70001])
def test_a_residual_agrees_with_torch_in_fp64(rows, channels, dtype):
    generator = torch.Generator().manual_seed(rows)
    residual = torch.randn(rows, channels, generator=generator).to(dtype)
    gradients = compare(rows, channels, dtype, residual)
    of_residual, passed = (side["residual"] for side in gradients)
    assert torch.equal(of_residual.cpu().double(), passed)


def compare(
    rows: int, channels: int, dtype: torch.dtype, residual: Tensor | None = None
) -> tuple[dict, dict]:
    inputs = draw(rows, channels, dtype)
    forward, gradients = found(*inputs, residual)
    wanted_forward, wanted_gradients = wanted(*inputs, forward["out"], residual)
    rounding = ROUNDED_ONCE[dtype]
    for name, value in forward.items():
        tolerance = rounding if name == "out" else STATISTICS
        what = error(value, wanted_forward[name])
        assert what <= tolerance, f"{name}: {what}"
    of_x = gradients["x"]
    # of two rows the gradient is what their normalisation leaves of it, next to nothing: measured
    # against what it is the difference of
    size = float((inputs[1].float() * inputs[2] * forward["inverse"].cpu()).norm())
    apart = float((of_x.cpu().double() - wanted_gradients["x"]).norm())
    assert apart <= rounding * size, f"gradient of x: {apart / size}"
    for name in ("scale", "shift"):
        what = error(gradients[name], wanted_gradients[name])
        assert what <= 2 * STATISTICS, f"gradient of {name}: {what}"
    return gradients, wanted_gradients


@pytest.mark.parametrize("offset", [100.0, -1e4])
@pytest.mark.parametrize("rows", [17, 70001])
def test_a_mean_far_larger_than_the_deviation(rows, offset):
    spread = 0.1
    inputs = draw(rows, 64, torch.float32, offset, spread)
    forward, gradients = found(*inputs)
    wanted_forward, wanted_gradients = wanted(*inputs, forward["out"])
    # the sum of squares holds all its digits; only the mean's own rounding moves what is centred
    for name in ("mean", "inverse", "running_mean", "running_var"):
        assert error(forward[name], wanted_forward[name]) <= STATISTICS, name
    centred = 1e-6 + abs(offset) / spread * 2**-24
    assert error(forward["out"], wanted_forward["out"]) <= centred
    for name, value in gradients.items():
        assert error(value, wanted_gradients[name]) <= 4 * centred, name


def test_a_first_row_far_from_the_others():
    """The first row is what the others are measured from."""
    inputs = draw(5000, 32, torch.float32)
    inputs[0][0] = 1e4
    forward, _ = found(*inputs)
    wanted_forward, _ = wanted(*inputs, forward["out"])
    apart = (forward["mean"].cpu() - wanted_forward["mean"]) * wanted_forward["inverse"].detach()
    # deviations; one outlier is at most sqrt(rows) of them away from the mean
    assert float(apart.detach().abs().max()) <= 2**-24 * 5000**0.5
    for name in ("out", "inverse", "running_var"):
        assert error(forward[name], wanted_forward[name]) <= 2 * STATISTICS, name


def test_a_constant_channel():
    x, *others = draw(1000, 16, torch.float32)
    x[:, 3] = 7.25
    forward, gradients = found(x, *others)
    wanted_forward, _ = wanted(x, *others, forward["out"])
    assert float(forward["inverse"][3]) == pytest.approx(EPS**-0.5, rel=1e-6)
    assert error(forward["out"], wanted_forward["out"]) <= 1e-6
    assert torch.isfinite(gradients["x"]).all()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_nan_passes_through(dtype):
    x, *others = draw(40, 16, dtype)
    x[7] = float("nan")
    forward, gradients = found(x, *others)
    assert forward["out"].isnan().all()
    assert gradients["x"].isnan().all()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("channels", [3, 64, 200])
def test_same_bits_every_time(channels, dtype):
    inputs = draw(30011, channels, dtype)
    first, *others = [found(*inputs) for _ in range(10)]
    for other in others:
        for one, again in zip(first, other, strict=True):
            for name, value in one.items():
                assert torch.equal(value, again[name]), name


def test_gradients_that_autograd_hands_over():
    """Expanded and misaligned gradients count as their contiguous copies."""
    x, _, scale, shift = draw(100, 16, torch.float32)
    row = torch.randn(16, generator=torch.Generator().manual_seed(1)).cuda()
    _, expected = found(x, row.repeat(100, 1), scale, shift)
    late = torch.empty(1 + 1600, device="cuda")[1:].view(100, 16).copy_(row)
    for gradient in (row.expand(100, 16), late):
        _, gradients = found(x, gradient, scale, shift)
        for name, value in gradients.items():
            assert torch.equal(value, expected[name]), name
