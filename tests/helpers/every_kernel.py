r"""Runs every CUDA kernel once on small inputs, for compute-sanitizer to watch:

PYTORCH_NO_CUDA_MEMORY_CACHING=1 compute-sanitizer --tool memcheck \
    python tests/helpers/every_kernel.py

A function says by `runs` which operators it calls; tests/ops/test_operators.py wants all of them.
"""

import sys
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from millisecond import ops
from millisecond.ops import ConvGeometry, KernelMap, Level, VoxelGrid, lab
from millisecond.ops.bev import SquareWindow, planned
from millisecond.ops.kernel_map import pyramid_builder
from millisecond.ops.lab import naive
from millisecond.ops.lab.dense_conv3d import RUNGS
from millisecond.ops.lab.locations import output_sites
from millisecond.ops.line_maps import line_table, reached_sites, site_order, site_table
from millisecond.ops.row_order import row_order
from millisecond.ops.transfer import own_stream

GRID = VoxelGrid((0, -4, -2, 12, 4, 2), (0.2, 0.2, 0.2))
DOWN = ConvGeometry((3, 3, 3), (2, 2, 2), (1, 1, 1), (1, 1, 1))
AROUND = ConvGeometry((3, 3, 3), (1, 1, 1), (1, 1, 1), (1, 1, 1))
CHANNELS = [
    (4, 16),
    (16, 16),
    (32, 64),
    (64, 64),
    (64, 128),
    (128, 64),
    (128, 128),
    (3, 5),
    (20, 12),
]
# they take no tensor, or are autograd alone, which `Called` does not see
NOT_SEEN = {"index_workspace_words", "own_stream", "tile_sizes", "train_blocks"}
DTYPES = (torch.float32, torch.float16, torch.bfloat16)


class Scene(NamedTuple):
    """Two clouds and what is made of them."""

    points: Tensor
    offsets: Tensor
    coords: Tensor
    level: Level
    below: Level


Run = Callable[[Scene], None]
RUNS: dict[tuple[str, ...], Run] = {}  # by the operators that are called


def runs(*operators: str) -> Callable[[Run], Run]:
    def declare(function: Run) -> Run:
        RUNS[operators] = function
        return function

    return declare


def make_scene() -> Scene:
    points = (torch.rand(3000, 4) * torch.tensor([13, 9, 4, 1]) - torch.tensor([0, 4, 2, 0])).cuda()
    points[7] = float("nan")
    offsets = torch.tensor([0, 1800, 3000], dtype=torch.int32).cuda()
    coords = ops.voxelize(points, offsets, GRID).coords
    level, below = ops.index_pyramid(coords, GRID.sparse_shape, 2, [DOWN]).levels
    return Scene(points, offsets, coords, level, below)


def kernel_maps(scene: Scene) -> list[KernelMap]:
    down = scene.below.down
    return [scene.level.submanifold, down, down.reversed()]


def sources(kernel_map: KernelMap) -> int:
    return kernel_map.backward.neighbours.shape[1]


@runs("voxelize")
def voxelize(scene: Scene) -> None:
    ops.voxelize(scene.points, scene.offsets, GRID)
    ops.voxelize(scene.points, scene.offsets, GRID, max_voxels=300, capacity=700)


@runs("index_bounded", "index_clear", "index_workspace_words")
def index_with_capacities(scene: Scene) -> None:
    workspace = ops.index_workspace(GRID.sparse_shape, 2, [DOWN], scene.points.device)
    count = torch.tensor([len(scene.coords)], dtype=torch.int32).cuda()
    bounded = {"capacities": (2000, 2500), "count": count, "workspace": workspace}
    ops.index_pyramid(scene.coords, GRID.sparse_shape, 2, [DOWN], **bounded)
    side = torch.cuda.Stream()
    ops.index_pyramid(scene.coords, GRID.sparse_shape, 2, [DOWN], **bounded, clear_on=side)
    torch.cuda.current_stream().wait_stream(side)


@runs("index_exact")
def index_exactly(scene: Scene) -> None:
    workspace = ops.index_workspace(GRID.sparse_shape, 2, [DOWN], scene.points.device)
    ops.index_pyramid(scene.coords, GRID.sparse_shape, 2, [DOWN], workspace=workspace)
    odd = ConvGeometry((2, 1, 3), (1, 2, 3), (0, 1, 2), (2, 1, 1))
    ops.strided_map(scene.coords, GRID.sparse_shape, 2, odd)
    ops.submanifold_map(scene.coords, GRID.sparse_shape, 2, 5)


