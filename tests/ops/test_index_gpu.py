"""The CUDA index equals the reference bit for bit, with exact sizes and with capacities."""

import math
import random

import pytest
import torch

from ops import (
    ConvGeometry,
    index_pyramid,
    index_workspace,
    strided_map,
    submanifold_map,
)
from ops.cuda.bitmap import new_workspace, workspace_words
from ops.cuda.kernel_map import FAULT, Plan
from ops.cuda.library import extension
from ops.reference.coords import coords_of_keys

pytestmark = pytest.mark.gpu

KITTI = (41, 1600, 1408)
SECOND = (
    ConvGeometry((3, 3, 3), (2, 2, 2), (1, 1, 1), (1, 1, 1)),
    ConvGeometry((3, 3, 3), (2, 2, 2), (1, 1, 1), (1, 1, 1)),
    ConvGeometry((3, 3, 3), (2, 2, 2), (0, 1, 1), (1, 1, 1)),
    ConvGeometry((3, 1, 1), (2, 1, 1), (0, 0, 0), (1, 1, 1)),
)


def assert_same(name, got, want):
    if want is None:
        assert got is None, f"{name}: expected None, got {got}"
        return
    got = got.cpu()
    assert got.dtype == want.dtype, f"{name}: {got.dtype}, expected {want.dtype}"
    torch.testing.assert_close(got, want, rtol=0, atol=0, msg=lambda m: f"{name}: {m}")


def assert_same_table(name, got, want):
    if want is None:
        assert got is None, f"{name}: expected None"
        return
    assert got.neighbours.shape == want.neighbours.shape, f"{name}: {got.neighbours.shape}"
    rows = None if want.count is None else int(want.count)  # what lies beyond is never read
    assert_same(f"{name} neighbours", got.neighbours[:, :rows], want.neighbours[:, :rows])
    assert_same(f"{name} count", got.count, want.count)
    assert got.flipped == want.flipped, f"{name}: flipped is {got.flipped}"


def assert_same_map(name, got, want):
    if want is None:
        assert got is None, f"{name}: expected None"
        return
    assert_same_table(f"{name} forward", got.forward, want.forward)
    assert_same_table(f"{name} backward", got.backward, want.backward)


def assert_same_pyramid(got, want):
    assert_same("overflow", got.overflow, want.overflow)
    for i, (a, b) in enumerate(zip(got.levels, want.levels, strict=True)):
        assert a.spatial_shape == b.spatial_shape
        assert_same(f"level {i} coords", a.coords, b.coords)
        assert_same(f"level {i} count", a.count, b.count)
        assert_same_map(f"level {i} submanifold", a.submanifold, b.submanifold)
        assert_same_map(f"level {i} down", a.down, b.down)


def random_coords(seed, batch_size, shape, size, corners=True):
    """Sorted and unique, with the first and the last cell of the grids among them."""
    generator = torch.Generator().manual_seed(seed)
    volume = batch_size * math.prod(shape)
    keys = torch.randint(volume, (size,), generator=generator)
    if size and corners:
        keys = torch.cat([keys, torch.tensor([0, volume - 1])])
    return coords_of_keys(keys.unique(), shape)


