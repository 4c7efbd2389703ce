"""Operators of libmillisecond on arrays of CuPy, through DLPack: as torch's wrappers."""

import ctypes

import numpy as np
import pytest
import torch

from millisecond.ops import ConvGeometry, sparse_conv, strided_map, submanifold_map, voxelize
from millisecond.ops.boxes import iou_bev, nms
from millisecond.ops.points import (
    ball_query,
    furthest_point_sampling,
    group_points,
    three_nearest,
)
from millisecond.ops.voxelize import VoxelGrid
from tests.cpp.dlpack import address
from tests.cpp.structures import Grid, Table, Window, three
from tests.helpers.small_detector import cloud

pytestmark = pytest.mark.gpu

GRID = VoxelGrid((0.0, -20.0, -2.0, 40.0, 20.0, 1.0), (0.2, 0.2, 0.2))


def pointer(array) -> ctypes.c_void_p:
    return ctypes.c_void_p(address(array))


def integer(value: int) -> ctypes.c_int64:
    return ctypes.c_int64(value)


def test_operators_on_arrays_of_cupy(library):
    """Voxels, two kernel maps and two convolutions on a stream of CuPy, as torch's wrappers."""
    cupy = pytest.importorskip("cupy")
    points, capacity = cloud(12_000, seed=7), 80_000
    shape = three(*GRID.shape)
    with cupy.cuda.Stream(non_blocking=True) as stream:
        on = ctypes.c_void_p(stream.ptr)
        given = cupy.asarray(points)
        offsets = cupy.asarray([0, len(points)], dtype=cupy.int32)
        features = cupy.empty((len(points), 4), cupy.float32)
        coords = cupy.empty((len(points), 4), cupy.int32)
        found, dropped = cupy.empty(1, cupy.int32), cupy.empty(2, cupy.int64)
        low, size = (
            (ctypes.c_float * 3)(*GRID.point_range[:3]),
            (ctypes.c_float * 3)(*GRID.voxel_size),
        )
        library(
            "ms_voxelize", pointer(given), pointer(offsets), integer(len(points)), 4, 1,
            ctypes.byref(Grid(low, size, shape)), 5, 40_000, integer(len(points)),
            pointer(features), pointer(coords), pointer(found), pointer(dropped), on,
        )  # fmt: skip
        rows = int(found.get()[0])
        same = cupy.empty((27, rows), cupy.int32)
        state = cupy.empty(4, cupy.int32)
        library(
            "ms_submanifold_map", pointer(coords), None, integer(rows), 1, shape, three(3),
            three(1), pointer(same), pointer(state), on,
        )  # fmt: skip
        weight = cupy.random.default_rng(0).random((27, 4, 16), dtype=cupy.float32) - 0.5
        middle = cupy.empty((rows, 16), cupy.float32)
        table = Table(27, address(same), None, rows, 0)
        library(
            "ms_sparse_conv", 0, pointer(features), 4, pointer(weight), 0, 16,
            ctypes.byref(table), None, None, 1, pointer(middle), on,
        )  # fmt: skip
        window = Window(three(3), three(2), three(1), three(1))
        down = cupy.empty((27, capacity), cupy.int32)
        sites = cupy.empty((capacity, 4), cupy.int32)
        library(
            "ms_strided_map", pointer(coords), None, integer(rows), 1, shape,
            ctypes.byref(window), integer(capacity), pointer(sites), pointer(down),
            pointer(state), on,
        )  # fmt: skip
        wide = cupy.random.default_rng(1).random((27, 16, 32), dtype=cupy.float32) - 0.5
        out = cupy.empty((capacity, 32), cupy.float32)
        table = Table(27, address(down), address(state) + 4, capacity, 0)
        library(
            "ms_sparse_conv", 0, pointer(middle), 16, pointer(wide), 0, 32,
            ctypes.byref(table), None, None, 0, pointer(out), on,
        )  # fmt: skip
        stream.synchronize()
        outputs, fault = int(state.get()[1]), int(state.get()[2])

    tensor = torch.from_numpy(points).cuda()
    starts = torch.tensor([0, len(points)], dtype=torch.int32, device="cuda")
    voxels = voxelize(tensor, starts, GRID)
    around = submanifold_map(voxels.coords, GRID.shape, 1)
    geometry = ConvGeometry.of(3, 2, 1)
    level, _, strided = strided_map(voxels.coords, GRID.shape, 1, geometry)
    first = torch.relu(sparse_conv(voxels.features, torch.from_dlpack(weight), around))
    second = sparse_conv(first, torch.from_dlpack(wide), strided)
    assert (rows, outputs, fault) == (len(voxels.coords), len(level), 0)
    assert torch.equal(torch.from_dlpack(coords)[:rows], voxels.coords)
    assert torch.equal(torch.from_dlpack(features)[:rows], voxels.features)
    assert torch.equal(torch.from_dlpack(sites)[:outputs], level)
    assert torch.equal(torch.from_dlpack(middle), first)
    assert torch.equal(torch.from_dlpack(out)[:outputs], second)


