"""Ball query and the three nearest neighbours against loops over numpy numbers."""

import numpy as np
import pytest
import torch

from millisecond.ops import ball_query, three_nearest
from tests.ops.test_furthest_point_sampling import clouds

SIZES = [(1, 1), (2, 5), (3, 1), (70, 40), (400, 33)]  # points, centres


def squared_distances(cloud: np.ndarray, centre: np.ndarray) -> list[np.float32]:
    steps = [point - centre for point in cloud]
    return [(dx * dx + dy * dy) + dz * dz for dx, dy, dz in steps]


def ball_by_loops(cloud: np.ndarray, centre: np.ndarray, radius: float, samples: int) -> list[int]:
    limit = np.float32(radius) * np.float32(radius)
    inside = [row for row, d in enumerate(squared_distances(cloud, centre)) if d < limit]
    inside = inside[:samples] or [-1]
    return inside + inside[:1] * (samples - len(inside))


def nearest_by_loops(cloud: np.ndarray, query: np.ndarray) -> list[tuple[np.float32, int]]:
    pairs = sorted((d, row) for row, d in enumerate(squared_distances(cloud, query)))
    return (pairs + [(np.float32(np.inf), -1)] * 3)[:3]


def lattice(seed: int, *shape: int) -> torch.Tensor:
    """Few places, many points: ties, duplicates, distances that are exactly the radius."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(4, (*shape, 3), generator=generator).float()


@pytest.mark.parametrize(("count", "queries"), SIZES)
@pytest.mark.parametrize("make", [clouds, lattice])
def test_finds_what_the_loops_find(count, queries, make):
    points, centres = make(count, 2, count), make(count + 1, 2, queries)
    rows, distances = three_nearest(points, centres)
    assert rows.dtype == torch.int64
    for radius, samples in ((2.0, 4), (1.0, 1), (15.0, 500)):
        balls = ball_query(points, centres, radius, samples)
        assert balls.shape == (2, queries, samples) and balls.dtype == torch.int64
        for cloud, of, found in zip(points.numpy(), centres.numpy(), balls.tolist(), strict=True):
            expected = [ball_by_loops(cloud, centre, radius, samples) for centre in of]
            assert found == expected
    for b, cloud in enumerate(points.numpy()):
        for m, query in enumerate(centres[b].numpy()):
            expected = nearest_by_loops(cloud, query)
            assert list(zip(distances[b, m].numpy(), rows[b, m].tolist(), strict=True)) == expected


def test_a_ball_is_open_and_the_rows_rise():
    points = torch.tensor([[[2.0, 0, 0], [0, 0, 0], [0, 1, 0], [0, 0, 2]]])
    assert ball_query(points, points[:, 1:2], 2.0, 4).tolist() == [[[1, 2, 1, 1]]]
    assert ball_query(points, points[:, 1:2] + 9, 2.0, 4).tolist() == [[[-1] * 4]]


def test_empty_clouds():
    points, centres = clouds(1, 2, 0), clouds(2, 2, 3)
    assert (ball_query(points, centres, 1.0, 5) == -1).all()
    rows, distances = three_nearest(points, centres)
    assert (rows == -1).all() and distances.isinf().all()
    assert ball_query(centres, points, 1.0, 5).shape == (2, 0, 5)
    assert three_nearest(centres[:0], points[:0]).rows.shape == (0, 0, 3)


def test_large_clouds_are_cut_into_parts(monkeypatch):
    points, centres = clouds(3, 2, 90), clouds(4, 2, 50)
    balls, nearest = ball_query(points, centres, 9.0, 3), three_nearest(points, centres)
    monkeypatch.setattr("millisecond.ops.points.PAIRS", 90 * 2 * 7)
    assert torch.equal(ball_query(points, centres, 9.0, 3), balls)
    assert all(map(torch.equal, three_nearest(points, centres), nearest))


def test_distances_that_overflow_are_infinite():
    points = clouds(5, 1, 6) * 1e30
    rows, distances = three_nearest(points, -points[:, :1])
    assert distances.isinf().all() and rows.tolist() == [[[0, 1, 2]]]


def test_wrong_input_is_named():
    points = clouds(9, 2, 10)
    broken = points.clone()
    broken[1, 4, 2] = torch.nan
    for message, call in {
        r"points: expected \[B, P, 3\] float32, got \[10, 3\]": (points[0], points, 1.0, 3),
        r"centres: expected .* got \[2, 10, 3\] torch.float64": (points, points.double(), 1.0, 3),
        "centres: 1 clouds, points has 2": (points, points[:1], 1.0, 3),
        "centres: on meta, points on cpu": (points, points.to("meta"), 1.0, 3),
        r"points\[1, 4\] is .*nan.*: every value must be finite": (broken, points, 1.0, 3),
        r"centres\[1, 4\] is .*nan.*: every value must be finite": (points, broken, 1.0, 3),
        "radius: expected a number of metres above 0, got 0": (points, points, 0, 3),
        "radius: .* got nan": (points, points, float("nan"), 3),
        "samples: expected at least 1, got 0": (points, points, 1.0, 0),
    }.items():
        with pytest.raises(ValueError, match=message):
            ball_query(*call)
    with pytest.raises(ValueError, match=r"queries\[1, 4\] is .*nan"):
        three_nearest(points, broken)
