"""The CUDA index under torch.compile, in CUDA graphs, on streams and on a second GPU."""

import re

import pytest
import torch

from millisecond.ops import ConvGeometry, index_pyramid, index_workspace
from millisecond.ops.kernel_map import Plan, new_workspace, pyramid_builder
from millisecond.ops.library import extension
from tests.helpers.graphs import captured_without_sync
from tests.helpers.levels import KITTI, SECOND, assert_same_pyramid, random_coords, street_coords

pytestmark = pytest.mark.gpu


def test_operators_are_well_behaved():
    coords = random_coords(4, 2, (9, 12, 100), 300).cuda()
    shapes = [(9, 12, 100), SECOND[0].output_shape((9, 12, 100))]
    plan = Plan.of(2, shapes, SECOND[:1], ConvGeometry.of(3, padding=1), 3, True)
    workspace = new_workspace(2, shapes, coords.device)
    extension()
    operators = torch.ops.millisecond
    *sizes, _, _ = operators.index_exact(coords, None, workspace, *plan)[1].tolist()
    torch.library.opcheck(operators.index_clear.default, (workspace, *plan[:2]))
    torch.library.opcheck(  # rows behind a level's count would be anything
        operators.index_bounded.default, (coords, None, workspace, *plan, sizes, True)
    )


def test_an_index_in_one_call():
    shape = (21, 40, 200)
    build = pyramid_builder(shape, 2, SECOND[:2], 3, True, True, torch.device("cuda"))
    for seed in range(2):
        coords = random_coords(seed, 2, shape, 500 + 1500 * seed).cuda()
        want = index_pyramid(coords.cpu(), shape, 2, SECOND[:2], 3, True)
        assert_same_pyramid(build(coords), want)
        wrong = coords.flip(0)
        with pytest.raises(ValueError) as found:
            index_pyramid(wrong, shape, 2, SECOND[:2], 3, True)
        with pytest.raises(ValueError, match=re.escape(str(found.value))):
            build(wrong)
    plan = Plan.of(2, [shape], [], ConvGeometry.of(3, padding=1), 1, True)
    checks = "test_schema", "test_faketensor"
    count = torch.tensor([len(coords)], dtype=torch.int32).cuda()
    for given in ((None, None), (count, new_workspace(2, [shape], coords.device))):
        arguments = coords, *given, *plan
        operator = torch.ops.millisecond.index_exact.default
        torch.library.opcheck(operator, arguments, test_utils=checks)


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


def test_a_workspace_is_cleared_on_another_stream():
    coords = street_coords(8, 1, KITTI, 10000)
    options = {"capacities": (10000, 60000, 60000, 40000, 30000)}
    want = index_pyramid(coords, KITTI, 1, SECOND, **options)
    side, coords = torch.cuda.Stream(), coords.cuda()
    options["workspace"] = index_workspace(KITTI, 1, SECOND, coords.device)
    for _ in range(2):
        with torch.cuda.stream(side):
            torch.cuda._sleep(20_000_000)  # the workspace is still marked, and may not be used yet
        got = index_pyramid(coords, KITTI, 1, SECOND, clear_on=side, **options)
        assert options["workspace"].any()
        torch.cuda.current_stream().wait_stream(side)
        assert not options["workspace"].any()
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

    graph, got = captured_without_sync(build)
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