def test_operators_on_points_and_boxes_of_cupy(library):
    """One after another on a stream of CuPy, as torch's wrappers."""
    cupy = pytest.importorskip("cupy")
    generator = np.random.default_rng(8)
    scan = np.ascontiguousarray(cloud(3_000, seed=8)[None, :, :3])
    wanted = generator.uniform(-20, 20, (1, 200, 3)).astype(np.float32)
    sides = generator.uniform(1, 4, (300, 3)), generator.uniform(-3, 3, (300, 1))
    around = np.hstack([generator.uniform(-8, 8, (300, 3)), *sides]).astype(np.float32)
    with cupy.cuda.Stream(non_blocking=True) as stream:
        on = ctypes.c_void_p(stream.ptr)
        points, queries, boxes = (cupy.asarray(values) for values in (scan, wanted, around))
        rows, near = cupy.empty((1, 200, 8), cupy.int64), cupy.empty((1, 200, 3), cupy.int64)
        squared, chosen = cupy.empty((1, 200, 3), cupy.float32), cupy.empty((1, 64), cupy.int64)
        ball = 1, 3_000, pointer(queries), 200, ctypes.c_float(2.0), 8, pointer(rows), on
        library("ms_ball_query", pointer(points), *ball)
        found = pointer(queries), 200, pointer(near), pointer(squared), on
        library("ms_three_nearest", pointer(points), 1, 3_000, *found)
        start = cupy.zeros(1, cupy.int64)
        library(
            "ms_furthest_points", pointer(points), pointer(start), 1, 3_000, 64, pointer(chosen), on
        )
        grouped = cupy.empty((1, 1600, 3), cupy.float32)
        taken = pointer(rows), 1600, pointer(grouped), on
        library("ms_group_points", 0, pointer(points), 1, 3_000, 3, *taken)
        overlaps, kept = cupy.empty((300, 300), cupy.float32), cupy.empty(1, cupy.int32)
        both = pointer(boxes), integer(300), pointer(boxes), integer(300)
        library("ms_overlap", *both, 1, pointer(overlaps), on)
        best = cupy.empty(50, cupy.int64)
        limits = integer(300), ctypes.c_float(0.1), 50, pointer(best), pointer(kept), on
        library("ms_nms", pointer(boxes), None, None, None, *limits)
        stream.synchronize()

    cuda = [torch.from_numpy(values).cuda() for values in (scan, wanted, around)]
    assert torch.equal(torch.from_dlpack(rows), ball_query(cuda[0], cuda[1], 2.0, 8))
    nearest = three_nearest(cuda[0], cuda[1])
    assert torch.equal(torch.from_dlpack(near), nearest[0])
    sampled = furthest_point_sampling(cuda[0], 64)
    assert torch.equal(torch.from_dlpack(chosen), sampled)
    expected = group_points(cuda[0], torch.from_dlpack(rows)).reshape(1, 1600, 3)
    assert torch.equal(torch.from_dlpack(grouped), expected)
    assert torch.equal(torch.from_dlpack(overlaps), iou_bev(cuda[2], cuda[2]))
    scores = torch.linspace(1, 0.5, 300, device="cuda")
    chosen_boxes = nms(cuda[2], scores, 0.1, 50)
    count = int(kept.get()[0])
    assert count == int(chosen_boxes.count[0]) > 5
    assert torch.equal(torch.from_dlpack(best)[:count], chosen_boxes.indices[:count])