@runs("index_exact", "index_workspace_words")
def index_in_one_call(scene: Scene) -> None:
    grid = GRID.sparse_shape, 2, [DOWN], 3, True, True
    pyramid_builder(*grid, scene.points.device)(scene.coords)


@runs("conv", "conv_weight_gradient")
def sparse_conv(scene: Scene) -> None:
    options = product(kernel_maps(scene), DTYPES, ("highest", "high"), CHANNELS)
    for kernel_map, dtype, precision, (c_in, c_out) in options:
        torch.set_float32_matmul_precision(precision)
        x = torch.randn(sources(kernel_map), c_in, device="cuda", dtype=dtype, requires_grad=True)
        volume = len(kernel_map.forward.neighbours)
        w = torch.randn(volume, c_in, c_out, device="cuda", requires_grad=True)
        with torch.no_grad():
            x[:1] = torch.inf  # sums that are not finite are computed again
        bias = torch.randn(c_out, device="cuda", requires_grad=True)
        ops.sparse_conv(x, w.to(dtype), kernel_map, bias, relu=True).sum().backward()


@runs(
    "list_pairs",
    "gather_rows",
    "add_products",
    "fetch_products",
    "conv_centre",
    "fetch_rows",
)
def dataflows_over_pairs(scene: Scene) -> None:
    half = ConvGeometry.of(2, 2)
    *_, apart = ops.strided_map(scene.coords, GRID.sparse_shape, 2, half)
    maps = [lab.pair_map(kernel_map) for kernel_map in (*kernel_maps(scene), apart.reversed())]
    dataflows = lab.Dataflow("gather_scatter"), lab.Dataflow("fetch_on_demand")
    kinds = [*((dtype, "highest") for dtype in DTYPES), (torch.float32, "high")]
    channels = [(48, 16), (16, 32), (64, 64), (32, 128), (3, 5)]
    options = product(maps, dataflows, kinds, channels)
    for listed, dataflow, (dtype, precision), (c_in, c_out) in options:
        torch.set_float32_matmul_precision(precision)
        rows = listed.backward.neighbours.shape[1]
        x = torch.randn(rows, c_in, device="cuda", dtype=dtype, requires_grad=True)
        w = torch.randn(len(listed.forward.neighbours), c_in, c_out, device="cuda")
        w = w.to(dtype).requires_grad_()
        lab.sparse_conv(x, w, listed, relu=True, dataflow=dataflow).sum().backward()


@runs("hash_sites", "reach_outputs", "locate", "conv_direct")
def direct(scene: Scene) -> None:
    around = ConvGeometry((3, 3, 3), (1, 1, 1), (1, 1, 1), (1, 1, 1))
    below = scene.below.coords
    for table, (geometry, out) in product(
        ("array", "hash"), ((around, scene.coords), (DOWN, below))
    ):
        if geometry is DOWN:
            output_sites(scene.coords, GRID.sparse_shape, 2, DOWN)
        found = lab.location_map(scene.coords, GRID.sparse_shape, 2, geometry, out, table)
        for dtype, (c_in, c_out) in product(DTYPES, ((4, 16), (33, 40))):
            x = torch.randn(len(scene.coords), c_in, device="cuda", dtype=dtype, requires_grad=True)
            w = torch.randn(27, c_in, c_out, device="cuda", dtype=dtype, requires_grad=True)
            lab.sparse_conv(x, w, found, relu=True).sum().backward()


@runs("row_order")
def row_orders(scene: Scene) -> None:
    torch.set_float32_matmul_precision("high")
    layers = (128, 256), (32, 64), (64, 64)
    for kernel_map, dtype, (c_in, c_out) in product(kernel_maps(scene), DTYPES, layers):
        table = kernel_map.forward
        ordered = KernelMap(table._replace(order=row_order(table)), kernel_map.backward)
        x = torch.randn(sources(kernel_map), c_in, device="cuda", dtype=dtype)
        w = torch.randn(len(table.neighbours), c_in, c_out, device="cuda", dtype=dtype)
        with torch.no_grad():
            ops.sparse_conv(x, w, ordered)


@runs("conv")
def large_windows(scene: Scene) -> None:
    torch.set_float32_matmul_precision("high")
    kernel_map = ops.submanifold_map(scene.coords, GRID.sparse_shape, 2, 5)
    for dtype, c_in, c_out in product(DTYPES, (4, 8), (16, 64)):
        x = torch.randn(len(scene.coords), c_in, device="cuda", dtype=dtype)
        w = torch.randn(125, c_in, c_out, device="cuda", dtype=dtype)
        with torch.no_grad():
            ops.sparse_conv(x, w, kernel_map, relu=True)


