"""The CUDA index equals the reference bit for bit, with exact sizes and with capacities."""

import math
import random

import pytest
import torch

from millisecond.ops import (
    ConvGeometry,
    index_pyramid,
    index_workspace,
    strided_map,
    submanifold_map,
)
from millisecond.ops.geometry import coords_of_keys
from millisecond.ops.kernel_map import workspace_words
from tests.helpers.levels import (
    KITTI,
    SECOND,
    assert_same,
    assert_same_map,
    assert_same_pyramid,
    random_coords,
    street_coords,
)

pytestmark = pytest.mark.gpu


def random_step(draw, shape):
    """A window that fits the grid."""
    while True:
        step = ConvGeometry(
            tuple(draw.choice((1, 2, 3, 3)) for _ in shape),
            tuple(draw.choice((1, 2, 2, 3)) for _ in shape),
            tuple(draw.choice((0, 1, 1, 2)) for _ in shape),
            tuple(draw.choice((1, 1, 1, 2)) for _ in shape),
        )
        reach = [
            n + 2 * p - d * (k - 1)
            for n, k, p, d in zip(shape, step.kernel_size, step.padding, step.dilation, strict=True)
        ]
        if min(reach) >= 1:
            return step


def random_network(draw, seed):
    """Coords, the other arguments of a pyramid and its options, on the CPU."""
    dims, batch_size = draw.choice((1, 2, 3, 3, 3)), draw.choice((1, 1, 2, 3, 7))
    shape = [draw.randint(1, 20) for _ in range(dims)]
    shape[-1] = draw.choice((shape[-1], 95, 96, 97, 191, 192, 193, draw.randint(1, 400)))
    coords = random_coords(seed, batch_size, shape, draw.choice((0, 1, 5, 100, 600)), seed % 2 == 0)
    steps, grid = [], shape
    for _ in range(draw.randint(0, 4)):
        steps.append(random_step(draw, grid))
        grid = steps[-1].output_shape(grid)
    kernel = {1: draw.choice((1, 3, 31, 33)), 2: draw.choice((1, 3, 5)), 3: draw.choice((1, 3))}[
        dims
    ]
    options = {
        "submanifold_kernel": kernel,
        "last_submanifold": draw.random() < 0.5,
        "transposed": draw.random() < 0.7,
        "count": None,
    }
    if draw.random() < 0.4:
        options["count"] = torch.tensor([len(coords)], dtype=torch.int32)
        spare = torch.full((draw.randint(0, 50), 1 + dims), -1, dtype=torch.int32)
        coords = torch.cat([coords, spare])
    return coords, (shape, batch_size, steps), options


@pytest.mark.parametrize("seed", range(100))
def test_random_pyramids(seed):
    draw = random.Random(seed)
    coords, network, options = random_network(draw, seed)
    want = index_pyramid(coords, *network, **options)
    if draw.random() < 0.6:
        options["capacities"] = [
            max(1, int(len(level.coords) * draw.choice((0.5, 1, 1.2, 2)))) for level in want.levels
        ]
        want = index_pyramid(coords, *network, **options)
    coords = coords.cuda()
    if options["count"] is not None:
        options["count"] = options["count"].cuda()
    assert_same_pyramid(index_pyramid(coords, *network, **options), want)
    workspace = index_workspace(*network, coords.device)
    for _ in range(2):  # the second time on a workspace that the first one left
        got = index_pyramid(coords, *network, workspace=workspace, **options)
        assert not workspace.any(), "the workspace is not zero again"
        assert_same_pyramid(got, want)


@pytest.mark.parametrize(("batch_size", "size"), [(1, 17000), (4, 60000), (32, 60000)])
def test_kitti_grid(batch_size, size):
    coords = street_coords(batch_size, batch_size, KITTI, size)
    want = index_pyramid(coords, KITTI, batch_size, SECOND)
    coords = coords.cuda()
    assert_same_pyramid(index_pyramid(coords, KITTI, batch_size, SECOND), want)
    capacities = [int(1.3 * len(level.coords)) for level in want.levels]
    capacities[2] = len(want.levels[2].coords) - 100
    want = index_pyramid(coords.cpu(), KITTI, batch_size, SECOND, capacities=capacities)
    got = index_pyramid(coords, KITTI, batch_size, SECOND, capacities=capacities)
    assert_same_pyramid(got, want)


@pytest.mark.parametrize("kernel", [1, 3, (1, 3, 3), (3, 1, 1), 5, (1, 3, 35)])
@pytest.mark.parametrize("dilation", [1, 2, (1, 2, 3)])
def test_submanifold_map(kernel, dilation):
    coords = random_coords(5, 2, (7, 30, 100), 4000)
    want = submanifold_map(coords, (7, 30, 100), 2, kernel, dilation)
    got = submanifold_map(coords.cuda(), (7, 30, 100), 2, kernel, dilation)
    assert_same_map("map", got, want)


@pytest.mark.parametrize("capacities", [None, (6000, 2000, 500), (6000, 301, 33)])
def test_full_grid(capacities):
    shape = (3, 5, 200)
    coords = coords_of_keys(torch.arange(2 * math.prod(shape)), shape)
    want = index_pyramid(coords, shape, 2, SECOND[:2], capacities=capacities)
    got = index_pyramid(coords.cuda(), shape, 2, SECOND[:2], capacities=capacities)
    assert_same_pyramid(got, want)


