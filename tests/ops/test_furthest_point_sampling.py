"""Furthest point sampling against a loop over numpy scalars, and closed cases."""

import numpy as np
import pytest
import torch

from millisecond.ops import furthest_point_sampling


def by_loops(cloud: np.ndarray, samples: int, start: int) -> list[int]:
    """Rows of a cloud [P, 3] float32, one point after another; shares no code with ops."""
    nearest = [np.float32(np.inf)] * len(cloud)
    chosen = [start]
    while len(chosen) < samples:
        best = 0
        for row, point in enumerate(cloud):
            dx, dy, dz = point - cloud[chosen[-1]]
            nearest[row] = min(nearest[row], dx * dx + dy * dy + dz * dz)
            if nearest[row] > nearest[best]:
                best = row
        chosen.append(best)
    return chosen


def clouds(seed: int, *shape: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, 3, generator=generator) * torch.tensor([30.0, 20.0, 1.0])


@pytest.mark.parametrize(("count", "samples"), [(1, 1), (2, 2), (97, 31), (200, 200)])
def test_chooses_as_the_loop_does(count, samples):
    points, start = clouds(count, 2, count), torch.tensor([count - 1, count // 2])
    got = furthest_point_sampling(points, samples, start)
    assert got.dtype == torch.int64
    for cloud, first, rows in zip(points.numpy(), start.tolist(), got.tolist(), strict=True):
        assert rows == by_loops(cloud, samples, first)


def test_of_equally_far_points_the_lowest_row():
    points = torch.tensor([[0, 0, 0], [0, -2, 0], [2, 0, 0], [0, 2, 0], [-2, 0, 0]])
    assert furthest_point_sampling(points[None].float(), 5).tolist() == [[0, 1, 2, 3, 4]]
    lattice = torch.cartesian_prod(*[torch.arange(4.0)] * 3)
    got = furthest_point_sampling(lattice[None], 64, 21)[0].tolist()
    assert got == by_loops(lattice.numpy(), 64, 21) and sorted(got) == list(range(64))


def test_start():
    points = clouds(5, 3, 40)
    by_default = furthest_point_sampling(points, 4)
    assert by_default[:, 0].tolist() == [0, 0, 0]
    assert torch.equal(by_default, furthest_point_sampling(points, 4, 0))
    each = furthest_point_sampling(points, 4, torch.tensor([0, 7, 39]))
    assert each[:, 0].tolist() == [0, 7, 39] and torch.equal(each[0], by_default[0])
    assert torch.equal(each[1], furthest_point_sampling(points, 4, 7)[1])


def test_a_point_that_is_there_many_times_is_chosen_once_then_row_0():
    points = torch.tensor([[1, 1, 1], [1, 1, 1], [5, 1, 1], [5, 1, 1], [1, 1, 1]]).float()
    assert furthest_point_sampling(points[None], 5, 4).tolist() == [[4, 2, 0, 0, 0]]


def test_clouds_of_a_batch_do_not_see_each_other():
    points = clouds(6, 4, 50)
    together = furthest_point_sampling(points, 20)
    for cloud, rows in zip(points, together, strict=True):
        assert torch.equal(furthest_point_sampling(cloud[None], 20)[0], rows)
    assert furthest_point_sampling(points[:0], 20).shape == (0, 20)


def test_every_sample_covers_the_cloud_better():
    points = clouds(7, 1, 300)
    chosen = furthest_point_sampling(points, 100)[0]
    apart = torch.cdist(points[0].double(), points[0, chosen].double())
    cover = apart.cummin(1).values.amax(0)  # distance of the point that is worst covered
    assert (cover.diff() <= 0).all() and len(chosen.unique()) == 100
    assert cover[-1] < cover[0] / 5


def test_needs_no_gradient():
    assert not furthest_point_sampling(clouds(8, 1, 9).requires_grad_(), 3).requires_grad


def test_wrong_input_is_named():
    points = clouds(9, 2, 10)
    broken = points.clone()
    broken[1, 4, 2] = torch.nan
    for message, call in {
        r"points: expected \[B, P, 3\] float32, got \[10, 3\]": lambda: (points[0], 3),
        r"points: expected .* got \[2, 10, 3\] torch.float64": lambda: (points.double(), 3),
        "samples: expected 1 to 10, the points of a cloud, got 11": lambda: (points, 11),
        "samples: expected 1 to 10, .* got 0": lambda: (points, 0),
        "start: expected a row from 0 to 9, got 10": lambda: (points, 3, 10),
        r"start: expected \[2\] int64, got \[3\]": lambda: (points, 3, torch.zeros(3).long()),
        r"start: expected rows from 0 to 9, got \[0, -1\]": lambda: (
            points,
            3,
            torch.tensor([0, -1]),
        ),
        "start: on meta, points on cpu": lambda: (points, 3, torch.zeros(2).long().to("meta")),
        r"points\[1, 4\] is .*nan.*: every value must be finite": lambda: (broken, 3),
    }.items():
        with pytest.raises(ValueError, match=message):
            furthest_point_sampling(*call())
