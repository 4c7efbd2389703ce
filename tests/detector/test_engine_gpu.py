"""A thousand random convolutions, index and all: the CUDA engine against the reference in fp64."""

import math
import random

import pytest
import torch

from millisecond.ops import ConvGeometry, sparse_conv, strided_map, submanifold_map

pytestmark = pytest.mark.gpu

TOLERANCE = {torch.float32: 2e-6, torch.float16: 6e-4, torch.bfloat16: 5e-3}
CHANNELS = (1, 3, 4, 7, 8, 16, 24, 32, 48, 64, 80, 128)


def random_case(draw: random.Random):
    """Grid, batch size, active sites and a window that fits; anything from no site to all."""
    dims = draw.choice((2, 3, 3))
    shape = tuple(draw.choice((1, 2, 5, 9, 13, 97, 200)) for _ in range(dims))
    while math.prod(shape) > 60_000:
        shape = (*shape[:-1], max(1, shape[-1] // 2)) if shape[-1] > 5 else (1, *shape[1:])
    batch_size = draw.choice((1, 1, 2, 4, 32))
    cells = batch_size * math.prod(shape)
    size = min(cells, draw.choice((0, 1, 2, 15, 33, 200, 700, cells)), 900)
    keys = torch.tensor(sorted(draw.sample(range(cells), size)), dtype=torch.int64)
    coords = torch.stack(torch.unravel_index(keys, (batch_size, *shape)), dim=1).int()
    geometry = None
    if draw.random() < 0.5:
        while geometry is None or min(reach(shape, geometry)) < 1:
            sizes = [tuple(draw.choice(c) for _ in shape) for c in ((1, 2, 3, 3), (1, 2, 3))]
            spare = [tuple(draw.choice(c) for _ in shape) for c in ((0, 1, 2), (1, 1, 2))]
            geometry = ConvGeometry(*sizes, *spare)
    return shape, batch_size, coords, geometry


def reach(shape, geometry) -> list[int]:
    return [n + 2 * p - d * (k - 1) for n, k, _, p, d in zip(shape, *geometry, strict=True)]


def build(case, device, odd_kernel, dilation):
    shape, batch_size, coords, geometry = case
    coords = coords.to(device)
    if geometry is None:
        return submanifold_map(coords, shape, batch_size, odd_kernel, dilation)
    return strided_map(coords, shape, batch_size, geometry)[2]


def relative(value: torch.Tensor, want: torch.Tensor) -> float:
    value, want = value.detach().double().cpu(), want.detach()
    assert value.shape == want.shape
    scale = float(want.norm())
    return float((value - want).norm()) / scale if scale else float(value.abs().sum())


@pytest.mark.parametrize("block", range(20))
def test_random_convolutions(block):
    for seed in range(50 * block, 50 * block + 50):
        draw, generator = random.Random(seed), torch.Generator().manual_seed(seed)
        case = random_case(draw)
        window = draw.choice((1, 3, 3, 5)), draw.choice((1, 1, 2))
        want_map, got_map = (build(case, device, *window) for device in ("cpu", "cuda"))
        if draw.random() < 0.3:
            want_map, got_map = want_map.reversed(), got_map.reversed()
        volume, rows = want_map.forward.neighbours.shape
        sources = want_map.backward.neighbours.shape[1]
        dtype = draw.choice(list(TOLERANCE))
        c_in, c_out = draw.choice(CHANNELS), draw.choice(CHANNELS)
        what = f"seed {seed}: {case[0]} x {case[1]}, {case[3]}, {window}, {c_in}-{c_out}, {dtype}"
        neighbours = got_map.forward.neighbours.cpu()
        assert torch.equal(neighbours, want_map.forward.neighbours), what
        shapes = ((sources, c_in), (volume, c_in, c_out), (rows, c_out), (c_out,), (rows, c_out))
        x, w, residual, bias, grad = (
            torch.randn(*shape, generator=generator).to(dtype) for shape in shapes
        )
        w, bias = w / (c_in * volume) ** 0.5, bias.float()
        wide = [t.double().requires_grad_() for t in (x, w, residual, bias)]
        narrow = [t.cuda().requires_grad_() for t in (x, w, residual, bias)]
        for own in (wide, narrow):
            own[3], own[2] = own[2], own[3]  # bias before residual
        want = sparse_conv(wide[0], wide[1], want_map, *wide[2:])
        got = sparse_conv(narrow[0], narrow[1], got_map, *narrow[2:])
        again = sparse_conv(narrow[0], narrow[1], got_map, *narrow[2:])
        assert torch.equal(got, again), what
        assert relative(got, want) <= TOLERANCE[dtype], what
        wanted = torch.autograd.grad(want, wide, grad.double())
        found = torch.autograd.grad(got, narrow, grad.cuda())
        for one, other in zip(found, wanted, strict=True):
            assert relative(one, other) <= 2 * TOLERANCE[dtype], what