@runs("train_blocks", "conv_blocks", "conv_blocks_backward")
def conv_blocks(scene: Scene) -> None:
    options = product(kernel_maps(scene), DTYPES, ("highest", "high"), CHANNELS)
    for kernel_map, dtype, precision, (c_in, c_out) in options:
        if kernel_map.forward.flipped:
            continue
        torch.set_float32_matmul_precision(precision)
        x = torch.randn(sources(kernel_map), c_in, device="cuda", dtype=dtype, requires_grad=True)
        volume = len(kernel_map.forward.neighbours)
        w = torch.randn(volume, c_in, c_out, device="cuda", requires_grad=True)
        norm = torch.nn.BatchNorm1d(c_out).cuda()
        ops.conv_blocks(x, [w], [kernel_map], [norm]).sum().backward()


@runs("train_blocks", "conv_blocks", "conv_blocks_backward", "index_bounded")
def conv_blocks_with_counts(scene: Scene) -> None:
    count = torch.tensor([len(scene.coords)], dtype=torch.int32).cuda()
    room = {"capacities": (2 * len(scene.coords), 3 * len(scene.coords)), "count": count}
    levels = ops.index_pyramid(scene.coords, GRID.sparse_shape, 2, [DOWN], **room).levels
    maps = [levels[0].submanifold, levels[1].down]
    x = torch.randn(2 * len(scene.coords), 4, device="cuda", dtype=torch.half, requires_grad=True)
    weights = [torch.randn(27, *n, device="cuda", requires_grad=True) for n in ((4, 16), (16, 32))]
    norms = [torch.nn.BatchNorm1d(n).cuda() for n in (16, 32)]
    ops.conv_blocks(x, weights, maps, norms).sum().backward()


@runs("batch_norm_relu", "batch_norm_relu_backward")
def norm_relu(scene: Scene) -> None:
    for dtype, channels in product(DTYPES, (5, 128)):
        maps = [torch.randn(2, channels, 9, 11, device="cuda", dtype=dtype) for _ in range(2)]
        norms = [torch.nn.BatchNorm2d(channels).cuda() for _ in maps]
        ops.norm_relu([values.requires_grad_() for values in maps], norms).sum().backward()


@runs("adamw_update")
def adamw_update(scene: Scene) -> None:
    weights, gradient, average, *moments = (torch.rand(70_004, device="cuda") for _ in range(5))
    state = ops.Moments(*moments, torch.zeros((), device="cuda"))
    schedule = torch.tensor([1e-3, 0.9, 0.1], dtype=torch.float64, device="cuda")
    scale = ops.LossScale(torch.ones((), device="cuda"), torch.zeros((), device="cuda").int())
    recipe = ops.Recipe(0.99, 1e-8, 0.01, 10)
    ops.adamw_update(weights, gradient, state, schedule, recipe)
    ops.adamw_update(weights, gradient, state, schedule, recipe, average, scale)


@runs("pack_weight", "conv_chain")
def conv_chain(scene: Scene) -> None:
    level = scene.level
    weights = [torch.randn(27, 16, 32), torch.randn(27, 32, 64)]
    chain = ops.ConvChain(weights, [torch.randn(32), torch.randn(64)]).cuda().half()
    rows = torch.randn(len(level.coords), 16, device="cuda")
    with torch.no_grad():
        chain(rows, [level.submanifold] * 2)
        narrow = ops.ConvChain([torch.randn(27, 4, 16)], [torch.randn(16)]).cuda().half()
        narrow(rows[:, :4].contiguous(), [level.submanifold])


@runs("dense_conv3d")
def dense_conv3d(scene: Scene) -> None:
    options = product(RUNGS, (torch.float32, torch.float16), (3, 5, 7), (1, 5))
    for rung, dtype, kernel, channels in options:
        volume = torch.randn(1, 2, 9, 10, 33).cuda().to(dtype)
        weight = torch.randn(channels, 2, kernel, kernel, kernel).cuda().to(dtype)
        lab.dense_conv3d(volume, weight, rung)


