"""3x3 windows over a map on the CUDA kernels: rows side by side share what they read."""

import pytest
import torch
from torch import Tensor
from torch.nn.functional import conv2d, pad

from millisecond.ops import KernelMap, Table, sparse_conv
from tests.conftest import CONVOLUTION
from tests.helpers.sparse import error, poison

pytestmark = pytest.mark.gpu

CHANNELS = 128
ON_WARPGROUPS = [key for key in CONVOLUTION if key != (torch.float32, "highest")]
SHAPES = [(9, 14), (60, 90), (170, 300)]  # less than a tile, one for each multiprocessor, several


def windows(read: Tensor, written: Tensor) -> Tensor:
    """Masks [Z, Y, X] of the cells that are read, [Y, X] of those that are written -> their table
    [9 * Z, N], offsets in the order (y, x, z)."""
    row = torch.full(read.shape, -1)
    row[read] = torch.arange(int(read.sum()))
    height, width = written.shape
    row = pad(row, (1, 1, 1, 1), value=-1)
    offsets = [
        row[z, dy : dy + height, dx : dx + width][written]
        for dy in range(3)
        for dx in range(3)
        for z in range(len(read))
    ]
    return torch.stack(offsets).int()


@pytest.mark.parametrize("precision", ON_WARPGROUPS, ids=str)
@pytest.mark.parametrize("share", [0.0, 0.5, 0.97, 1.0])  # of the cells
@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_equals_the_dense_convolution_and_the_same_rows_in_any_order(
    precision, share, depth, shape
):
    (dtype, matmul), tolerance = precision, CONVOLUTION[precision]
    generator = torch.Generator().manual_seed(int(100 * share) + depth)
    read = torch.rand(depth, *shape, generator=generator) < 0.8
    written = torch.rand(shape, generator=generator) < share
    written[0, 0] = True
    table = windows(read, written)
    features = torch.randn(int(read.sum()), CHANNELS, generator=generator).to(dtype)
    weight = torch.randn(9 * depth, CHANNELS, CHANNELS, generator=generator).to(dtype) / 32

    # ---- dense, in fp64 ----
    dense = torch.zeros(depth, *shape, CHANNELS, dtype=torch.float64)
    dense[read] = features.double()
    dense = dense.permute(0, 3, 1, 2).flatten(0, 1)[None]
    kernel = weight.double().view(3, 3, depth, CHANNELS, CHANNELS).permute(4, 2, 3, 0, 1)
    expected = conv2d(dense.cuda(), kernel.flatten(1, 2).cuda(), padding=1)[0].cpu()
    expected = expected.permute(1, 2, 0)[written]

    # ---- side by side, and not ----
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(matmul)
    poison()
    features, weight = features.cuda(), weight.cuda()
    out = sparse_conv(features, weight, KernelMap(Table(table.cuda()), None))
    order = torch.randperm(table.shape[1], generator=generator)
    apart = sparse_conv(features, weight, KernelMap(Table(table[:, order].cuda()), None))
    torch.set_float32_matmul_precision(before)
    assert error(out, expected) <= tolerance
    assert torch.equal(apart, out[order.cuda()])
