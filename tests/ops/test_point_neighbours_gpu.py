"""Ball query and the three nearest neighbours on CUDA find the rows that the reference finds."""

import pytest
import torch

from millisecond.ops import ball_query, three_nearest
from tests.ops.test_furthest_point_sampling import clouds
from tests.ops.test_point_neighbours import lattice

pytestmark = pytest.mark.gpu

# On both sides of a group of 32 points, and of a tile of 1024.
SIZES = [(1, 1), (2, 33), (31, 15), (33, 17), (1023, 300), (1025, 64)]
# So many queries that 4, 2 and 1 warps search for each; 8 above.
SIZES += [(5000, 9000), (700, 20_000), (300, 40_000)]


def assert_same(points, others, radius=3.0, samples=20):
    on_gpu = points.cuda(), others.cuda()
    found = ball_query(*on_gpu, radius, samples)
    assert torch.equal(found.cpu(), ball_query(points, others, radius, samples))
    got, want = three_nearest(*on_gpu), three_nearest(points, others)
    assert torch.equal(got.rows.cpu(), want.rows)
    assert torch.equal(got.squared_distances.cpu(), want.squared_distances)


@pytest.mark.parametrize(("count", "queries"), SIZES)
def test_same_rows_as_the_reference(count, queries):
    assert_same(clouds(count, 2, count), clouds(count + 1, 2, queries))


@pytest.mark.parametrize("count", [40, 3000, 40_000])
def test_clouds_in_the_order_of_a_scan(count):
    """Points that follow one another are neighbours, so that most groups are passed over."""
    points, others = clouds(1, 2, count), clouds(2, 2, 300)
    turn = torch.atan2(points[..., 1], points[..., 0]).argsort(1)
    points = points.gather(1, turn[..., None].expand_as(points))
    points[:, 20:30] = points[:, 700:710] if count > 1000 else points[:, :10]  # ties, far apart
    assert_same(points, others, 1.5)


@pytest.mark.parametrize(("radius", "samples"), [(0.1, 4), (1.0, 70), (2.0, 33), (100.0, 64)])
def test_many_ties(radius, samples):
    assert_same(lattice(1, 3, 3000), lattice(2, 3, 500), radius, samples)


def test_extremes():
    assert_same(clouds(3, 2, 0), clouds(4, 2, 9))  # no points
    assert_same(clouds(3, 2, 9), clouds(4, 2, 0))  # no queries
    assert_same(clouds(3, 0, 9), clouds(4, 0, 9))  # no clouds
    assert_same(clouds(3, 70, 40), clouds(4, 70, 40))
    assert_same(clouds(5, 1, 1200) * 1e30, clouds(6, 1, 60) * 1e30, 1e30)  # distances overflow
    assert_same(clouds(5, 1, 1200) * 1e-25, clouds(6, 1, 60) * 1e-25, 1e-25)  # and underflow
    assert_same(torch.zeros(1, 3000, 3), torch.zeros(1, 50, 3))  # one point, many times


def test_points_that_are_not_finite_are_near_to_nothing():
    points, others = clouds(7, 2, 2000), clouds(8, 2, 100)
    broken = torch.cat([points, points[:, :37] * torch.nan], 1).cuda()
    assert torch.equal(
        ball_query(broken, others.cuda(), 9.0, 9).cpu(), ball_query(points, others, 9.0, 9)
    )
    assert torch.equal(
        three_nearest(broken, others.cuda()).rows.cpu(), three_nearest(points, others).rows
    )


def test_stream_graph_and_repeats():
    points, others = clouds(9, 2, 5000).cuda(), clouds(10, 2, 700).cuda()
    strided = torch.stack([points, points + 1], 3)[..., 0]
    for call in (lambda p: ball_query(p, others, 5.0, 16), lambda p: three_nearest(p, others).rows):
        expected = call(points)
        assert torch.equal(call(strided), expected)
        for _ in range(10):
            assert torch.equal(call(points), expected)
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            torch.cuda._sleep(10_000_000)
            late = points.clone()  # on the side stream, so wrong unless the kernel follows it
            assert torch.equal(call(late), expected)
        torch.cuda.current_stream().wait_stream(side)
        static = torch.zeros_like(points)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            found = call(static)
        static.copy_(points)
        graph.replay()
        assert torch.equal(found, expected)


def test_opcheck():
    points, others = clouds(11, 2, 500).cuda(), clouds(12, 2, 50).cuda()
    ball_query(points, others, 1.0, 5)  # loads the operators
    operators = torch.ops.millisecond
    torch.library.opcheck(operators.ball_query.default, (points, others, 1.0, 5))
    torch.library.opcheck(operators.three_nearest.default, (points, others))


def test_wrong_tensors():
    points, others = clouds(13, 2, 50).cuda(), clouds(14, 2, 5).cuda()
    ball_query(points, others, 1.0, 5)
    operators, permuted = torch.ops.millisecond, others.mT.contiguous().mT
    for message, call in {
        r"centres must be \[2, M, 3\]": lambda: operators.ball_query(points, others[:1], 1.0, 5),
        "samples must be from 1": lambda: operators.ball_query(points, others, 1.0, 0),
        "radius must be above 0": lambda: operators.ball_query(points, others, -1.0, 5),
        "points must be Float": lambda: operators.three_nearest(points.double(), others),
        "queries must be contiguous": lambda: operators.three_nearest(points, permuted),
    }.items():
        with pytest.raises(RuntimeError, match=message):
            call()
