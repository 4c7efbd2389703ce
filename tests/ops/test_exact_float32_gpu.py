"""float32 in three parts on tensor cores: as near to float64 as plain float32, and like it at the
ends of its range."""

import pytest
import torch

from millisecond.ops import ConvGeometry, KernelMap, Table, sparse_conv, submanifold_map
from millisecond.ops.lab import naive
from tests.helpers.sparse import on_cuda, random_coords

pytestmark = pytest.mark.gpu

SHAPE, WINDOW = (9, 40, 37), ConvGeometry.of(3, padding=1)
CHANNELS = [(4, 16), (16, 32), (64, 64), (48, 80)]  # every kernel, and a width of odd tiles


class Scene:
    """Random sites, their map on both devices, and the plain kernel on them."""

    def __init__(self, seed: int):
        self.generator = torch.Generator().manual_seed(seed)
        self.coords = random_coords(self.generator, SHAPE, 1, 0.2)
        self.rows = len(self.coords)
        self.map = submanifold_map(self.coords, SHAPE, 1)
        self.on_cuda = on_cuda(self.map)
        coords = self.coords.cuda()
        self.tables = naive.tables(coords, SHAPE, 1, WINDOW, coords)

    def draw(self, *size: int) -> torch.Tensor:
        return torch.randn(*size, generator=self.generator)

    def magnitudes(self, *size: int) -> torch.Tensor:
        """Numbers over twenty powers of two, each as likely."""
        return self.draw(*size) * 2.0 ** torch.randint(-10, 11, size, generator=self.generator)

    def plain(self, features, weight) -> torch.Tensor:
        """On multiply-adds in float32, one after another."""
        return naive.sparse_conv(features.cuda(), weight.cuda(), self.tables)

    def exact(self, features, weight) -> torch.Tensor:
        """In float64."""
        return sparse_conv(features.double(), weight.double(), self.map)

    def tensor_cores(self, features, weight) -> torch.Tensor:
        with torch.no_grad():
            return sparse_conv(features.cuda(), weight.cuda(), self.on_cuda)


def errors(got, plain, exact, scale) -> list[float]:
    """Root mean square of both, then the largest of both, in units of scale."""
    off = [((value.detach().double().cpu() - exact) / scale).abs() for value in (got, plain)]
    return [float(e.square().mean().sqrt()) for e in off] + [float(e.max()) for e in off]


@pytest.mark.parametrize("channels", CHANNELS, ids=str)
@pytest.mark.parametrize("spread", ["draw", "magnitudes", "positive"])
def test_forward_is_as_near_as_plain_float32(channels, spread):
    scene = Scene(sum(channels))
    random = scene.magnitudes if spread == "magnitudes" else scene.draw
    features, weight = random(scene.rows, channels[0]), random(27, *channels)
    if spread == "positive":
        features, weight = features.abs(), weight.abs()
    exact, scale = scene.exact(features, weight), scene.exact(features.abs(), weight.abs())
    got, plain = scene.tensor_cores(features, weight), scene.plain(features, weight)
    found = errors(got, plain, exact, scale)
    assert found[0] <= found[1] and found[2] <= max(found[3], 2**-23)


@pytest.mark.parametrize("channels", CHANNELS, ids=str)
def test_gradients_are_as_near_as_plain_float32(channels):
    scene = Scene(sum(channels))
    features, weight = scene.magnitudes(scene.rows, channels[0]), scene.magnitudes(27, *channels)
    gradient = scene.magnitudes(scene.rows, channels[1])
    inputs = [tensor.cuda().requires_grad_() for tensor in (features, weight)]
    out = sparse_conv(*inputs, scene.on_cuda)
    of_features, of_weight = torch.autograd.grad(out, inputs, gradient.cuda())

    def transposed(x, w):
        return scene.exact(x, w.flip(0).transpose(1, 2))

    plain = scene.plain(gradient, weight.flip(0).transpose(1, 2))
    scale = transposed(gradient.abs(), weight.abs())
    found = errors(of_features, plain, transposed(gradient, weight), scale)
    assert found[0] <= found[1] and found[2] <= max(found[3], 2**-23)

    wanted = torch.zeros(2, 27, *channels, dtype=torch.float64)  # exact, and its scale
    plain = torch.zeros(27, *channels)
    for v, sources in enumerate(scene.map.forward.neighbours):
        x, y = features[sources[sources >= 0]], gradient[sources >= 0]
        wanted[0, v], wanted[1, v] = (
            x.double().T @ y.double(),
            x.abs().double().T @ y.abs().double(),
        )
        for row, of_row in zip(x, y, strict=True):  # one pair after another
            plain[v].addcmul_(row[:, None], of_row)
    found = errors(of_weight, plain, *wanted)
    assert found[0] <= found[1] and found[2] <= max(found[3], 2**-23)