def street_coords(seed, batch_size, shape, size):
    """Clustered along lines, as walls and cars are."""
    generator = torch.Generator().manual_seed(seed)
    walk = torch.randint(-1, 2, (size, 3), generator=generator).cumsum(0)
    start = torch.randint(10**6, (size // 200 + 1, 3), generator=generator)
    cells = (walk + start.repeat_interleave(200, 0)[:size]) % torch.tensor(shape)
    frames = torch.randint(batch_size, (size // 200 + 1,), generator=generator)
    frames = frames.repeat_interleave(200)[:size]
    keys = ((frames * shape[0] + cells[:, 0]) * shape[1] + cells[:, 1]) * shape[2] + cells[:, 2]
    return coords_of_keys(keys.unique(), shape)


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


@pytest.mark.parametrize("seed", range(100))
def test_random_pyramids(seed):
    draw = random.Random(seed)
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
    }
    count = None
    if draw.random() < 0.4:
        count = torch.tensor([len(coords)], dtype=torch.int32)
        spare = torch.full((draw.randint(0, 50), 1 + dims), -1, dtype=torch.int32)
        coords = torch.cat([coords, spare])
    want = index_pyramid(coords, shape, batch_size, steps, count=count, **options)
    if draw.random() < 0.6:
        options["capacities"] = [
            max(1, int(len(level.coords) * draw.choice((0.5, 1, 1.2, 2)))) for level in want.levels
        ]
        want = index_pyramid(coords, shape, batch_size, steps, count=count, **options)
    coords = coords.cuda()
    count = None if count is None else count.cuda()
    assert_same_pyramid(
        index_pyramid(coords, shape, batch_size, steps, count=count, **options), want
    )
    workspace = index_workspace(shape, batch_size, steps, coords.device)
    for _ in range(2):  # the second time on a workspace that the first one left
        got = index_pyramid(
            coords, shape, batch_size, steps, count=count, workspace=workspace, **options
        )
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


def test_full_grid():
    shape = (3, 5, 200)
    coords = coords_of_keys(torch.arange(2 * math.prod(shape)), shape)
    want = index_pyramid(coords, shape, 2, SECOND[:2])
    assert_same_pyramid(index_pyramid(coords.cuda(), shape, 2, SECOND[:2]), want)


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


WRONG = {
    "outside of": ([[0, 0, 0, 1], [0, 1, 2, 9]], "row 1"),
    "outside": ([[0, 0, 0, 1], [2, 1, 2, 3]], "row 1"),
    "outside of 2": ([[-1, 0, 0, 1], [1, 1, 2, 3]], "row 0"),
    "duplicate": ([[0, 0, 0, 1], [0, 1, 2, 3], [0, 1, 2, 3]], "row 2"),
    "not sorted": ([[0, 0, 0, 1], [1, 1, 2, 3], [1, 1, 1, 3], [0, 0, 0, 0]], "row 2"),
}


@pytest.mark.parametrize("fault", WRONG)
def test_wrong_coords(fault):
    rows, row = WRONG[fault]
    coords = torch.tensor(rows, dtype=torch.int32).cuda()
    workspace = index_workspace((4, 5, 6), 2, SECOND[:1], coords.device)
    with pytest.raises(ValueError, match=f"coords: {row} .*{fault}"):
        index_pyramid(coords, (4, 5, 6), 2, SECOND[:1], workspace=workspace)
    assert not workspace.any()
    with pytest.raises(ValueError, match=f"coords: {row}"):
        submanifold_map(coords, (4, 5, 6), 2)
    bounded = index_pyramid(coords, (4, 5, 6), 2, SECOND[:1], capacities=(9, 9))
    assert int(bounded.overflow) & FAULT
    for level in bounded.levels:
        assert int(level.count) <= 9


@pytest.mark.parametrize("fault", ["outside", "duplicate", "not sorted"])
def test_wrong_rows_take_nothing_from_their_neighbours(fault):
    """A voxel leaves to the one before it what both mark, which a wrong one does not mark."""
    shape = (9, 12, 200)
    generator = torch.Generator().manual_seed(11)
    coords = coords_of_keys(torch.arange(2 * math.prod(shape)), shape)
    dense = (torch.rand(len(coords), generator=generator) < 0.5) | (coords[:, 3] < 3)
    coords = coords[dense & (coords[:, 1] % 4 == 0) & (coords[:, 2] % 5 == 0)]  # few share outputs
    wrong, kept = coords.clone(), torch.ones(len(coords), dtype=torch.bool)
    if fault == "outside":
        kept = coords[:, 3] != 0
        wrong[~kept, 3] = -1
    else:
        for row in (0, 30, 32, 62, 255, 400, 402, len(coords) - 2):
            if fault == "duplicate":
                wrong[row + 1] = wrong[row]
                kept[row + 1] = False
            else:
                wrong[[row, row + 1]] = wrong[[row + 1, row]]
    want = index_pyramid(coords[kept].contiguous(), shape, 2, SECOND[:3])
    got = index_pyramid(wrong.cuda(), shape, 2, SECOND[:3], capacities=[30000] * 4)
    assert int(got.overflow) & FAULT
    for a, b in zip(got.levels[1:], want.levels[1:], strict=True):
        assert_same("coords", a.coords[: int(a.count)], b.coords)


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


def test_wrong_tensors():
    coords = random_coords(2, 1, (4, 5, 6), 20).cuda()
    with pytest.raises(ValueError, match="coords: expected int32"):
        submanifold_map(coords.long(), (4, 5, 6), 1)
    short = torch.zeros(8, dtype=torch.int32).cuda()
    with pytest.raises(RuntimeError, match=r"workspace must have .* elements, has 8"):
        index_pyramid(coords, (4, 5, 6), 1, (), workspace=short)
    with pytest.raises(RuntimeError, match="count must be Int"):
        index_pyramid(coords, (4, 5, 6), 1, (), capacities=(9,), count=coords[:1, 0].float())


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


def test_operators_are_well_behaved():
    coords = random_coords(4, 2, (9, 12, 100), 300).cuda()
    shapes = [(9, 12, 100), SECOND[0].output_shape((9, 12, 100))]
    plan = Plan.of(2, shapes, SECOND[:1], ConvGeometry.of(3, padding=1), 3, True)
    workspace = new_workspace(2, shapes, coords.device)
    extension()
    operators = torch.ops.millisecond
    torch.library.opcheck(
        operators.index_count.default, (coords, None, workspace.clone(), *plan[:3])
    )
    *sizes, _, _ = operators.index_count(coords, None, workspace, *plan[:3]).tolist()
    torch.library.opcheck(operators.index_exact.default, (coords, workspace, *plan, sizes))
    torch.library.opcheck(operators.index_clear.default, (workspace, *plan[:2]))
    operators.index_clear(workspace, *plan[:2])
    torch.library.opcheck(  # rows behind a level's count would be anything
        operators.index_bounded.default, (coords, None, workspace, *plan, sizes)
    )


@torch.no_grad()
def test_compiles_to_one_graph():
    shape, capacities = (21, 40, 200), (3000, 9000, 9000)
    coords = random_coords(9, 2, shape, 2000).cuda()
    count = torch.tensor([len(coords)], dtype=torch.int32).cuda()
    workspace = index_workspace(shape, 2, SECOND[:2], coords.device)

    def build(coords, count, workspace):
        options = {"capacities": capacities, "count": count, "workspace": workspace}
        pyramid = index_pyramid(coords, shape, 2, SECOND[:2], **options)
        tables = [level.submanifold for level in pyramid.levels[:2]]
        tables += [level.down for level in pyramid.levels[1:]]
        parts = [(level.coords, level.count) for level in pyramid.levels]
        inside = [table.forward for table in tables]
        rows = [torch.arange(t.neighbours.shape[1], device=t.count.device) for t in inside]
        inside = [
            torch.where(n < t.count, t.neighbours, -1) for n, t in zip(rows, inside, strict=True)
        ]
        return pyramid.overflow, parts, inside

    want = build(coords, count, workspace)
    compiled = torch.compile(build, fullgraph=True, backend="aot_eager")
    for _ in range(2):
        torch.testing.assert_close(compiled(coords, count, workspace), want, rtol=0, atol=0)
        assert not workspace.any()


def test_another_stream():
    coords = street_coords(8, 1, KITTI, 10000)
    want = index_pyramid(coords, KITTI, 1, SECOND)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(20_000_000)  # work on the default stream would overtake this
        device = coords.pin_memory().to("cuda", non_blocking=True)
        got = index_pyramid(device, KITTI, 1, SECOND)
    stream.synchronize()
    assert_same_pyramid(got, want)


def test_graph_replays_on_new_coords_without_reading_back():
    capacities = (12000, 60000, 60000, 40000, 30000)
    clouds = [street_coords(seed, 1, KITTI, size) for seed, size in ((1, 9000), (2, 0), (3, 12000))]
    coords = torch.full((12000, 4), -1, dtype=torch.int32, device="cuda")
    count = torch.zeros(1, dtype=torch.int32, device="cuda")
    workspace = index_workspace(KITTI, 1, SECOND, coords.device)

    def build():
        return index_pyramid(
            coords, KITTI, 1, SECOND, capacities=capacities, count=count, workspace=workspace
        )

    build()
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            got = build()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    for cloud in clouds:
        coords[: len(cloud)].copy_(cloud)
        count.fill_(len(cloud))
        graph.replay()
        want = index_pyramid(cloud, KITTI, 1, SECOND, capacities=capacities)
        assert_same_pyramid(got, want)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="one GPU only")
def test_second_gpu():
    coords = random_coords(6, 2, (9, 40, 100), 3000)
    want = index_pyramid(coords, (9, 40, 100), 2, SECOND[:2])
    got = index_pyramid(coords.to("cuda:1"), (9, 40, 100), 2, SECOND[:2])
    assert got.levels[0].submanifold.forward.neighbours.device.index == 1
    assert_same_pyramid(got, want)


def test_without_enough_memory_the_workspace_is_zero_again():
    shape, step = (4, 30, 40), SECOND[0]
    coords = random_coords(3, 2, shape, 200).cuda()
    workspace = index_workspace(shape, 2, [step], coords.device)
    rows = [(1 << 30) - 2] * 2  # whose tables take 116 GB each
    with pytest.raises(torch.OutOfMemoryError):
        index_pyramid(coords, shape, 2, [step], capacities=rows, workspace=workspace)
    torch.cuda.empty_cache()
    assert not workspace.any()
