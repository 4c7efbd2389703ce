"""Voxel generators against a loop over the points."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from millisecond.ops.spconv import utils

SIZE, RANGE = (0.5, 0.5, 1.0), (0.0, -1.0, 0.0, 4.0, 2.0, 2.0)


def cloud(seed=0, points=120, channels=5):
    found = np.random.default_rng(seed).uniform(-1.2, 4.2, (points, channels)).astype(np.float32)
    found[3, 0] = np.nan
    return found


def by_loop(points, most_voxels, most_points):
    low, high = np.array(RANGE[:3], np.float32), np.array(RANGE[3:], np.float32)
    size = np.array(SIZE, np.float32)
    voxels: dict[tuple, list] = {}
    numbers, ids = {}, []
    for point in points:
        cell = np.floor((point[:3] - low) / size)
        inside = np.isfinite(cell).all() and (cell >= 0).all()
        inside = inside and (cell < np.round((high - low) / size)).all()
        key = tuple(int(c) for c in cell[::-1]) if inside else None
        if key is None or (key not in voxels and len(voxels) == most_voxels):
            ids.append(-1)
            continue
        ids.append(numbers.setdefault(key, len(numbers)))
        own = voxels.setdefault(key, [])
        if len(own) < most_points:
            own.append(point)
    return voxels, ids


def test_half_of_a_cell_at_the_end_is_a_cell():
    """As spconv 2.3.8 has it: 12.5 and 6.5 cells are 13 and 7."""
    generator = utils.PointToVoxel([0.4] * 3, [0, 0, -2, 4, 2.6, 3], 4, 100, 3)
    assert generator.grid_size == [13, 7, 10]
    points = torch.tensor([[0.1, 0.1, 2.95, 0], [0.1, 0.1, 1, 0]])
    assert generator(points)[1].tolist() == [[12, 0, 0], [7, 0, 0]]


@pytest.mark.parametrize(("most_voxels", "most_points"), [(1000, 10), (9, 2), (1, 1)])
@pytest.mark.parametrize("empty_mean", [False, True])
def test_voxels(most_voxels, most_points, empty_mean):
    points = cloud()
    generator = utils.PointToVoxel(SIZE, RANGE, 5, most_voxels, most_points)
    assert generator.grid_size == [2, 6, 8]
    found = generator.generate_voxel_with_id(torch.from_numpy(points), empty_mean=empty_mean)
    wanted, ids = by_loop(points, most_voxels, most_points)
    assert found.indices.tolist() == [list(key) for key in wanted]
    assert found.pc_voxel_id.tolist() == ids
    assert found.num_per_voxel.tolist() == [len(own) for own in wanted.values()]
    for voxel, own in zip(found.voxels.numpy(), wanted.values(), strict=True):
        np.testing.assert_array_equal(voxel[: len(own)], own)
        rest = np.mean(own, axis=0) if empty_mean else np.zeros(5)
        np.testing.assert_allclose(
            voxel[len(own) :], np.tile(rest, (most_points - len(own), 1)), 1e-5
        )
    back = utils.gather_features_by_pc_voxel_id(found.voxels[:, 0], found.pc_voxel_id, -7)
    assert (back[found.pc_voxel_id < 0] == -7).all()


def test_the_face_of_tensorview():
    points = cloud(1)
    voxels, indices, number = utils.PointToVoxel(SIZE, RANGE, 5, 20, 4)(torch.from_numpy(points))
    host = utils.Point2VoxelCPU3d(
        vsize_xyz=SIZE,
        coors_range_xyz=RANGE,
        num_point_features=5,
        max_num_points_per_voxel=4,
        max_num_voxels=20,
    )
    for given in (points, SimpleNamespace(numpy=lambda: points), torch.from_numpy(points)):
        parts = host.point_to_voxel(given)
        np.testing.assert_array_equal(parts[0].numpy(), voxels.numpy())
        np.testing.assert_array_equal(parts[1].numpy_view(), indices.numpy())
    assert parts[2].shape == [len(number)]
    with pytest.raises(ValueError, match=r"pc: expected \[N, 5\], got \[4, 3\]"):
        utils.PointToVoxel(SIZE, RANGE, 5, 20, 4)(torch.zeros(4, 3))


def test_no_points():
    voxels, indices, number = utils.PointToVoxel(SIZE, RANGE, 5, 20, 4)(torch.zeros(0, 5))
    assert (voxels.shape, indices.shape, number.shape) == ((0, 4, 5), (0, 3), (0,))


def test_one_dimension():
    points = np.array([[3.1, 7], [0.2, 8], [3.9, 9], [11, 1]], np.float32)
    generator = utils.Point2VoxelCPU1d([2], [0, 10], 2, 9, 3)
    voxels, indices, number = (part.numpy() for part in generator.point_to_voxel(points))
    assert indices.tolist() == [[1], [0]]
    assert number.tolist() == [2, 1]
    np.testing.assert_array_equal(voxels[0, :2], points[[0, 2]])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_overlap_of_rotated_boxes(dtype):
    """Of boxes of 2 x 1 m and this box shifted, all turned by one angle."""
    shifts = np.random.default_rng(0).uniform(-2, 2, (50, 2))
    corners = np.array([[-1, -0.5], [-1, 0.5], [1, 0.5], [1, -0.5]])
    turn = np.array([[np.cos(0.7), np.sin(0.7)], [-np.sin(0.7), np.cos(0.7)]])
    first, second = (corners[None] @ turn), (corners + shifts[:, None]) @ turn
    first, second = (first + 30).astype(dtype), (second + 30).astype(dtype)
    standup = np.linspace(0, 1, 50, dtype=dtype)[None]
    width, height = np.clip([2, 1] - np.abs(shifts), 0, None).T
    shared = np.where(standup[0] > 0.1, width * height, 0)
    found = utils.rbbox_intersection(first, second, standup, 0.1)
    ratio = utils.rbbox_iou(first, second[:, ::-1], standup, 0.1)  # and the other way round
    assert found.dtype == ratio.dtype == dtype
    np.testing.assert_allclose(found, shared[None], atol=1e-5)
    np.testing.assert_allclose(ratio, (shared / (4 - shared))[None], atol=1e-5)
    assert utils.rbbox_iou(first, second[:0], standup[:, :0], 0).shape == (1, 0)
    with pytest.raises(ValueError, match="qbox_corners: row 1 is not a rectangle"):
        utils.rbbox_iou(first, second[:3] * [[[1, 1]], [[2, 1]], [[1, 1]]], standup[:, :3], 0)
    with pytest.raises(ValueError, match=r"box_corners: expected \[N, 4, 2\], got \[4, 2\]"):
        utils.rbbox_intersection(first[0], second, standup, 0)