@runs("conv_naive")
def conv_naive(scene: Scene) -> None:
    level = scene.level
    tables = naive.tables(level.coords, level.spatial_shape, 2, DOWN, scene.below.coords)
    features = torch.randn(len(level.coords), 40).cuda()
    naive.sparse_conv(features, torch.randn(27, 40, 50).cuda(), tables)


@runs("line_table", "reached_sites", "site_order", "site_table")
def lines_of_sites(scene: Scene) -> None:
    coords, shape, below = scene.coords, GRID.sparse_shape, scene.below
    line_table(below.coords, coords, 2, shape, DOWN)
    line_table(coords, below.coords, 2, below.spatial_shape, DOWN, transposed=True)
    reached_sites(coords, 2, below.spatial_shape, DOWN)
    site_order(coords, 2, shape)
    site_order(coords.flip(0), 1, shape)
    site_table(coords, 2, shape, AROUND)
    site_table(coords.flip(0), 2, shape, AROUND)


@runs("max_pool", "max_pool_backward")
def sparse_max_pool(scene: Scene) -> None:
    for kernel_map, dtype in product(kernel_maps(scene), DTYPES):
        x = torch.randn(sources(kernel_map), 24, device="cuda", dtype=dtype, requires_grad=True)
        ops.sparse_max_pool(x, kernel_map).sum().backward()


@runs("dense", "dense_backward")
def dense(scene: Scene) -> None:
    below = scene.below
    x = torch.randn(len(below.coords), 32, device="cuda", requires_grad=True)
    ops.dense(x, below.coords, below.spatial_shape, 2).sum().backward()
    ops.bev_map(x.half(), below.coords, below.spatial_shape, 2).sum().backward()


@runs("bev_cells", "tile_sizes", "bev_heads", "bev_spread", "select_boxes_of_cells")
def bev_network(scene: Scene) -> None:
    shape = scene.below.spatial_shape[1:]
    low = scene.below.coords[scene.below.coords[:, 1] < 2]  # tiles are found ahead
    level = Level(low, None, (2, *shape), None, None)
    blocks = [[SquareWindow(3, 1, 1)] * 2, [SquareWindow(3, 2, 1), SquareWindow(2, 1, 1)]]
    plan = planned(blocks, shape, scene.coords.device, [128, 128, 128, 256])
    cells = ops.bev_cells(level, 2, plan)
    for dtype, (c_in, width) in product(DTYPES, [(128, 256), (64, 48)]):
        values = []
        for layer, parts in zip(plan.kept, (1, 4), strict=True):
            sizes = (c_in, parts * width), (parts * width,), (width, 20), (20,)
            heads = ops.BevHeads(*(torch.randn(n).cuda().to(dtype) for n in sizes), parts)
            table = cells.tables[layer]
            rows = torch.randn(table.neighbours.shape[1], c_in, device="cuda", dtype=dtype)
            values.append(heads(rows, table.count))
        ops.bev_spread(values[:1], cells.rows[:1], [1], [6, 14])
        ops.bev_spread(values[1:], cells.rows[1:], [2], [3, 7, 9])
        sums = ops.CellValues(values[1:], cells.rows[1:], [2], [3, 7, 2])
        anchors = torch.rand(cells.rows[1][0].numel() * 4, 7, device="cuda") * 9
        ops.select_boxes_of_cells(sums, anchors, 0.5, 500, 0.1, 100)
    tables = cells.tables[:2]  # rows side by side share what they read
    weights = [torch.randn(len(table.neighbours), 128, 128) for table in tables]
    chain = ops.ConvChain(weights, [torch.randn(128)] * 2).cuda().half()
    rows = torch.randn(len(low), 128, device="cuda").half()
    chain(rows, [ops.KernelMap(table, None) for table in tables])
    chain(rows, [ops.KernelMap(table._replace(tiles=None), None) for table in tables])


@runs("match_anchors", "anchor_losses", "anchor_losses_backward")
def anchors(scene: Scene) -> None:
    anchors = torch.rand(9, 70, 3, 2, 7, device="cuda")
    columns, rows = (torch.rand(n, 3, 2, 2, device="cuda").sort().values for n in (70, 9))
    truth, labels = torch.rand(2, 150, 7, device="cuda"), torch.randint(4, (2, 150), device="cuda")
    match = ops.match_anchors(columns, rows, torch.rand(3, 2, device="cuda"), truth, labels)
    for dtype in DTYPES:
        predictions = (torch.randn(2, 3780, n, device="cuda", dtype=dtype) for n in (3, 7, 2))
        predictions = [p.requires_grad_() for p in predictions]
        ops.anchor_losses(*predictions, anchors, truth, *match, (1, 2, 0.2))[0].backward()


