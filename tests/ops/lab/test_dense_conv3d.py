"""The dense convolution against its definition: a sum of shifted volumes."""

from itertools import product

import pytest
import torch
from torch.nn.functional import pad

from millisecond.ops.lab import dense_conv3d


def shifted_sum(volume: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """In float64, one offset of the kernel after another."""
    kernel, (z, y, x) = weight.shape[2], volume.shape[2:]
    wide, out = pad(volume.double(), (kernel // 2,) * 6), 0
    for i, j, k in product(range(kernel), repeat=3):
        window = wide[:, :, i : i + z, j : j + y, k : k + x]
        out = out + torch.einsum("bczyx,nc->bnzyx", window, weight[:, :, i, j, k].double())
    return out


def problem(kernel, channels, shape, dtype=torch.float32, batch=2):
    generator = torch.Generator().manual_seed(kernel + sum(channels) + sum(shape))
    volume = torch.randn(batch, channels[0], *shape, generator=generator)
    weight = torch.randn(channels[1], channels[0], *(kernel,) * 3, generator=generator)
    return volume.to(dtype), (weight / (channels[0] * kernel**3) ** 0.5).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("kernel", [3, 5, 7])
def test_is_the_sum_of_shifted_volumes(kernel, dtype):
    volume, weight = problem(kernel, (3, 2), (4, 9, 6), dtype)
    out = dense_conv3d(volume, weight)
    assert out.dtype == dtype
    unit = {torch.float32: 2**-22, torch.float16: 2**-11}[dtype]
    torch.testing.assert_close(out.double(), shifted_sum(volume, weight), rtol=unit, atol=1e-6)


@pytest.mark.parametrize(
    ("volume", "weight", "rung", "named"),
    [
        ((2, 3, 4, 5), (2, 3, 3, 3, 3), "naive", r"volume.*\[2, 3, 4, 5\]"),
        ((1, 3, 4, 5, 6), (2, 3, 3, 3, 5), "naive", r"weight.*\[2, 3, 3, 3, 5\]"),
        ((1, 3, 4, 5, 6), (2, 4, 3, 3, 3), "naive", r"weight.*\[2, 4, 3, 3, 3\]"),
        ((1, 3, 4, 5, 6), (2, 3, 9, 9, 9), "naive", r"3, 5 or\s7.*\[2, 3, 9, 9, 9\]"),
        ((1, 3, 4, 5, 6), (2, 3, 3, 3, 3), "fast", r"rung.*tiled.*'fast'"),
    ],
)
def test_mistakes_name_the_argument(volume, weight, rung, named):
    with pytest.raises(ValueError, match=named):
        dense_conv3d(torch.zeros(volume), torch.zeros(weight), rung)


def test_other_types_are_refused():
    volume, weight = torch.zeros(1, 1, 3, 3, 3), torch.zeros(1, 1, 3, 3, 3)
    with pytest.raises(ValueError, match=r"volume.*float64"):
        dense_conv3d(volume.double(), weight.double())
    with pytest.raises(ValueError, match=r"weight.*float16"):
        dense_conv3d(volume, weight.half())