@pytest.mark.parametrize("channels", [(4, 16), (16, 32), (64, 64)], ids=str)
def test_what_is_not_finite_is_so_where_it_is_in_plain_float32(channels):
    scene = Scene(1)
    features, weight = scene.draw(scene.rows, channels[0]), scene.draw(27, *channels)
    weight[:, :, 3] = 0.0  # infinity times zero
    weight[5] = 0.5  # one bfloat16 part
    features[7, 1], features[40, 0], features[41, 2] = torch.inf, -torch.inf, torch.nan
    features[60], features[90] = 3.4e38, -3.4e38  # infinite in bfloat16
    got, plain = scene.tensor_cores(features, weight), scene.plain(features, weight)
    assert not plain.isfinite().all()
    assert torch.equal(got.isnan(), plain.isnan())
    assert torch.equal(got == torch.inf, plain == torch.inf)
    finite = plain.isfinite()
    torch.testing.assert_close(got[finite], plain[finite], rtol=1e-4, atol=1e-4)

    features[60], features[90] = 1.0, 2.0  # no sum overflows: float64 has no other infinities
    inputs = [tensor.cuda().requires_grad_() for tensor in (features, weight)]
    gradient = scene.draw(scene.rows, channels[1])
    gradient[:, 5] = 0.0
    out = sparse_conv(*inputs, scene.on_cuda)
    (of_weight,) = torch.autograd.grad(out, inputs[1:], gradient.cuda())
    for v, sources in enumerate(scene.map.forward.neighbours):
        hit = sources >= 0
        expected = features[sources[hit]].T.double() @ gradient[hit].double()
        assert torch.equal(of_weight[v].cpu().isnan(), expected.isnan())


@pytest.mark.parametrize("power", [-125, -60, 60, 118])
def test_powers_of_two_scale_the_result(power):
    """Nothing is lost near the ends of the range where the result is inside of it."""
    scene = Scene(2)
    features, weight = scene.draw(scene.rows, 32), scene.draw(27, 32, 32)
    expected = scene.tensor_cores(features, weight)
    got = scene.tensor_cores(features * 2.0**power, weight)
    unit = max(2.0**-22, 2.0 ** (-133 - power))  # parts under 2^-133 are lost
    scale = scene.exact(features.abs(), weight.abs()).cuda()
    assert ((got.double() * 2.0**-power - expected.double()).abs() / scale).max() <= unit


def test_subnormal_features():
    scene = Scene(3)
    features, weight = scene.draw(scene.rows, 16) * 2.0**-128, scene.draw(27, 16, 16) * 2.0**10
    exact = scene.exact(features, weight)
    got = scene.tensor_cores(features, weight).double().cpu()
    assert (got - exact).abs().max() <= 27 * 16 * 2.0**-133 * 2.0**12
    assert (got - exact).norm() <= 0.1 * exact.norm()


def test_one_row_alone_and_none():
    scene = Scene(4)
    features, weight = scene.draw(scene.rows, 32).cuda(), scene.draw(27, 32, 32).cuda()
    neighbours = scene.on_cuda.forward.neighbours
    with torch.no_grad():
        alone, none = (
            sparse_conv(features, weight, KernelMap(Table(neighbours[:, :rows]), None))
            for rows in (1, 0)
        )
    assert none.shape == (0, 32)
    torch.testing.assert_close(alone, scene.plain(features, weight)[:1], rtol=1e-5, atol=1e-4)
