"""The voxelizer against a loop over the points."""

import time
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch

from millisecond.ops import VoxelGrid, dynamic_voxelize, voxelize

KITTI = VoxelGrid((0, -40, -3, 70.4, 40, 1), (0.05, 0.05, 0.1))
SMALL = VoxelGrid((0, -1, -1, 2, 1, 1), (0.5, 0.5, 1.0))


def offsets_of(*lengths: int) -> torch.Tensor:
    return torch.tensor([0, *np.cumsum(lengths)], dtype=torch.int32)


def naive_voxelize(points, offsets, grid, max_points, max_voxels):
    """Features and coords in row order, points not finite, points lost to the cap."""
    lower = np.array(grid.point_range[:3], np.float32)
    size = np.array(grid.voxel_size, np.float32)
    voxels, dropped = {}, [0, 0]
    for b, (start, stop) in enumerate(pairwise(offsets)):
        seen = 0
        for point in points.numpy()[start:stop]:
            if not np.isfinite(point).all():
                dropped[0] += 1
                continue
            cell = np.floor((point[:3] - lower) / size)
            if (cell < 0).any() or (cell >= grid.shape[::-1]).any():
                continue
            site = (b, *(int(c) for c in cell[::-1]))
            if site not in voxels:
                if seen == max_voxels:
                    dropped[1] += 1
                    continue
                voxels[site] = []
                seen += 1
            if len(voxels[site]) < max_points:
                voxels[site].append(point)
    features = []
    for site in sorted(voxels):
        total = voxels[site][0]
        for point in voxels[site][1:]:
            total = total + point
        mean = total / np.float32(len(voxels[site]))
        if grid.relative:
            middle = lower[:2] + (np.float32(site[:1:-1]) + np.float32(0.5)) * size[:2]
            mean[:2] = (mean[:2] - middle) / size[:2]
        features.append(mean)
    features = np.array(features, np.float32).reshape(-1, points.shape[1])
    coords = np.array(sorted(voxels), np.int32).reshape(-1, 4)
    return torch.from_numpy(features), torch.from_numpy(coords), dropped


def assert_naive(points, offsets, grid, max_points=5, max_voxels=40000):
    voxels = voxelize(points, offsets, grid, max_points, max_voxels)
    features, coords, dropped = naive_voxelize(points, offsets, grid, max_points, max_voxels)
    assert torch.equal(voxels.coords, coords) and voxels.coords.dtype == torch.int32
    assert torch.equal(voxels.features, features)  # bit for bit: the order of sums is defined
    assert voxels.count is None and voxels.batch_size == len(offsets) - 1
    assert voxels.dropped.tolist() == dropped and voxels.dropped.dtype == torch.int64
    return voxels


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("max_points, max_voxels", [(5, 40000), (1, 20), (3, 7), (40, 1)])
def test_voxels_of_random_frames(seed, max_points, max_voxels):
    generator = torch.Generator().manual_seed(seed)
    points = torch.rand(600, 4, generator=generator) * 3 - 1.2
    points[torch.rand(600, generator=generator) < 0.02, seed] = float("nan")
    assert_naive(points, offsets_of(250, 0, 300, 50), SMALL, max_points, max_voxels)


def test_relative_features_do_not_depend_on_the_place():
    """They differ from absolute features by the cell's middle alone, between -0.5 and 0.5; a cloud
    that moves by whole cells keeps them."""
    generator = torch.Generator().manual_seed(7)
    points = torch.rand(600, 4, generator=generator) * 3 - 1.2
    relative = replace(SMALL, relative=True)
    found = assert_naive(points, offsets_of(600), relative)
    assert found.features[:, :2].abs().max() <= 0.5001
    wide = VoxelGrid((-64, -64, -1, 64, 64, 1), (0.25, 0.5, 0.5), relative=True)
    points = (points * 64).round() / 64  # means of two are exact
    moved = points + torch.tensor([8.0, -16.0, 0.0, 0.0])
    one, other = (voxelize(p, offsets_of(600), wide, max_points=2) for p in (points, moved))
    assert torch.equal(one.features, other.features)
    assert torch.equal(one.coords + torch.tensor([0, 0, -32, 32], dtype=torch.int32), other.coords)


def test_first_points_and_first_voxels_of_a_frame_stay():
    x = torch.tensor([0.1, 0.6, 0.2, 0.3, 1.1, 0.7])
    points = torch.stack([x, torch.zeros(6), torch.zeros(6), torch.arange(6.0)], dim=1)
    voxels = voxelize(points, offsets_of(6), SMALL, max_points=2, max_voxels=2)
    assert voxels.coords[:, 3].tolist() == [0, 1]
    assert voxels.features[:, 3].tolist() == [1.0, 3.0]  # means of points 0 and 2, 1 and 5
    assert voxels.dropped.tolist() == [0, 1]


def test_faces_of_the_range():
    low, high = torch.tensor([0.0, -1, -1]), torch.tensor([2.0, 1, 1])
    centre = (low + high) / 2
    for axis in range(3):
        faces = centre.repeat(4, 1)
        faces[0, axis] = low[axis]
        faces[1, axis] = torch.nextafter(low, low - 1)[axis]
        faces[2, axis] = high[axis]
        faces[3, axis] = high[axis] - 1e-3
        inside = [len(voxelize(face[None], offsets_of(1), SMALL).coords) for face in faces]
        assert inside == [1, 0, 0, 1]
    edge = torch.tensor([[0.5, 0, 0]])
    assert voxelize(edge, offsets_of(1), SMALL).coords[0, 3] == 1


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("column", range(4))
def test_points_not_finite_are_dropped_and_counted(value, column):
    points = torch.tensor([[0.1, 0.1, 0.1, 0.5], [0.2, 0.2, 0.2, 0.7]])
    points[0, column] = value
    voxels = voxelize(points, offsets_of(2), SMALL)
    assert torch.equal(voxels.features, points[1:])
    assert voxels.dropped.tolist() == [1, 0]


