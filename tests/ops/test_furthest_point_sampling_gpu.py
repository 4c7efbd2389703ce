"""Furthest point sampling on CUDA chooses the rows that the reference chooses."""

import pytest
import torch

from millisecond.ops import furthest_point_sampling
from tests.ops.test_furthest_point_sampling import clouds

pytestmark = pytest.mark.gpu

# One block up to 4096 points, a cluster up to 131072, beyond that streamed; on either side of them.
SIZES = [1, 2, 31, 33, 127, 129, 1000, 4095, 4096, 4097, 10_001, 16_384, 40_000, 131_072, 131_073]


def assert_same_rows(points, samples, start=0):
    on_cpu = start.cpu() if isinstance(start, torch.Tensor) else start
    expected = furthest_point_sampling(points, samples, on_cpu)
    assert torch.equal(furthest_point_sampling(points.cuda(), samples, start).cpu(), expected)


@pytest.mark.parametrize("count", SIZES)
def test_same_rows_as_the_reference(count):
    assert_same_rows(clouds(count, 2, count), min(count, 200), count // 2)


@pytest.mark.parametrize(("count", "samples"), [(16_384, 1024), (131_072, 2048)])
def test_same_rows_over_many_steps(count, samples):
    assert_same_rows(clouds(1, 1, count), samples)


@pytest.mark.parametrize("count", [60, 3000, 5000, 50_000, 140_000])
def test_many_ties(count):
    """Points of a small lattice: nearly every distance is there many times, in every block."""
    generator = torch.Generator().manual_seed(count)
    points = torch.randint(5, (2, count, 3), generator=generator).float()
    assert_same_rows(points, 60, torch.tensor([3, count - 1]).cuda())


def test_a_large_batch():
    points = clouds(2, 70, 5000)
    assert_same_rows(points, 50, torch.arange(70).cuda())


def test_extremes():
    assert_same_rows(torch.zeros(1, 6000, 3), 20)  # one point, many times
    assert_same_rows(clouds(3, 1, 6000) * 1e30, 20)  # distances that overflow
    assert_same_rows(clouds(4, 1, 6000) * 1e-25, 20)  # distances that underflow
    assert furthest_point_sampling(clouds(5, 0, 10).cuda(), 3).shape == (0, 3)
    assert_same_rows(clouds(6, 1, 500), 500)


def test_points_that_are_not_contiguous():
    points = clouds(7, 4, 3000).cuda()
    strided = torch.stack([points, points + 1], 3)[..., 0]
    assert not strided.is_contiguous()
    expected = furthest_point_sampling(points, 100)
    assert torch.equal(furthest_point_sampling(strided, 100), expected)


@pytest.mark.parametrize("count", [3000, 16_384, 131_072, 200_000])
def test_same_rows_every_time(count):
    points = clouds(8, 16, count).cuda()
    first = furthest_point_sampling(points, 100)
    for _ in range(10):
        assert torch.equal(furthest_point_sampling(points, 100), first)


def test_a_start_outside_of_the_cloud_is_the_nearest_row():
    points = clouds(9, 2, 100).cuda()
    got = furthest_point_sampling(points, 5, torch.tensor([-4, 1 << 40]).cuda())
    assert got[:, 0].tolist() == [0, 99]


@pytest.mark.parametrize("count", [3000, 16_384])
def test_stream_and_graph_capture(count):
    points = clouds(10, 2, count).cuda()
    expected = furthest_point_sampling(points, 50)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        torch.cuda._sleep(10_000_000)
        late = points.clone()  # on the side stream, so wrong unless the kernel follows it
        assert torch.equal(furthest_point_sampling(late, 50), expected)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    static = torch.zeros_like(points)
    with torch.cuda.graph(graph):
        chosen = furthest_point_sampling(static, 50)
    static.copy_(points)
    graph.replay()
    assert torch.equal(chosen, expected)


def test_opcheck():
    points = clouds(11, 2, 500).cuda()
    furthest_point_sampling(points, 5)  # loads the operators
    start = torch.tensor([0, 3]).cuda()
    torch.library.opcheck(
        torch.ops.millisecond.furthest_point_sampling.default, (points, start, 20)
    )
