"""Dynamic voxelization and pooling into voxels against loops over the points."""

from itertools import pairwise

import pytest
import torch

from millisecond.ops import VoxelGrid, dynamic_voxelize, voxel_pool, voxelize

GRID = VoxelGrid((0, -2, -1, 4, 2, 1), (0.5, 0.5, 1.0))
OFFSETS = torch.tensor([0, 150, 150, 400], dtype=torch.int32)


def points_of(seed: int) -> torch.Tensor:
    """[400, 4] of three clouds, the second one empty; some are outside or not finite."""
    generator = torch.Generator().manual_seed(seed)
    points = torch.rand(400, 4, generator=generator) * torch.tensor([4.6, 4.6, 2.4, 1])
    points -= torch.tensor([0.3, 2.3, 1.2, 0])
    points[::57, 1] = torch.nan
    return points


def members(voxels) -> list[list[int]]:
    """Points of each voxel, by their rows; only from the coords and the voxel of each point."""
    rows = voxels.voxels.tolist()
    return [[p for p, row in enumerate(rows) if row == n] for n in range(len(voxels.coords))]


def test_voxels_are_those_of_voxelize():
    points = points_of(1)
    found = dynamic_voxelize(points, OFFSETS, GRID)
    expected = voxelize(points, OFFSETS, GRID, max_points=400)
    assert torch.equal(found.coords, expected.coords) and found.batch_size == 3
    means = voxel_pool(points, found, "mean")
    torch.testing.assert_close(means, expected.features)
    inside = (found.voxels >= 0).nonzero().squeeze(1)
    cloud = torch.bucketize(inside, OFFSETS[1:], right=True)
    assert torch.equal(found.coords[found.voxels[inside], 0].long(), cloud)
    lower, size = torch.tensor(GRID.point_range[:3]), torch.tensor(GRID.voxel_size)
    cells = found.coords[found.voxels[inside], 1:].flip(1)
    assert ((points[inside, :3] - lower) / size - cells).floor().abs().sum() == 0
    outside = points[found.voxels < 0, :3]
    low, high = lower, torch.tensor(GRID.point_range[3:])
    assert not ((outside >= low) & (outside < high)).all(1).any() and len(outside) > 20


def test_the_points_of_a_voxel_are_in_order():
    voxels = dynamic_voxelize(points_of(2), OFFSETS, GRID)
    starts = voxels.starts.tolist()
    parts = [voxels.order[a:b].tolist() for a, b in pairwise(starts)]
    assert parts == members(voxels) and starts[-1] == len(voxels.order)
    assert torch.equal(voxels.voxels[voxels.order], voxels.owners.long())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.float64], ids=str)
def test_pools_as_the_loop_does(dtype):
    voxels = dynamic_voxelize(points_of(3), OFFSETS, GRID)
    generator = torch.Generator().manual_seed(4)
    features = torch.randint(-3, 4, (400, 5), generator=generator).to(dtype)  # many ties
    features[5, 0] = features[300, 2] = torch.nan
    leaf = features.clone().requires_grad_()
    largest, mean = voxel_pool(leaf, voxels, "max"), voxel_pool(leaf, voxels, "mean")
    assert largest.dtype == mean.dtype == dtype
    share = torch.rand(largest.shape, generator=generator).to(dtype)
    (gradient,) = torch.autograd.grad(largest, leaf, share)
    expected = torch.zeros_like(features)
    for n, rows in enumerate(members(voxels)):
        part = features[rows]
        want = part.double().sum(0) / len(rows)
        torch.testing.assert_close(mean[n], want.to(dtype), equal_nan=True)
        for channel, values in enumerate(part.T.tolist()):
            nan = [row for row, value in zip(rows, values, strict=True) if value != value]
            best = nan[0] if nan else rows[values.index(max(values))]  # of equal ones the first
            assert largest[n, channel] == features[best, channel] or nan
            expected[best, channel] = share[n, channel]
    assert torch.equal(gradient, expected)


def test_gradients():
    voxels = dynamic_voxelize(points_of(5), OFFSETS, GRID)
    features = torch.randn(400, 2, dtype=torch.float64).requires_grad_()
    for reduction in ("max", "mean"):
        torch.autograd.gradcheck(
            lambda x, reduction=reduction: voxel_pool(x, voxels, reduction),
            [features],
            fast_mode=True,
        )


def test_no_points():
    voxels = dynamic_voxelize(points_of(6) + 100, OFFSETS, GRID)
    assert voxels.coords.shape == (0, 4) and (voxels.voxels == -1).all()
    for reduction in ("max", "mean"):
        assert voxel_pool(torch.zeros(400, 3), voxels, reduction).shape == (0, 3)


def test_wrong_input_is_named():
    voxels = dynamic_voxelize(points_of(7), OFFSETS, GRID)
    features = torch.zeros(400, 3)
    for message, call in {
        r"features: expected \[P, C\] of floats, got \[400\]": (features[:, 0], voxels, "max"),
        "features: 399 rows for 400 points": (features[1:], voxels, "max"),
        "features: on meta, voxels on cpu": (features.to("meta"), voxels, "max"),
        "reduction: expected max or mean, got 'sum'": (features, voxels, "sum"),
    }.items():
        with pytest.raises(ValueError, match=message):
            voxel_pool(*call)
    with pytest.raises(ValueError, match="offsets: expected to rise from 0 to 400"):
        dynamic_voxelize(points_of(7), OFFSETS - 1, GRID)