@pytest.mark.parametrize("bounded", [False, True])
def test_kernels_of_125_offsets(bounded):
    shape = (20, 40, 200)
    coords = street_coords(6, 2, shape, 4000)
    steps = [ConvGeometry.of(5, 2, 2), ConvGeometry.of(5, 1, 2, 2), ConvGeometry.of(5, 3, 1)]
    options = {"submanifold_kernel": 5, "last_submanifold": True}
    want = index_pyramid(coords, shape, 2, steps, **options)
    if bounded:
        options["capacities"] = [int(1.1 * len(level.coords)) for level in want.levels]
        options["capacities"][1] = len(want.levels[1].coords) // 2
        want = index_pyramid(coords, shape, 2, steps, **options)
    got = index_pyramid(coords.cuda(), shape, 2, steps, **options)
    assert_same_pyramid(got, want)


def test_a_workspace_is_as_large_as_its_levels_need():
    for batch_size, shapes, words in (
        (1, [(1, 1, 1)], 16 + 4 + 4 + 4 + 4),  # header, frames, a cell, its summary, its tile
        (2, [(1, 1, 97), (1, 1, 1)], (16 + 4) + (4 * 4 + 4 + 4) + (2 * 4 + 4 + 4)),
        (1, [(4000, 40000, 40000)], 2**63 - 1),
        (1, [(1, 1, 1)] * 9, 2**63 - 1),
        (1, [(1, 1, 2**31)], 2**63 - 1),
    ):
        assert workspace_words(batch_size, shapes) == words


def test_what_the_bitmap_cannot_hold_is_searched_for():
    shape = (4000, 40000, 40000)
    coords = random_coords(1, 1, shape, 500)
    got = strided_map(coords.cuda(), shape, 1, SECOND[0])
    want = strided_map(coords, shape, 1, SECOND[0])
    assert_same("coords", got[0], want[0])
    assert_same("neighbours", got[2].forward.neighbours, want[2].forward.neighbours)


@pytest.mark.parametrize("rows", [0, 1, 33, 602])
@pytest.mark.parametrize("capacities", [(602, 1, 9000, 40), (700, 1300, 3, 2000), (1, 1, 1, 1)])
def test_levels_of_very_different_sizes(rows, capacities):
    shape = (9, 12, 200)
    coords = random_coords(12, 2, shape, 600, corners=False)
    coords = torch.cat([coords, torch.full((700 - len(coords), 4), 2**31 - 1, dtype=torch.int32)])
    count = torch.tensor([min(rows, 590)], dtype=torch.int32)  # behind it rows may hold anything
    options = {"capacities": capacities, "transposed": False}
    want = index_pyramid(coords, shape, 2, SECOND[:3], count=count, **options)
    workspace = index_workspace(shape, 2, SECOND[:3], coords.cuda().device)
    got = index_pyramid(
        coords.cuda(), shape, 2, SECOND[:3], count=count.cuda(), workspace=workspace, **options
    )
    assert not workspace.any()
    assert_same_pyramid(got, want)


def test_rows_may_be_strided():
    coords = random_coords(3, 1, (4, 5, 6), 20)
    wide = torch.stack([coords, coords], dim=2).cuda()[:, :, 0]
    assert_same_pyramid(
        index_pyramid(wide, (4, 5, 6), 1, SECOND[:1]),
        index_pyramid(coords, (4, 5, 6), 1, SECOND[:1]),
    )


def test_same_bits_every_time():
    coords = street_coords(7, 2, KITTI, 20000).cuda()
    first = index_pyramid(coords, KITTI, 2, SECOND)
    for _ in range(9):
        again = index_pyramid(coords, KITTI, 2, SECOND)
        for a, b in zip(first.levels, again.levels, strict=True):
            assert torch.equal(a.coords, b.coords)
            for one, other in ((a.submanifold, b.submanifold), (a.down, b.down)):
                if one is not None:
                    assert torch.equal(one.forward.neighbours, other.forward.neighbours)
                    assert torch.equal(one.backward.neighbours, other.backward.neighbours)


def test_rows_and_levels_of_more_than_31_bits_together():
    """Each of 262 million rows marks four levels in two parts."""
    if torch.cuda.mem_get_info()[0] < 32 << 30:
        pytest.skip("less than 32 GiB of GPU memory free")
    down = ConvGeometry((2, 2, 2), (2, 2, 2), (0, 0, 0), (1, 1, 1))
    shapes = [(640 >> level,) * 3 for level in range(5)]
    sizes = [math.prod(shape) for shape in shapes]
    coords = coords_of_keys(torch.arange(sizes[0], device="cuda"), shapes[0])
    for capacities in (None, sizes):
        options = {"capacities": capacities, "transposed": False}
        pyramid = index_pyramid(coords, shapes[0], 1, [down] * 4, 1, **options)
        for level, shape, size in zip(pyramid.levels, shapes, sizes, strict=True):
            assert level.count is None or int(level.count) == size
            wanted = coords_of_keys(torch.arange(size, device="cuda"), shape)
            assert torch.equal(level.coords, wanted)
