"""The CUDA voxelizer equals the reference bit for bit."""

import itertools
import math
import random
from dataclasses import replace

import pytest
import torch

from millisecond.ops import VoxelGrid, Voxels, index_workspace, voxelize
from tests.helpers.graphs import captured_without_sync

pytestmark = pytest.mark.gpu

KITTI = VoxelGrid((0, -40, -3, 70.4, 40, 1), (0.05, 0.05, 0.1))


def assert_same(got, want):
    assert got.batch_size == want.batch_size
    for name, a, b in zip(Voxels._fields[:4], got[:4], want[:4], strict=True):
        if b is None:
            assert a is None, f"{name}: expected None, got {a}"
            continue
        assert a.dtype == b.dtype, f"{name}: {a.dtype}, expected {b.dtype}"
        torch.testing.assert_close(
            a.cpu(), b, rtol=0, atol=0, msg=lambda m, name=name: f"{name}: {m}"
        )


def random_points(seed, sizes, grid, channels=4):
    generator = torch.Generator().manual_seed(seed)
    points = torch.rand(sum(sizes), channels, generator=generator)
    lower, upper = torch.tensor(grid.point_range[:3]), torch.tensor(grid.point_range[3:])
    points[:, :3] = lower - 0.5 + points[:, :3] * (upper - lower + 1)  # some outside
    return points, torch.tensor([0, *itertools.accumulate(sizes)], dtype=torch.int32)


@pytest.mark.parametrize("seed", range(80))
def test_random_clouds(seed):
    draw = random.Random(seed)
    grid = VoxelGrid((0, -2, -1, 8.0, 2, 1), (draw.choice((0.1, 0.5)), 0.2, 0.4))
    sizes = [draw.choice((0, 10, 300, 1500)) for _ in range(draw.choice((1, 2, 5)))]
    channels = draw.choice((3, 4, 5))
    points, offsets = random_points(seed, sizes, grid, channels)
    if len(points) and draw.random() < 0.5:  # on the faces of the cells
        points[:, :3] = (points[:, :3] * 4).round() / 4
    if len(points) and draw.random() < 0.3:  # most of them in one cell
        points[torch.rand(len(points)) < 0.7] = points[0].clone()
    if len(points) and draw.random() < 0.5:
        wrong = torch.rand(len(points)) < 0.05
        points[wrong, draw.randrange(channels)] = draw.choice((math.nan, math.inf, -math.inf))
    limits = {
        "max_points": draw.choice((1, 2, 5, 35)),
        "max_voxels": draw.choice((1, 20, 100, 200, 40000)),
        "capacity": draw.choice((None, None, 1, 50, 500, 5000)),
    }
    grid = replace(grid, relative=draw.random() < 0.5)
    want = voxelize(points, offsets, grid, **limits)
    if limits["capacity"] is not None:  # a buffer with room behind its last point
        points = torch.cat([points, torch.rand(draw.randint(0, 20), channels)])
    points, offsets = points.cuda(), offsets.cuda()
    assert_same(voxelize(points, offsets, grid, **limits), want)
    workspace = index_workspace(grid.shape, len(sizes), (), points.device)
    for _ in range(2):
        assert_same(voxelize(points, offsets, grid, **limits, workspace=workspace), want)
        assert not workspace.any(), "the workspace is not zero again"


@pytest.mark.parametrize("max_voxels", [16000, 5000])
@pytest.mark.parametrize("batch_size", [1, 4])
def test_kitti_grid(batch_size, max_voxels):
    points, offsets = random_points(1, [20000] * batch_size, KITTI)
    points[:, :3] = points[:, :3].sign() * (points[:, :3].abs() / 3)  # several in a cell
    want = voxelize(points, offsets, KITTI, max_voxels=max_voxels)
    assert_same(voxelize(points.cuda(), offsets.cuda(), KITTI, max_voxels=max_voxels), want)


def test_real_frames(kitti):
    files = sorted((kitti / "training").glob("velodyne*/*.bin"))[:4]
    if not files:
        pytest.skip("no raw frames")
    clouds = [
        torch.frombuffer(bytearray(f.read_bytes()), dtype=torch.float32).view(-1, 4) for f in files
    ]
    offsets = torch.tensor([0, *itertools.accumulate(map(len, clouds))], dtype=torch.int32)
    points = torch.cat(clouds)
    for max_voxels in (16000, 40000):
        want = voxelize(points, offsets, KITTI, max_voxels=max_voxels)
        got = voxelize(points.cuda(), offsets.cuda(), KITTI, max_voxels=max_voxels)
        assert_same(got, want)


def test_same_bits_every_time():
    points, offsets = random_points(2, [50000, 30000], KITTI)
    points, offsets = (points * 0.2).cuda(), offsets.cuda()
    first = voxelize(points, offsets, KITTI, max_voxels=2000)
    for _ in range(9):
        again = voxelize(points, offsets, KITTI, max_voxels=2000)
        assert torch.equal(first.features, again.features)
        assert torch.equal(first.coords, again.coords)
        assert torch.equal(first.dropped, again.dropped)


def test_wrong_offsets():
    points = torch.rand(10, 4).cuda()
    for offsets in ([0, 9], [1, 10], [0, 7, 5, 10]):
        with pytest.raises(ValueError, match="offsets: expected to rise from 0 to 10"):
            voxelize(points, torch.tensor(offsets, dtype=torch.int32).cuda(), KITTI)


def test_operator_is_well_behaved():
    grid = VoxelGrid((0, -2, -1, 8.0, 2, 1), (0.5, 0.2, 0.4))
    points, offsets = random_points(3, [300, 200], grid)
    points, offsets = points.cuda(), offsets.cuda()
    voxelize(points, offsets, grid)
    workspace = index_workspace(grid.shape, 2, (), points.device)
    limits = (grid.point_range[:3], grid.voxel_size, grid.shape, 5, 100, 150, grid.relative)
    torch.library.opcheck(
        torch.ops.millisecond.voxelize.default, (points, offsets, workspace, *limits)
    )


def test_compiles_to_one_graph():
    points, offsets = random_points(4, [3000, 2000], KITTI)
    want = voxelize(points, offsets, KITTI, capacity=6000)
    workspace = index_workspace(KITTI.shape, 2, (), points.cuda().device)

    def build(points, offsets, workspace):
        return voxelize(points, offsets, KITTI, capacity=6000, workspace=workspace)

    compiled = torch.compile(build, fullgraph=True, backend="aot_eager")
    assert_same(compiled(points.cuda(), offsets.cuda(), workspace), want)


def test_graph_replays_on_new_points_without_reading_back():
    clouds = [random_points(seed, [size], KITTI)[0] for seed, size in ((1, 9000), (2, 0), (3, 500))]
    points = torch.zeros(10000, 4, device="cuda")
    offsets = torch.zeros(2, dtype=torch.int32, device="cuda")
    workspace = index_workspace(KITTI.shape, 1, (), points.device)

    def build():
        return voxelize(points, offsets, KITTI, capacity=8000, workspace=workspace)

    graph, got = captured_without_sync(build)
    for cloud in clouds:
        points[: len(cloud)].copy_(cloud)
        offsets[1] = len(cloud)
        graph.replay()
        length = torch.tensor([0, len(cloud)], dtype=torch.int32)
        assert_same(got, voxelize(cloud, length, KITTI, capacity=8000))
