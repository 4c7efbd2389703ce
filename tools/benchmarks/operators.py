"""Every operator by itself, at the sizes of one KITTI scan: one line each."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from millisecond import ops
from millisecond.detector.cuda_graph import KITTI_ROWS
from millisecond.detector.models.sparse_encoder import DOWNS
from millisecond.ops import KernelMap, Level, Voxels, lab
from millisecond.ops.bev import SquareWindow, planned
from millisecond.ops.kernel_map import pyramid_builder
from millisecond.ops.lab import naive
from millisecond.ops.lab.locations import kernel_map as kernel_map_of
from millisecond.ops.lab.locations import output_sites
from millisecond.ops.line_maps import line_table, reached_sites, site_order, site_table
from millisecond.ops.row_order import row_order
from millisecond.ops.transfer import own_stream
from millisecond.tools.benchmarks.ops import GRID
from millisecond.tools.benchmarks.timing import Scans, Times, wall


class PreparedScan(NamedTuple):
    """A scan on the GPU and what is made of it."""

    points: Tensor
    offsets: Tensor
    voxels: Voxels
    levels: tuple[Level, ...]


Calls = dict[str, Callable[[], object]]  # what is timed, by the name in the table
Line = Callable[[PreparedScan], Calls]
LINES: dict[tuple[str, ...], Line] = {}  # by the operators that are called


def line(*operators: str) -> Callable[[Line], Line]:
    def declare(function: Line) -> Line:
        LINES[operators] = function
        return function

    return declare


def measure(scans: Scans, repeats: int) -> dict:
    """Median milliseconds of a call, the device idle before and after it; prints the table."""
    torch.manual_seed(0)
    points, offsets = scans.batch([0], torch.device("cuda"))
    voxels = ops.voxelize(points, offsets, GRID)
    levels = ops.index_pyramid(voxels.coords, GRID.sparse_shape, 1, DOWNS).levels
    scan = PreparedScan(points, offsets, voxels, levels)
    result: dict = {"device": torch.cuda.get_device_name(), "scans": scans.source, "rows": []}
    print(f"{result['device']}, torch {torch.__version__}, the first of {scans.source}")
    for operators, calls in LINES.items():
        for name, call in calls(scan).items():
            times = Times.of(wall(call, repeats))
            row = {"name": name, "operators": list(operators), "median_ms": times.median}
            result["rows"].append(row)
            print(f"{name:<42} {times.median:9.3f} ms", flush=True)
    return result


def forward_and_backward(call: Callable[[], Tensor]) -> Callable[[], None]:
    return lambda: call().sum().backward()


def random(*shape: int, dtype: torch.dtype = torch.float16) -> Tensor:
    return torch.randn(*shape, device="cuda", dtype=dtype, requires_grad=True)


def submanifold(scan: PreparedScan) -> tuple[KernelMap, int]:
    """The map of level 2, and its rows."""
    level = scan.levels[2]
    return level.submanifold, len(level.coords)


@line("voxelize")
def voxelize(scan: PreparedScan) -> Calls:
    return {"voxelize": lambda: ops.voxelize(scan.points, scan.offsets, GRID)}


@line("index_bounded", "index_clear", "index_workspace_words")
def index_with_capacities(scan: PreparedScan) -> Calls:
    coords, shape = scan.voxels.coords, GRID.sparse_shape
    workspace = ops.index_workspace(shape, 1, DOWNS, coords.device)
    options = {"capacities": KITTI_ROWS, "workspace": workspace}
    cleared_now = {**options, "clear_on": torch.cuda.current_stream()}
    return {
        "index, capacities": lambda: ops.index_pyramid(coords, shape, 1, DOWNS, **options),
        "index, capacities, cleared apart": lambda: ops.index_pyramid(
            coords, shape, 1, DOWNS, **cleared_now
        ),
    }


@line("index_exact")
def index_exactly(scan: PreparedScan) -> Calls:
    coords, shape = scan.voxels.coords, GRID.sparse_shape
    workspace = ops.index_workspace(shape, 1, DOWNS, coords.device)
    options = {"workspace": workspace}
    return {"index, exact sizes": lambda: ops.index_pyramid(coords, shape, 1, DOWNS, **options)}


@line("index_exact", "index_workspace_words")
def index_in_one_call(scan: PreparedScan) -> Calls:
    coords, shape = scan.voxels.coords, GRID.sparse_shape
    build = pyramid_builder(shape, 1, DOWNS, 3, False, True, coords.device)
    return {"index, one call": lambda: build(coords)}


@line("line_table", "reached_sites", "site_order", "site_table")
def lines_of_sites(scan: PreparedScan) -> Calls:
    coords, shape = scan.voxels.coords, GRID.sparse_shape
    window, down = ops.ConvGeometry.of(3, padding=1), ops.ConvGeometry.of(3, 2, 1)
    return {
        "line table": lambda: line_table(coords, coords, 1, shape, window),
        "site table": lambda: site_table(coords, 1, shape, window),
        "reached sites": lambda: reached_sites(coords, 1, down.output_shape(shape), down),
        "site order": lambda: site_order(coords, 1, shape),
    }


@line("conv", "conv_weight_gradient")
def sparse_conv(scan: PreparedScan) -> Calls:
    kernel_map, rows = submanifold(scan)
    x, weight = random(rows, 64), random(27, 64, 64)
    call = lambda: ops.sparse_conv(x, weight, kernel_map)  # noqa: E731
    return {"conv 64-64": call, "conv 64-64 and backward": forward_and_backward(call)}


@line(
    "list_pairs",
    "gather_rows",
    "add_products",
    "fetch_products",
    "conv_centre",
    "fetch_rows",
)
def dataflows_over_pairs(scan: PreparedScan) -> Calls:
    kernel_map, rows = submanifold(scan)
    x, weight, listed = random(rows, 64), random(27, 64, 64), lab.pair_map(kernel_map)
    calls: Calls = {"list the pairs of a map": lambda: lab.pair_map(kernel_map)}
    for dataflow in (lab.Dataflow("gather_scatter"), lab.Dataflow("fetch_on_demand")):
        call = lambda d=dataflow: lab.sparse_conv(x, weight, listed, dataflow=d)  # noqa: E731
        calls[f"{dataflow.kind} 64-64 and backward"] = forward_and_backward(call)
    return calls


@line("hash_sites", "reach_outputs", "locate", "conv_direct")
def direct(scan: PreparedScan) -> Calls:
    level, geometry = scan.levels[2], ops.ConvGeometry.of(3, padding=1)
    place = level.coords, level.spatial_shape, 1, geometry, level.coords
    x, weight, found = random(len(level.coords), 64), random(27, 64, 64), lab.location_map(*place)
    down = level.coords, level.spatial_shape, 1, DOWNS[2]
    return {
        "outputs of a step down, hash": lambda: output_sites(*down),
        "location map, hash": lambda: lab.location_map(*place),
        "kernel map by search in the hash": lambda: kernel_map_of(found),
        "direct 64-64": lambda: lab.sparse_conv(x, weight, found),
    }


@line("row_order")
def row_orders(scan: PreparedScan) -> Calls:
    table = submanifold(scan)[0].forward
    return {"row order": lambda: row_order(table)}


@line("conv_naive")
def conv_naive(scan: PreparedScan) -> Calls:
    level = scan.levels[2]
    geometry = ops.ConvGeometry.of(3, padding=1)
    tables = naive.tables(level.coords, level.spatial_shape, 1, geometry, level.coords)
    x, weight = (random(*n, dtype=torch.float32) for n in ((len(level.coords), 64), (27, 64, 64)))
    return {"naive conv 64-64": lambda: naive.sparse_conv(x, weight, tables)}


@line("dense_conv3d")
def dense_conv3d(scan: PreparedScan) -> Calls:
    volume, weight = (random(*n).detach() for n in ((1, 16, 64, 64, 64), (16, 16, 3, 3, 3)))
    return {"dense conv 16-16, 64 x 64 x 64": lambda: lab.dense_conv3d(volume, weight)}


@line("train_blocks", "conv_blocks", "conv_blocks_backward")
def conv_blocks(scan: PreparedScan) -> Calls:
    kernel_map, rows = submanifold(scan)
    x, weights = random(rows, 64), [random(27, 64, 64, dtype=torch.float32) for _ in range(2)]
    norms = [torch.nn.BatchNorm1d(64).cuda() for _ in weights]
    call = lambda: ops.conv_blocks(x, weights, [kernel_map] * 2, norms)  # noqa: E731
    return {"conv blocks": call, "conv blocks and backward": forward_and_backward(call)}


@line("batch_norm_relu", "batch_norm_relu_backward")
def norm_relu(scan: PreparedScan) -> Calls:
    maps = random(4, 128, 200, 176).detach().to(memory_format=torch.channels_last)
    maps.requires_grad_()
    norm = torch.nn.BatchNorm2d(128).cuda()
    call = lambda: ops.norm_relu([maps], [norm])  # noqa: E731
    return {"normalised map, 4 scans": call, "the same and backward": forward_and_backward(call)}


@line("adamw_update")
def adamw_update(scan: PreparedScan) -> Calls:
    size = 5_400_000  # about SECOND's weights
    weights, gradient, *moments = (torch.rand(size, device="cuda") for _ in range(4))
    state = ops.Moments(*moments, torch.zeros((), device="cuda"))
    schedule = torch.tensor([1e-3, 0.9, 0.1], dtype=torch.float64, device="cuda")
    recipe = ops.Recipe(0.99, 1e-8, 0.01, 10)
    call = lambda: ops.adamw_update(weights, gradient, state, schedule, recipe)  # noqa: E731
    return {"update of all weights": call}


@line("pack_weight", "conv_chain")
def conv_chain(scan: PreparedScan) -> Calls:
    kernel_map, rows = submanifold(scan)
    weights = [torch.randn(27, 64, 64) for _ in range(2)]
    chain = ops.ConvChain(weights, [torch.randn(64) for _ in weights]).cuda().half()
    x = random(rows, 64).detach()
    return {
        "conv chain": lambda: chain(x, [kernel_map] * 2),
        "packing weights": chain.half,
    }


@line("max_pool", "max_pool_backward")
def max_pool(scan: PreparedScan) -> Calls:
    down = scan.levels[2].down
    x = random(len(scan.levels[1].coords), 64)
    call = lambda: ops.sparse_max_pool(x, down)  # noqa: E731
    return {"max pool": call, "max pool and backward": forward_and_backward(call)}


@line("dense", "dense_backward")
def bev_map(scan: PreparedScan) -> Calls:
    level = scan.levels[-1]
    x = random(len(level.coords), 128)
    call = lambda: ops.bev_map(x, level.coords, level.spatial_shape, 1)  # noqa: E731
    return {"bird's-eye-view map": call, "the same and backward": forward_and_backward(call)}


@line("bev_cells", "tile_sizes", "bev_heads", "bev_spread", "select_boxes_of_cells")
def bev_network(scan: PreparedScan) -> Calls:
    level = scan.levels[-1]
    blocks = [[SquareWindow(3, 1, 1)] * 6, [SquareWindow(3, 2, 1)] + [SquareWindow(3, 1, 1)] * 5]
    plan = planned(blocks, level.spatial_shape[1:], level.coords.device, [128] * 6 + [256] * 6)
    cells = ops.bev_cells(level, 1, plan)
    sizes, x = ((256, 1024), (1024,), (256, 72), (72,)), random(8800, 256).detach()
    heads = ops.BevHeads(*(random(*size).detach() for size in sizes), parts=4)
    values = [
        random(table.neighbours.shape[1] * f, 128).detach()
        for table, f in ((cells.tables[5], 1), (cells.tables[11], 4))
    ]
    sums = ops.CellValues([part - 5 for part in values], cells.rows, [1, 2], [18, 42, 12])
    anchors = torch.rand(200 * 176 * 6, 7, device="cuda")
    anchors *= torch.tensor([70, 80, 2, 4, 2, 2, 6]).cuda()
    limits = 0.1, 4096, 0.01, 500
    return {
        "boxes of all cells' values": lambda: ops.select_boxes_of_cells(sums, anchors, *limits),
        "cells and tables of the BEV network": lambda: ops.bev_cells(level, 1, plan),
        "up-sampling and heads, 8800 cells": lambda: heads(x),
        "predictions of all cells": lambda: ops.bev_spread(
            values, cells.rows, [1, 2], [18, 42, 12]
        ),
    }


@line("match_anchors", "anchor_losses", "anchor_losses_backward")
def anchors(scan: PreparedScan) -> Calls:
    anchors = torch.rand(200, 176, 3, 2, 7, device="cuda")
    columns, rows = (torch.rand(n, 3, 2, 2, device="cuda").sort().values for n in (176, 200))
    limits = torch.tensor([[0.6, 0.45]] * 3, device="cuda")
    boxes, labels = torch.rand(4, 30, 7, device="cuda"), torch.ones(4, 30).long().cuda()
    sides = columns, rows, limits, boxes, labels
    match = ops.match_anchors(*sides)
    predictions = [random(4, 200 * 176 * 6, n) for n in (3, 7, 2)]
    truth = anchors, boxes, *match, (1.0, 2.0, 0.2)
    call = lambda: ops.anchor_losses(*predictions, *truth)[0]  # noqa: E731
    return {
        "matching anchors, 4 scans": lambda: ops.match_anchors(*sides),
        "losses of anchors, 4 scans": call,
        "losses of anchors and backward": forward_and_backward(call),
    }


@line("overlap", "paired_overlap", "nms")
def boxes(scan: PreparedScan) -> Calls:
    boxes = torch.rand(4096, 7, device="cuda") * torch.tensor([70, 80, 2, 4, 2, 2, 6]).cuda()
    scores = torch.rand(4096, device="cuda")
    return {
        "3-D IoU, 4096 by 100": lambda: ops.iou_3d(boxes, boxes[:100]),
        "overlap of 4096 pairs": lambda: ops.paired_overlap_bev(boxes, boxes.flip(0)),
        "NMS of 4096 boxes": lambda: ops.nms(boxes, scores, 0.1, 500),
    }


@line("select_boxes")
def select_boxes(scan: PreparedScan) -> Calls:
    anchors = torch.rand(200 * 176 * 6, 7, device="cuda")
    anchors *= torch.tensor([70, 80, 2, 4, 2, 2, 6]).cuda()
    logits, *others = (random(1, len(anchors), n).detach() for n in (3, 7, 2))
    few, limits = logits * 0.6 - 5, (anchors, 0.1, 4096, 0.01, 500)
    return {
        "boxes of a scan's predictions": lambda: ops.select_boxes(few, *others, *limits),
        "the same, most anchors pass": lambda: ops.select_boxes(logits, *others, *limits),
    }


@line("own_stream")
def stream_of_its_own(scan: PreparedScan) -> Calls:
    return {"a stream that is there": lambda: own_stream(0, 0)}


@line("load_points")
def load_points(scan: PreparedScan) -> Calls:
    points, offsets = scan.points.cpu().pin_memory(), scan.offsets.cpu().pin_memory()
    workspace = ops.load_workspace(1, scan.points.device)
    return {"points from pinned memory": lambda: ops.load_points(points, offsets, workspace)}


@line("stage_points")
def stage_points(scan: PreparedScan) -> Calls:
    points = scan.points.cpu()
    pinned, staged = points.pin_memory(), torch.zeros(2, dtype=torch.int32).pin_memory()

    def stage() -> None:
        staged.zero_()
        ops.stage_points([points], pinned, staged)

    return {"points into pinned memory": stage}


@line("collect")
def collect(scan: PreparedScan) -> Calls:
    parts = [torch.rand(n, device="cuda") for n in (3500, 500, 500, 5)]
    out = torch.zeros(4505, dtype=torch.int32).pin_memory()
    return {"results to the host": lambda: ops.collect(parts, out)}


@line("furthest_point_sampling")
def furthest_point_sampling(scan: PreparedScan) -> Calls:
    points = torch.randn(1, 16_384, 3, device="cuda")
    name = "furthest points, 1024 of 16384"
    return {name: lambda: ops.furthest_point_sampling(points, 1024)}


@line("ball_query", "three_nearest")
def point_neighbours(scan: PreparedScan) -> Calls:
    points = torch.rand(1, 16_384, 3, device="cuda") * torch.tensor([70, 80, 4]).cuda()
    centres = points[:, ::4].contiguous()
    return {
        "ball query, 32 of 16384, 4096 balls": lambda: ops.ball_query(points, centres, 1.6, 32),
        "three nearest of 4096, 16384 times": lambda: ops.three_nearest(centres, points),
    }


@line("group_points", "interpolate", "segment_sum", "segment_max")
def point_features(scan: PreparedScan) -> Calls:
    features, each = random(1, 16_384, 64), random(len(scan.points), 64)
    rows = torch.randint(16_384, (1, 4096, 32), device="cuda")
    few, weights = rows[..., :3], torch.rand(1, 4096, 3, device="cuda")
    voxels = ops.dynamic_voxelize(scan.points, scan.offsets, GRID)
    group = lambda: ops.group_points(features, rows)  # noqa: E731
    blend = lambda: ops.interpolate(features, few, weights)  # noqa: E731
    largest = lambda: ops.voxel_pool(each, voxels, "max")  # noqa: E731
    mean = lambda: ops.voxel_pool(each, voxels, "mean")  # noqa: E731
    return {
        "grouping of 4096 balls of 32, 64 channels": group,
        "the same and backward": forward_and_backward(group),
        "interpolation at 4096 places": blend,
        "interpolation and backward": forward_and_backward(blend),
        "voxels of all points": lambda: ops.dynamic_voxelize(scan.points, scan.offsets, GRID),
        "largest of voxels, 64 channels": largest,
        "largest and backward": forward_and_backward(largest),
        "mean of voxels": mean,
        "mean and backward": forward_and_backward(mean),
    }
