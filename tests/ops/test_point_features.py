"""Grouping and interpolation against loops over numpy numbers, and their gradients."""

import pytest
import torch

from millisecond.ops import group_points, interpolate, inverse_distance_weights, three_nearest
from tests.ops.test_furthest_point_sampling import clouds


def case(seed: int, batch: int, count: int, places: tuple[int, int], channels: int):
    """Features [B, P, C], rows [B, *places] with some that are none, weights of their shape."""
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(batch, count, channels, generator=generator)
    rows = torch.randint(-1, count, (batch, *places), generator=generator)
    return features, rows, torch.rand(rows.shape, generator=generator)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.float64], ids=str)
def test_groups_as_the_loop_does(dtype):
    features, rows, _ = case(1, 2, 7, (4, 3), 5)
    features = features.to(dtype)
    got = group_points(features, rows)
    assert got.shape == (2, 4, 3, 5) and got.dtype == dtype
    for b, m, s in torch.cartesian_prod(*map(torch.arange, rows.shape)).tolist():
        row = int(rows[b, m, s])
        expected = features[b, row] if row >= 0 else torch.zeros(5, dtype=dtype)
        assert torch.equal(got[b, m, s], expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_interpolates_as_the_loop_does(dtype):
    features, rows, weights = case(2, 2, 9, (6, 3), 4)
    features = features.to(dtype)
    got = interpolate(features, rows, weights)
    assert got.shape == (2, 6, 4) and got.dtype == dtype
    for b, m in torch.cartesian_prod(torch.arange(2), torch.arange(6)).tolist():
        total = torch.zeros(4)
        for row, weight in zip(rows[b, m].tolist(), weights[b, m], strict=True):
            if row >= 0:
                total = total + weight * features[b, row].float()
        assert torch.equal(got[b, m], total.to(dtype))


def test_gradients():
    features, rows, weights = case(3, 2, 5, (6, 4), 3)
    features = features.double().requires_grad_()
    weights = weights.double()
    torch.autograd.gradcheck(lambda x: group_points(x, rows), [features], fast_mode=True)
    torch.autograd.gradcheck(lambda x: interpolate(x, rows, weights), [features], fast_mode=True)


def test_weights_are_inverse_squared_distances():
    weights = inverse_distance_weights(torch.tensor([[[1.0, 4.0, 4.0]]]))
    torch.testing.assert_close(weights, torch.tensor([[[4.0, 1.0, 1.0]]]) / 6)
    by_distance = inverse_distance_weights(torch.tensor([[[1.0, 4.0, 4.0]]]).sqrt())
    torch.testing.assert_close(by_distance, torch.tensor([[[2.0, 1.0, 1.0]]]) / 4)
    on_a_point = inverse_distance_weights(torch.tensor([[[0.0, 1.0, torch.inf]]]))
    torch.testing.assert_close(on_a_point, torch.tensor([[[1.0, 0.0, 0.0]]]), rtol=0, atol=1e-9)
    assert inverse_distance_weights(torch.full((1, 1, 3), torch.inf)).tolist() == [[[0, 0, 0]]]


def test_propagation_keeps_a_constant_and_the_points_themselves():
    points, queries = clouds(4, 2, 50), clouds(5, 2, 30)
    rows, distances = three_nearest(points, queries)
    constant = interpolate(torch.full((2, 50, 3), 7.0), rows, inverse_distance_weights(distances))
    torch.testing.assert_close(constant, torch.full((2, 30, 3), 7.0))
    rows, distances = three_nearest(points, points)
    own = interpolate(points, rows, inverse_distance_weights(distances))
    torch.testing.assert_close(own, points, rtol=0, atol=1e-6)
    rows, distances = three_nearest(points[:, :2], queries)  # fewer points than three
    ones = interpolate(torch.ones(2, 2, 1), rows, inverse_distance_weights(distances))
    torch.testing.assert_close(ones, torch.ones(2, 30, 1))


def test_empty():
    none = torch.zeros(2, 4, 3, dtype=torch.int64) - 1
    assert group_points(torch.zeros(2, 0, 5), none).tolist() == torch.zeros(2, 4, 3, 5).tolist()
    assert interpolate(torch.zeros(2, 0, 5), none, torch.ones(2, 4, 3)).abs().sum() == 0
    assert group_points(torch.zeros(0, 4, 5), none[:0]).shape == (0, 4, 3, 5)


def test_wrong_input_is_named():
    features, rows, weights = case(6, 2, 5, (4, 3), 2)
    for message, call in {
        r"features: expected \[B, P, C\] of floats, got \[5, 2\]": (features[0], rows, weights),
        "features: .* torch.int64": (features.long(), rows, weights),
        r"rows: expected \[2, M, S\] int64, got \[2, 4, 3\] torch.int32": (
            features,
            rows.int(),
            weights,
        ),
        r"rows: expected \[2, M, S\] int64, got \[1, 4, 3\]": (features, rows[:1], weights[:1]),
        "rows: on meta, features on cpu": (features, rows.to("meta"), weights),
        "rows: expected -1 to 4, points of a cloud, got 5": (features, rows * 0 + 5, weights),
        "rows: expected -1 to 4, points of a cloud, got -2": (features, rows * 0 - 2, weights),
        r"weights: expected \[2, 4, 3\] float32, got \[2, 4, 2\]": (
            features,
            rows,
            weights[..., :2],
        ),
        "weights: expected .* float64, got .* torch.float32": (features.double(), rows, weights),
        "weights: on meta, features on cpu": (features, rows, weights.to("meta")),
        r"weights: have no gradient, but require one; detach\(\) them": (
            features,
            rows,
            weights.clone().requires_grad_(),
        ),
    }.items():
        with pytest.raises(ValueError, match=message):
            interpolate(*call)