@pytest.mark.parametrize("lengths", [(0,), (0, 0, 0)])
def test_no_points(lengths):
    voxels = voxelize(torch.zeros(0, 5), offsets_of(*lengths), SMALL)
    assert voxels.features.shape == (0, 5) and voxels.coords.shape == (0, 4)
    assert voxels.dropped.tolist() == [0, 0]


def test_points_all_outside():
    voxels = voxelize(torch.full((3, 4), 9.0), offsets_of(3), SMALL)
    assert voxels.features.shape == (0, 4) and voxels.dropped.tolist() == [0, 0]


def test_grid_of_kitti():
    assert KITTI.shape == (40, 1600, 1408)
    assert KITTI.sparse_shape == (41, 1600, 1408)


def test_batch_of_32_on_the_grid_of_kitti():
    """Linear indices of the last frames need more than 31 bits."""
    corners = torch.cartesian_prod(
        torch.tensor([0.0, 70.39]), torch.tensor([-40.0, 39.99]), torch.tensor([-3.0, 0.99])
    )
    points = torch.cat([corners, torch.ones(8, 1)], dim=1).repeat(32, 1)
    voxels = assert_naive(points, offsets_of(*[8] * 32), KITTI)
    assert voxels.coords[-1].tolist() == [31, 39, 1599, 1407]


def test_real_frame_as_openpcdet_counts_it(golden):
    frame = np.load(golden / "openpcdet_second" / "infer_0.npz")
    points = torch.from_numpy(frame["points"])
    voxels = assert_naive(points, offsets_of(len(points)), KITTI)
    assert len(voxels.coords) == frame["num_voxels"]
    assert voxels.dropped.tolist() == [0, 0]


@pytest.mark.parametrize(
    "points, offsets, message",
    [
        (torch.zeros(3, 4).double(), [0, 3], r"points: .* got \[3, 4\] torch.float64"),
        (torch.zeros(3, 2), [0, 3], r"points: .* got \[3, 2\]"),
        (torch.zeros(3, 4), [0, 2], r"offsets: expected to rise from 0 to 3 points, got \[0, 2\]"),
        (torch.zeros(3, 4), [0, 2, 1, 3], r"offsets: .* got \[0, 2, 1, 3\]"),
        (torch.zeros(3, 4), [3], r"offsets: expected \[B \+ 1\] int32, got \[1\]"),
    ],
)
def test_wrong_input_is_named(points, offsets, message):
    with pytest.raises(ValueError, match=message):
        voxelize(points, torch.tensor(offsets, dtype=torch.int32), SMALL)


def test_wrong_caps_are_named():
    with pytest.raises(ValueError, match="max_voxels: expected at least 1, got 0"):
        voxelize(torch.zeros(3, 4), offsets_of(3), SMALL, max_voxels=0)


INF, NAN = float("inf"), float("nan")


@pytest.mark.parametrize(
    ("point_range", "voxel_size", "message"),
    [
        ((0, 0, 0, -1, 1, 1), (1, 1, 1), "point_range: along x 0 is not below -1"),
        ((0, 0, 0, 1, 1, 0), (1, 1, 1), "point_range: along z 0 is not below 0"),
        ((0, 0, 0, 1, INF, 1), (1, 1, 1), "point_range: expected 6 finite"),
        ((0, 0, NAN, 1, 1, 1), (1, 1, 1), "point_range: expected 6 finite"),
        ((0, 0, 1, 1), (1, 1), "point_range: expected 6"),
        ((0, 0, 0, 1, 1, 1), (1, 1), "voxel_size: expected 3"),
        *(
            ((0, 0, 0, 1, 1, 1), (1, size, 1), "voxel_size: expected 3 finite numbers above 0")
            for size in (0, -0.1, INF, NAN)
        ),
        ((0, -40, -3, 70, 40, 1), (1e-8, 1, 1), "along x is 7e"),
        ((0, 0, 0, 1, 1, 1), (1, 1, 9), "along z is 0.111 cells of 9 m"),
        ((0, 0, 0, 16, 16, 16), (1e-6, 1e-6, 1e-6), "1 grids of (16000000, 16000000, 16000000)"),
    ],
)
def test_a_grid_that_cannot_be_counted_is_one_line(point_range, voxel_size, message):
    with pytest.raises(ValueError, match=r"\A[^\n]*\Z") as error:
        VoxelGrid(point_range, voxel_size)
    assert message in str(error.value)


@pytest.mark.parametrize("voxelize", [voxelize, dynamic_voxelize])
def test_more_frames_than_keys_are_one_line(voxelize):
    fine = VoxelGrid((0, 0, 0, 1, 1, 1), (1e-6, 1e-6, 1e-6))
    found = voxelize(torch.rand(9, 4), offsets_of(9), fine)
    assert (found.coords[:, 0] == 0).all() and (found.coords >= 0).all()
    with pytest.raises(ValueError, match="2 grids of"):
        voxelize(torch.rand(9, 4), offsets_of(4, 5), fine)


def test_a_cap_on_points_that_no_voxel_reaches_costs_nothing():
    points = torch.rand(500, 4)
    offsets = torch.tensor([0, 500], dtype=torch.int32)
    grid = VoxelGrid((0, 0, 0, 1, 1, 1), (0.5, 0.5, 0.5))
    all_of_them = voxelize(points, offsets, grid, 500)
    began = time.monotonic()
    same = voxelize(points, offsets, grid, 10**9)
    assert time.monotonic() - began < 60
    assert torch.equal(same.features, all_of_them.features)
