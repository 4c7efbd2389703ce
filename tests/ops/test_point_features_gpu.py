"""Grouping, interpolation and pooling into voxels on CUDA, with their gradients."""

import pytest
import torch

from millisecond.ops import dynamic_voxelize, group_points, interpolate, voxel_pool
from tests.conftest import ROUNDED_ONCE
from tests.ops.test_point_features import case
from tests.ops.test_voxel_pool import GRID

pytestmark = pytest.mark.gpu

DTYPES = [torch.float32, torch.float16, torch.bfloat16]
# Channels that are read by themselves, in units of 4 and of 16 bytes; more than a warp reads.
CHANNELS = [1, 3, 6, 16, 64, 520]
# Entries that fill chunks of 8, and others; points that are taken often, seldom, and never.
SIZES = [(0, (3, 2)), (1, (1, 4)), (2, (1, 9)), (3, (1, 7)), (5, (400, 8)), (3000, (500, 16))]


def both(call, features, *others):
    """Results and gradients on the CPU and on the GPU."""
    results, share = [], None
    for to in (lambda tensor: tensor, lambda tensor: tensor.cuda()):
        leaf = to(features).detach().requires_grad_()
        out = call(leaf, *map(to, others))
        if share is None:
            share = torch.randn(out.shape, generator=torch.Generator().manual_seed(0)).to(out.dtype)
        out.backward(to(share))
        results.append((out.detach().cpu(), leaf.grad.cpu()))
    return results


def assert_close(got, want):
    limit = ROUNDED_ONCE[want.dtype] * max(1.0, float(want.double().norm()))
    assert got.dtype == want.dtype and float((got.double() - want.double()).norm()) <= limit


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("count", "places"), SIZES)
def test_equal_the_reference(count, places, dtype):
    for channels in CHANNELS:
        features, rows, weights = case(channels, 2, max(count, 1), places, channels)
        features, rows = features[:, :count].to(dtype), rows if count else rows * 0 - 1
        for call, others in ((group_points, (rows,)), (interpolate, (rows, weights))):
            (want, want_gradient), (got, got_gradient) = both(call, features, *others)
            assert torch.equal(got, want)
            assert_close(got_gradient, want_gradient)


def test_rows_outside_of_the_cloud_are_none():
    features, rows, weights = case(1, 2, 50, (20, 3), 8)
    wild = torch.where(rows < 0, torch.tensor([50, -7, 1 << 40])[None, None], rows)
    for call, others in ((group_points, ()), (interpolate, (weights,))):
        (want, want_gradient), _ = both(call, features, rows, *others)
        leaf = features.cuda().requires_grad_()
        out = call(leaf, wild.cuda(), *(other.cuda() for other in others))
        share = torch.randn(out.shape, generator=torch.Generator().manual_seed(0)).cuda()
        out.backward(share)
        assert torch.equal(out.cpu(), want)
        assert_close(leaf.grad.cpu(), want_gradient)


def points_of(seed, count, spread):
    generator = torch.Generator().manual_seed(seed)
    points = torch.rand(count, 3, generator=generator) * torch.tensor([4.4, 4.4, 2.2]) * spread
    return points - torch.tensor([0.2, 2.2, 1.1]) * spread


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("spread", [1.0, 0.1])  # a few points per voxel, thousands per voxel
def test_pools_as_the_reference_does(dtype, spread):
    points, offsets = points_of(2, 6000, spread), torch.tensor([0, 2500, 2500, 6000]).int()
    on_cpu, on_gpu = (dynamic_voxelize(points.to(d), offsets.to(d), GRID) for d in ("cpu", "cuda"))
    for mine, other in zip(on_gpu[:-1], on_cpu[:-1], strict=True):
        assert torch.equal(mine.cpu(), other)
    generator = torch.Generator().manual_seed(3)
    for channels in CHANNELS:
        features = torch.randint(-9, 9, (6000, channels), generator=generator).to(dtype)
        features[7, 0] = torch.nan
        for reduction in ("max", "mean"):
            results = []
            for voxels, device in ((on_cpu, "cpu"), (on_gpu, "cuda")):
                leaf = features.to(device, copy=True).requires_grad_()
                out = voxel_pool(leaf, voxels, reduction)
                out.backward(torch.ones_like(out))
                results.append((out.detach().cpu(), leaf.grad.cpu()))
            (want, want_gradient), (got, got_gradient) = results
            torch.testing.assert_close(got, want, equal_nan=True)  # max: exact, see below
            assert reduction == "mean" or torch.equal(got.nan_to_num(), want.nan_to_num())
            assert_close(got_gradient, want_gradient)