@runs("overlap", "paired_overlap", "nms")
def boxes(scene: Scene) -> None:
    boxes = torch.rand(700, 7, device="cuda") * torch.tensor([20, 20, 2, 4, 2, 2, 6]).cuda()
    ops.iou_3d(boxes, boxes[:50])
    ops.paired_overlap_bev(boxes, boxes.flip(0))
    labels = torch.randint(3, (700,), device="cuda")
    for groups in (None, labels):
        ops.nms(boxes, torch.rand(700, device="cuda"), 0.1, 100, labels=groups)


@runs("select_boxes")
def select_boxes(scene: Scene) -> None:
    anchors = torch.rand(3780, 7, device="cuda") * torch.tensor([20, 20, 2, 4, 2, 2, 6]).cuda()
    for dtype, before, per_class in product(DTYPES, (3780, 500), (False, True)):
        predictions = (torch.randn(2, 3780, n, device="cuda", dtype=dtype) for n in (3, 7, 2))
        ops.select_boxes(*predictions, anchors, 0.5, before, 0.1, 100, per_class)


@runs("own_stream")
def streams(scene: Scene) -> None:
    with torch.cuda.stream(own_stream(0, 7)):
        ops.iou_3d(scene.points.new_ones(3, 7), scene.points.new_ones(2, 7))


@runs("load_points", "stage_points")
def load_points(scene: Scene) -> None:
    offsets = torch.tensor([0, 1000, 2500], dtype=torch.int32).pin_memory()
    workspace = ops.load_workspace(2, scene.points.device)
    for channels in (4, 5):
        points = torch.rand(3000, channels)
        points[::700, 3] = 1e9
        points, staged = points.pin_memory(), torch.zeros(2, dtype=torch.int32).pin_memory()
        ops.load_points(points, offsets, workspace)
        ops.load_points(points, offsets, workspace, staged)
        ops.stage_points([torch.rand(2500, channels)], points, staged)


@runs("collect")
def collect(scene: Scene) -> None:
    parts = [scene.points, scene.offsets.long(), scene.coords[5:300]]
    out = torch.zeros(12000 + 6 + 4 * len(parts[2]), dtype=torch.int32).pin_memory()
    ops.collect(parts, out)


@runs("furthest_point_sampling")
def furthest_point_sampling(scene: Scene) -> None:
    for count in (3000, 5000, 40_000, 100_000, 132_000):  # a block, clusters, streamed
        ops.furthest_point_sampling(torch.randn(2, count, 3, device="cuda"), 5)


@runs("ball_query", "three_nearest")
def point_neighbours(scene: Scene) -> None:
    for count, queries in ((0, 5), (100, 40), (3000, 700), (1500, 70_000)):  # slices of a tile
        points, others = (torch.randn(2, n, 3, device="cuda") for n in (count, queries))
        ops.ball_query(points, others, 0.3, 5)
        ops.three_nearest(points, others)


@runs("group_points", "interpolate", "segment_sum", "segment_max")
def point_features(scene: Scene) -> None:
    rows = torch.randint(-1, 30, (2, 100, 3), device="cuda")
    weights = torch.rand(rows.shape, device="cuda")
    voxels = ops.dynamic_voxelize(scene.points, scene.offsets, GRID)
    for dtype, channels in product(DTYPES, (3, 6, 16, 160)):
        features, each = (
            torch.randn(*n, channels, device="cuda", dtype=dtype, requires_grad=True)
            for n in ((2, 40), (len(scene.points),))
        )
        ops.group_points(features, rows).sum().backward()
        ops.interpolate(features, rows, weights).sum().backward()
        for reduction in ("max", "mean"):
            ops.voxel_pool(each, voxels, reduction).sum().backward()


class Called(TorchDispatchMode):
    """Collects the names of our operators that are called."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function.namespace in ("millisecond", "millisecond_lab"):
            self.names.add(function._schema.name.partition("::")[2])
        return function(*args, **(kwargs or {}))


def main() -> None:
    torch.manual_seed(0)
    scene = make_scene()
    for operators, run in RUNS.items():
        with Called() as called:
            run(scene)
        left_out = {*operators} - called.names - NOT_SEEN
        if left_out:
            raise SystemExit(f"{run.__name__} does not call {', '.join(sorted(left_out))}")
    torch.cuda.synchronize()
    print("every kernel ran")


if __name__ == "__main__":
    main()