def test_same_bits_every_time():
    """Also where a point is taken ten thousand times: its sum crosses many chunks."""
    generator = torch.Generator().manual_seed(4)
    features = torch.randn(2, 40, 64, generator=generator).cuda()
    rows = (torch.rand(2, 5000, 8, generator=generator) ** 4 * 40).long().cuda()
    share = torch.randn(2, 5000, 8, 64, generator=generator).cuda()
    gradients = []
    for _ in range(10):
        leaf = features.clone().requires_grad_()
        group_points(leaf, rows).backward(share)
        gradients.append(leaf.grad)
    assert all(torch.equal(gradient, gradients[0]) for gradient in gradients)
    expected = torch.zeros(2, 40, 64, dtype=torch.float64)
    for b in range(2):
        expected[b].index_add_(0, rows[b].flatten().cpu(), share[b].flatten(0, 1).double().cpu())
    assert_close(gradients[0].cpu().double().float(), expected.float())


def test_graph_capture():
    features, rows, weights = (tensor.cuda() for tensor in case(5, 2, 300, (200, 3), 32))
    first, leaf = (features.clone().requires_grad_() for _ in range(2))
    expected = interpolate(first, rows, weights)
    expected.sum().backward()
    graph = torch.cuda.CUDAGraph()
    static = torch.full_like(rows, -1)
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        out = interpolate(leaf, static, weights)
        (gradient,) = torch.autograd.grad(out.sum(), leaf)
    static.copy_(rows)
    graph.replay()
    assert torch.equal(out, expected) and torch.equal(gradient, first.grad)


def test_opcheck():
    features, rows, weights = (tensor.cuda() for tensor in case(6, 2, 50, (20, 3), 8))
    group_points(features, rows)  # loads the operators
    operators = torch.ops.millisecond
    torch.library.opcheck(operators.group_points.default, (features, rows))
    torch.library.opcheck(operators.interpolate.default, (features, rows, weights))
    voxels = dynamic_voxelize(
        points_of(7, 500, 1.0).cuda(), torch.tensor([0, 500]).int().cuda(), GRID
    )
    values, table = torch.randn(500, 8).cuda(), (voxels.order, voxels.owners, voxels.starts)
    torch.library.opcheck(operators.segment_sum.default, (values, *table, None, 1, True))
    torch.library.opcheck(operators.segment_max.default, (values, *table))


def test_wrong_tensors():
    features, rows, weights = (tensor.cuda() for tensor in case(8, 2, 50, (20, 3), 8))
    group_points(features, rows)
    operators, order = torch.ops.millisecond, torch.zeros(4, dtype=torch.int64).cuda()
    for message, call in {
        r"rows must be \[2, M, S\]": lambda: operators.group_points(features, rows[:1]),
        "features must be float32": lambda: operators.group_points(features.double(), rows),
        r"weights must be \[2, 20, 3\]": lambda: operators.interpolate(
            features, rows, weights[..., :2].contiguous()
        ),
        "order has 4 elements, owners 3": lambda: operators.segment_max(
            features[0], order, order[:3].int(), order.int()
        ),
    }.items():
        with pytest.raises(RuntimeError, match=message):
            call()
