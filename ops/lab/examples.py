"""An example of every operator: the calls that users make, and the paths through its launcher.

`millisecond bench operators` times the calls on a scan. compute-sanitizer watches calls and paths
on a small scene (tests/helpers/every_kernel.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import pairwise, product
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from millisecond import ops
from millisecond.ops.bev import SquareWindow, planned
from millisecond.ops.geometry import ConvGeometry
from millisecond.ops.kernel_map import Level, pyramid_builder
from millisecond.ops.lab import naive
from millisecond.ops.lab.dataflow import Dataflow
from millisecond.ops.lab.dense_conv3d import RUNGS
from millisecond.ops.lab.dense_conv3d import dense_conv3d as dense_convolution
from millisecond.ops.lab.locations import kernel_map as searched
from millisecond.ops.lab.locations import location_map, output_sites
from millisecond.ops.lab.networks import AROUND
from millisecond.ops.lab.pairs import PairMap, pair_map
from millisecond.ops.lab.sparse_conv import sparse_conv as conv_by_dataflow
from millisecond.ops.line_maps import line_table, reached_sites, site_faults, site_order, site_table
from millisecond.ops.row_order import row_order
from millisecond.ops.rulebook import KernelMap
from millisecond.ops.transfer import own_stream
from millisecond.ops.voxelize import VoxelGrid, Voxels

SMALL = VoxelGrid((0, -4, -2, 12, 4, 2), (0.2, 0.2, 0.2))
DOWN = ConvGeometry((3, 3, 3), (2, 2, 2), (1, 1, 1), (1, 1, 1))
CHANNELS = [(4, 16), (16, 16), (32, 64), (64, 64), (64, 128), (128, 64), (128, 128), (3, 5)]
CHANNELS += [(20, 12)]
DTYPES = (torch.float32, torch.float16, torch.bfloat16)
PRECISIONS = ("highest", "high")  # of products of float32
Choice = TypeVar("Choice")


class Scene(NamedTuple):
    """Clouds and what is made of them. The paths of the operators run on a small scene only."""

    points: Tensor  # [P, C]
    offsets: Tensor  # [B + 1]
    grid: VoxelGrid
    downs: Sequence[ConvGeometry]
    capacities: Sequence[int]  # rows of each level
    number: int  # of the level that layers are on
    small: bool
    voxels: Voxels
    levels: tuple[Level, ...]

    @classmethod
    def of(
        cls,
        points: Tensor,
        offsets: Tensor,
        grid: VoxelGrid,
        downs: Sequence[ConvGeometry],
        capacities: Sequence[int],
        number: int,
        small: bool = False,
    ) -> Scene:
        voxels = ops.voxelize(points, offsets, grid)
        batch = len(offsets) - 1
        levels = ops.index_pyramid(voxels.coords, grid.sparse_shape, batch, downs).levels
        return cls(points, offsets, grid, downs, capacities, number, small, voxels, levels)

    @property
    def device(self) -> torch.device:
        return self.points.device

    @property
    def sites(self) -> tuple[Tensor, tuple[int, ...], int]:
        """Coords, grid and batch size of the voxels."""
        return self.voxels.coords, self.grid.sparse_shape, len(self.offsets) - 1

    @property
    def level(self) -> Level:
        return self.levels[self.number]

    @property
    def submanifold(self) -> KernelMap:
        assert self.level.submanifold is not None
        return self.level.submanifold

    @property
    def down(self) -> KernelMap:
        """The map of the step to the level, or from the first one."""
        found = self.levels[max(self.number, 1)].down
        assert found is not None
        return found

    def maps(self) -> list[KernelMap]:
        """Every kind of kernel map, for paths."""
        return [self.submanifold, self.down, self.down.reversed()] if self.small else []

    def pick(self, large: Choice, small: Choice) -> Choice:
        return small if self.small else large

    def random(self, *shape: int, dtype: torch.dtype = torch.float16) -> Tensor:
        """Of the normal distribution, with a gradient."""
        return torch.randn(*shape, device=self.device, dtype=dtype, requires_grad=True)

    def uniform(self, *shape: int) -> Tensor:
        return torch.rand(*shape, device=self.device)

    def predictions(
        self, frames: int, count: int, dtype: torch.dtype = torch.float16
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Logits of three classes, residuals and logits of the direction, of so many anchors."""
        sizes = ((frames, count, n) for n in (3, 7, 2))
        logits, residuals, directions = (self.random(*size, dtype=dtype) for size in sizes)
        return logits, residuals, directions

    def boxes(self, count: int) -> Tensor:
        """[count, 7] float32."""
        span = self.pick((70, 80), (20, 20))
        return self.uniform(count, 7) * self.uniform(1).new_tensor([*span, 2, 4, 2, 2, 6])


def small_scene(device: torch.device) -> Scene:
    """Two clouds, one of them with a point that is not finite."""
    points = torch.rand(3000, 4) * torch.tensor([13, 9, 4, 1]) - torch.tensor([0, 4, 2, 0])
    points[7] = float("nan")
    offsets = torch.tensor([0, 1800, 3000], dtype=torch.int32)
    clouds = points.to(device), offsets.to(device)
    return Scene.of(*clouds, SMALL, [DOWN], (2000, 2500), 0, small=True)


Call = tuple[str, Callable[[], object]]  # what is timed, with its name in the table
Example = Callable[[Scene], Iterator[Call]]
EXAMPLES: dict[tuple[str, ...], Example] = {}  # by the operators that are called


def example(*operators: str) -> Callable[[Example], Example]:
    """Of a function that gives the calls of users, and on a small scene runs the other paths."""

    def declare(function: Example) -> Example:
        EXAMPLES[operators] = function
        return function

    return declare


def forward_and_backward(call: Callable[[], Tensor]) -> Callable[[], None]:
    return lambda: call().sum().backward()


def sources(kernel_map: KernelMap | PairMap) -> int:
    """Rows of a layer's input."""
    assert kernel_map.backward is not None
    return kernel_map.backward.neighbours.shape[1]


@example("voxelize")
def voxelize(scene: Scene) -> Iterator[Call]:
    clouds = scene.points, scene.offsets, scene.grid
    yield "voxelize", lambda: ops.voxelize(*clouds)
    if scene.small:
        ops.voxelize(*clouds, max_voxels=300, capacity=700)


@example("index_bounded", "index_clear", "index_workspace_words")
def index_with_capacities(scene: Scene) -> Iterator[Call]:
    coords, *_ = sites = scene.sites
    bounded = partial(
        ops.index_pyramid,
        *sites,
        scene.downs,
        capacities=scene.capacities,
        count=torch.tensor([len(coords)], device=scene.device).int() if scene.small else None,
        workspace=ops.index_workspace(*sites[1:], scene.downs, scene.device),
    )
    yield "index, capacities", bounded
    current = torch.cuda.current_stream()
    side = torch.cuda.Stream() if scene.small else current
    yield "index, capacities, cleared apart", partial(bounded, clear_on=side)
    current.wait_stream(side)


@example("index_exact")
def index_exactly(scene: Scene) -> Iterator[Call]:
    sites, downs = scene.sites, scene.downs
    workspace = ops.index_workspace(*sites[1:], downs, scene.device)
    yield "index, exact sizes", lambda: ops.index_pyramid(*sites, downs, workspace=workspace)
    if scene.small:
        odd = ConvGeometry((2, 1, 3), (1, 2, 3), (0, 1, 2), (2, 1, 1))
        ops.strided_map(*sites, odd)
        ops.submanifold_map(*sites, 5)


@example("index_exact", "index_workspace_words")
def index_in_one_call(scene: Scene) -> Iterator[Call]:
    coords, shape, batch = scene.sites
    build = pyramid_builder(shape, batch, scene.downs, 3, scene.small, True, scene.device)
    yield "index, one call", lambda: build(coords)


@example("line_table", "reached_sites", "site_order", "site_table", "site_faults")
def lines_of_sites(scene: Scene) -> Iterator[Call]:
    coords, shape, batch = scene.sites
    yield "line table", lambda: line_table(coords, coords, batch, shape, AROUND)
    table = lambda rows: site_faults(*site_table(rows, batch, shape, (3, 3, 3), (1, 1, 1)))  # noqa: E731
    yield "site table", lambda: table(coords)
    below_shape = DOWN.output_shape(shape)
    yield "reached sites", lambda: reached_sites(coords, batch, below_shape, DOWN)
    yield "site order", lambda: site_order(coords, batch, shape)
    if scene.small:
        below = scene.levels[1].coords
        line_table(below, coords, batch, shape, DOWN)
        line_table(coords, below, batch, below_shape, DOWN, transposed=True)
        site_order(coords.flip(0), 1, shape)
        table(coords.flip(0))
        site_table(coords.flip(0), batch, shape, (3, 3, 3), (1, 1, 1), False, True)


@example("train_conv", "conv", "conv_weight_gradient")
def sparse_conv(scene: Scene) -> Iterator[Call]:
    kernel_map = scene.submanifold
    x, weight = scene.random(sources(kernel_map), 64), scene.random(27, 64, 64)
    call = lambda: ops.sparse_conv(x, weight, kernel_map)  # noqa: E731
    yield "conv 64-64", call
    yield "conv 64-64 and backward", forward_and_backward(call)
    options = product(scene.maps(), DTYPES, PRECISIONS, CHANNELS)
    for kernel_map, dtype, precision, (c_in, c_out) in options:
        torch.set_float32_matmul_precision(precision)
        x = scene.random(sources(kernel_map), c_in, dtype=dtype)
        with torch.no_grad():
            x[:1] = torch.inf  # sums that are not finite are computed again
        volume = len(kernel_map.forward.neighbours)
        weight = scene.random(volume, c_in, c_out, dtype=torch.float32)
        bias = scene.random(c_out, dtype=torch.float32)
        ops.sparse_conv(x, weight.to(dtype), kernel_map, bias, relu=True).sum().backward()
    if scene.small:
        large = ops.submanifold_map(*scene.sites, 5)
        for dtype, c_in, c_out in product(DTYPES, (4, 8), (16, 64)):
            x = scene.random(sources(large), c_in, dtype=dtype)
            with torch.no_grad():
                ops.sparse_conv(x, scene.random(125, c_in, c_out, dtype=dtype), large, relu=True)


@example(
    "list_pairs",
    "gather_rows",
    "add_products",
    "fetch_products",
    "conv_centre",
    "fetch_rows",
)
def dataflows_over_pairs(scene: Scene) -> Iterator[Call]:
    kernel_map = scene.submanifold
    x, weight = scene.random(sources(kernel_map), 64), scene.random(27, 64, 64)
    listed = pair_map(kernel_map)
    yield "list the pairs of a map", lambda: pair_map(kernel_map)
    dataflows = Dataflow("gather_scatter"), Dataflow("fetch_on_demand")
    for dataflow in dataflows:
        call = lambda d=dataflow: conv_by_dataflow(x, weight, listed, dataflow=d)  # noqa: E731
        yield f"{dataflow.kind} 64-64 and backward", forward_and_backward(call)
    if not scene.small:
        return
    *_, apart = ops.strided_map(*scene.sites, ConvGeometry.of(2, 2))
    maps = [pair_map(kernel_map) for kernel_map in (*scene.maps(), apart.reversed())]
    kinds = [*((dtype, "highest") for dtype in DTYPES), (torch.float32, "high")]
    channels = [(48, 16), (16, 32), (64, 64), (32, 128), (3, 5)]
    options = product(maps, dataflows, kinds, channels)
    for pairs, dataflow, (dtype, precision), (c_in, c_out) in options:
        torch.set_float32_matmul_precision(precision)
        x = scene.random(sources(pairs), c_in, dtype=dtype)
        weight = scene.random(len(pairs.forward.neighbours), c_in, c_out, dtype=dtype)
        conv_by_dataflow(x, weight, pairs, relu=True, dataflow=dataflow).sum().backward()


@example("hash_sites", "reach_outputs", "locate", "conv_direct")
def direct(scene: Scene) -> Iterator[Call]:
    level = scene.level
    place = level.coords, level.spatial_shape, len(scene.offsets) - 1
    down = scene.downs[scene.number]
    x, weight = scene.random(len(level.coords), 64), scene.random(27, 64, 64)
    found = location_map(*place, AROUND, level.coords)
    yield "outputs of a step down, hash", lambda: output_sites(*place, down)
    yield "location map, hash", lambda: location_map(*place, AROUND, level.coords)
    yield "kernel map by search in the hash", lambda: searched(found)
    yield "direct 64-64", lambda: conv_by_dataflow(x, weight, found)
    if not scene.small:
        return
    steps = (AROUND, level.coords), (down, scene.levels[1].coords)
    for table, step in product(("array", "hash"), steps):
        found = location_map(*place, *step, table)
        for dtype, (c_in, c_out) in product(DTYPES, ((4, 16), (33, 40))):
            x = scene.random(len(level.coords), c_in, dtype=dtype)
            weight = scene.random(27, c_in, c_out, dtype=dtype)
            conv_by_dataflow(x, weight, found, relu=True).sum().backward()


@example("row_order")
def row_orders(scene: Scene) -> Iterator[Call]:
    table = scene.submanifold.forward
    yield "row order", lambda: row_order(table)
    layers = (128, 256), (32, 64), (64, 64)
    for kernel_map, dtype, (c_in, c_out) in product(scene.maps(), DTYPES, layers):
        torch.set_float32_matmul_precision("high")
        table = kernel_map.forward
        ordered = KernelMap(table._replace(order=row_order(table)), kernel_map.backward)
        x = scene.random(sources(kernel_map), c_in, dtype=dtype)
        weight = scene.random(len(table.neighbours), c_in, c_out, dtype=dtype)
        with torch.no_grad():
            ops.sparse_conv(x, weight, ordered)


@example("conv_naive")
def conv_naive(scene: Scene) -> Iterator[Call]:
    level, (*_, batch) = scene.level, scene.sites
    tables = naive.tables(level.coords, level.spatial_shape, batch, AROUND, level.coords)
    x = scene.random(len(level.coords), 64, dtype=torch.float32)
    weight = scene.random(27, 64, 64, dtype=torch.float32)
    yield "naive conv 64-64", lambda: naive.sparse_conv(x, weight, tables)
    if scene.small:
        below = scene.levels[1].coords
        tables = naive.tables(level.coords, level.spatial_shape, batch, DOWN, below)
        naive.sparse_conv(x[:, :40], scene.random(27, 40, 50, dtype=torch.float32), tables)


@example("dense_conv3d")
def dense_conv3d(scene: Scene) -> Iterator[Call]:
    shape = scene.pick((64, 64, 64), (9, 10, 33))
    volume, weight = scene.random(1, 16, *shape).detach(), scene.random(16, 16, 3, 3, 3).detach()
    yield "dense conv 16-16, 64 x 64 x 64", lambda: dense_convolution(volume, weight)
    if not scene.small:
        return
    for rung, dtype, kernel, channels in product(RUNGS, DTYPES[:2], (3, 5, 7), (1, 5)):
        volume = scene.random(1, 2, *shape, dtype=dtype)
        weight = scene.random(channels, 2, *(kernel,) * 3, dtype=dtype)
        dense_convolution(volume, weight, rung)


@example("train_blocks", "conv_blocks", "conv_blocks_backward")
def conv_blocks(scene: Scene) -> Iterator[Call]:
    kernel_map = scene.submanifold
    x = scene.random(sources(kernel_map), 64)
    weights = [scene.random(27, 64, 64, dtype=torch.float32) for _ in range(2)]
    norms = [nn.BatchNorm1d(64).to(scene.device) for _ in weights]
    call = lambda: ops.conv_blocks(x, weights, [kernel_map] * 2, norms)  # noqa: E731
    yield "conv blocks", call
    yield "conv blocks and backward", forward_and_backward(call)
    options = product(scene.maps()[:2], DTYPES, PRECISIONS, CHANNELS)
    for kernel_map, dtype, precision, (c_in, c_out) in options:
        torch.set_float32_matmul_precision(precision)
        x = scene.random(sources(kernel_map), c_in, dtype=dtype)
        weight = scene.random(27, c_in, c_out, dtype=torch.float32)
        norm = nn.BatchNorm1d(c_out).to(scene.device)
        residual = scene.random(kernel_map.forward.neighbours.shape[1], c_out, dtype=dtype)
        for added in (None, residual):
            ops.conv_blocks(x, [weight], [kernel_map], [norm], added).sum().backward()
    if scene.small:
        _conv_blocks_with_counts(scene)


def _conv_blocks_with_counts(scene: Scene) -> None:
    rows = len(scene.voxels.coords)
    count = torch.tensor([rows], device=scene.device).int()
    room = 2 * rows, 3 * rows
    sites = ops.index_pyramid(*scene.sites, [DOWN], capacities=room, count=count)
    above, below = sites.levels
    assert above.submanifold is not None and below.down is not None
    x = scene.random(2 * rows, 4)
    weights = [scene.random(27, *n, dtype=torch.float32) for n in ((4, 16), (16, 32))]
    norms = [nn.BatchNorm1d(n).to(scene.device) for n in (16, 32)]
    ops.conv_blocks(x, weights, [above.submanifold, below.down], norms).sum().backward()


@example("batch_norm_relu", "batch_norm_relu_backward")
def norm_relu(scene: Scene) -> Iterator[Call]:
    maps = scene.random(*scene.pick((4, 128, 200, 176), (2, 128, 9, 11))).detach()
    maps = maps.to(memory_format=torch.channels_last).requires_grad_()
    norm = nn.BatchNorm2d(128).to(scene.device)
    call = lambda: ops.norm_relu([maps], [norm])  # noqa: E731
    yield "normalised map, 4 scans", call
    yield "the same and backward", forward_and_backward(call)
    if scene.small:
        for dtype, channels in product(DTYPES, (5, 128)):
            several = [scene.random(2, channels, 9, 11, dtype=dtype) for _ in range(2)]
            norms = [nn.BatchNorm2d(channels).to(scene.device) for _ in several]
            ops.norm_relu(several, norms).sum().backward()


@example("adamw_update")
def adamw_update(scene: Scene) -> Iterator[Call]:
    size = scene.pick(5_400_000, 70_004)  # large: about SECOND's weights
    weights, gradient, average, mean, square = (scene.uniform(size) for _ in range(5))
    state = ops.Moments(mean, square, torch.zeros((), device=scene.device))
    schedule = torch.tensor([1e-3, 0.9, 0.1], dtype=torch.float64, device=scene.device)
    recipe = ops.Recipe(0.99, 1e-8, 0.01, 10)
    step = weights, gradient, state, schedule, recipe
    yield "update of all weights", lambda: ops.adamw_update(*step)
    if scene.small:
        one = torch.ones((), device=scene.device)
        ops.adamw_update(*step, average, ops.LossScale(one, torch.zeros_like(one).int()))


@example("pack_weight", "conv_chain")
def conv_chain(scene: Scene) -> Iterator[Call]:
    kernel_map = scene.submanifold
    weights = [torch.randn(27, 64, 64) for _ in range(2)]
    chain = ops.ConvChain(weights, [torch.randn(64) for _ in weights]).to(scene.device).half()
    x = scene.random(sources(kernel_map), 64).detach()
    yield "conv chain", lambda: chain(x, [kernel_map] * 2)
    yield "packing weights", chain.half
    if scene.small:
        for widths in ((16, 32, 64), (4, 16)):
            weights = [torch.randn(27, *pair) for pair in pairwise(widths)]
            biases = [torch.randn(width) for width in widths[1:]]
            other = ops.ConvChain(weights, biases).to(scene.device).half()
            other(x[:, : widths[0]].float().contiguous(), [kernel_map] * len(weights))


@example("max_pool", "max_pool_backward")
def max_pool(scene: Scene) -> Iterator[Call]:
    down = scene.down
    x = scene.random(sources(down), 64)
    call = lambda: ops.sparse_max_pool(x, down)  # noqa: E731
    yield "max pool", call
    yield "max pool and backward", forward_and_backward(call)
    for kernel_map, dtype in product(scene.maps(), DTYPES):
        x = scene.random(sources(kernel_map), 24, dtype=dtype)
        ops.sparse_max_pool(x, kernel_map).sum().backward()


@example("dense", "dense_backward")
def bev_map(scene: Scene) -> Iterator[Call]:
    level, (*_, batch) = scene.levels[-1], scene.sites
    x, place = scene.random(len(level.coords), 128), (level.coords, level.spatial_shape, batch)
    call = lambda: ops.bev_map(x, *place)  # noqa: E731
    yield "bird's-eye-view map", call
    yield "the same and backward", forward_and_backward(call)
    if scene.small:
        whole = scene.random(len(level.coords), 32, dtype=torch.float32)
        ops.dense(whole, *place).sum().backward()


@example("bev_cells", "tile_sizes", "bev_heads", "bev_spread", "select_boxes_of_cells")
def bev_network(scene: Scene) -> Iterator[Call]:
    level, (*_, batch) = scene.levels[-1], scene.sites
    around, step = SquareWindow(3, 1, 1), SquareWindow(3, 2, 1)
    blocks = [[around] * 6, [step, *[around] * 5]]
    if scene.small:  # tiles are found ahead
        low = level.coords[level.coords[:, 1] < 2]
        level = Level(low, None, (2, *level.spatial_shape[1:]), None, None)
        blocks = [[around] * 2, [step, around]]
    channels = [128] * len(blocks[0]) + [256] * len(blocks[1])
    plan = planned(blocks, level.spatial_shape[1:], scene.device, channels)
    cells = ops.bev_cells(level, batch, plan)
    heads = _heads(scene, 256, 256, 72, 4)
    x = scene.random(scene.pick(8800, 200), 256).detach()
    values = [
        scene.random(cells.tables[layer].neighbours.shape[1] * parts, 128).detach()
        for layer, parts in zip(plan.kept, (1, 4), strict=True)
    ]
    sums = ops.CellValues([part - 5 for part in values], cells.rows, [1, 2], [18, 42, 12])
    anchors = scene.boxes(cells.rows[0][0].numel() * 6)
    limits = scene.pick((0.1, 4096, 0.01, 500), (0.1, 500, 0.01, 100))
    yield (
        "boxes of all cells' values",
        lambda: ops.select_boxes_of_cells(sums, anchors, *limits),
    )
    yield "cells and tables of the BEV network", lambda: ops.bev_cells(level, batch, plan)
    yield "up-sampling and heads, 8800 cells", lambda: heads(x)
    yield (
        "predictions of all cells",
        lambda: ops.bev_spread(values, cells.rows, [1, 2], [18, 42, 12]),
    )
    if scene.small:
        _bev_paths(scene, level)


def _heads(
    scene: Scene,
    c_in: int,
    width: int,
    outputs: int,
    parts: int,
    dtype: torch.dtype = torch.float16,
) -> ops.BevHeads:
    sizes = (c_in, parts * width), (parts * width,), (width, outputs), (outputs,)
    up, up_bias, head, head_bias = (scene.random(*n, dtype=dtype).detach() for n in sizes)
    return ops.BevHeads(up, up_bias, head, head_bias, parts)


def _bev_paths(scene: Scene, level: Level) -> None:
    """Heads of several widths on each map by itself, and rows side by side."""
    blocks = [[SquareWindow(3, 1, 1)] * 2, [SquareWindow(3, 2, 1), SquareWindow(2, 1, 1)]]
    plan = planned(blocks, level.spatial_shape[1:], scene.device, [128, 128, 128, 256])
    cells = ops.bev_cells(level, 2, plan)
    for dtype, (c_in, width) in product(DTYPES, [(128, 256), (64, 48)]):
        values = []
        for layer, parts in zip(plan.kept, (1, 4), strict=True):
            heads, table = _heads(scene, c_in, width, 20, parts, dtype), cells.tables[layer]
            rows = scene.random(table.neighbours.shape[1], c_in, dtype=dtype).detach()
            values.append(heads(rows, table.count))
        ops.bev_spread(values[:1], cells.rows[:1], [1], [6, 14])
        ops.bev_spread(values[1:], cells.rows[1:], [2], [3, 7, 9])
        sums = ops.CellValues(values[1:], cells.rows[1:], [2], [3, 7, 2])
        anchors = scene.uniform(cells.rows[1][0].numel() * 4, 7) * 9
        ops.select_boxes_of_cells(sums, anchors, 0.5, 500, 0.1, 100)
    tables = cells.tables[:2]  # rows side by side share what they read
    weights = [torch.randn(len(table.neighbours), 128, 128) for table in tables]
    chain = ops.ConvChain(weights, [torch.randn(128)] * 2).to(scene.device).half()
    x = scene.random(len(level.coords), 128).detach()
    chain(x, [KernelMap(table, None) for table in tables])
    chain(x, [KernelMap(table._replace(tiles=None), None) for table in tables])


@example("match_anchors", "anchor_losses", "anchor_losses_backward")
def anchors(scene: Scene) -> Iterator[Call]:
    (y, x), (frames, most) = scene.pick(((200, 176), (4, 30)), ((9, 70), (2, 150)))
    anchors = scene.uniform(y, x, 3, 2, 7)
    columns, rows = (scene.uniform(n, 3, 2, 2).sort().values for n in (x, y))
    limits = torch.tensor([[0.6, 0.45]] * 3, device=scene.device)
    boxes, labels = scene.uniform(frames, most, 7), torch.ones(frames, most, dtype=torch.int64)
    if scene.small:
        limits, labels = scene.uniform(3, 2), torch.randint(4, (frames, most))
    sides = columns, rows, limits, boxes, labels.to(scene.device)
    match = ops.match_anchors(*sides)

    def loss(predictions: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        return ops.anchor_losses(*predictions, anchors, boxes, *match, (1.0, 2.0, 0.2))[0]

    call = partial(loss, scene.predictions(frames, y * x * 6))
    yield "matching anchors, 4 scans", lambda: ops.match_anchors(*sides)
    yield "losses of anchors, 4 scans", call
    yield "losses of anchors and backward", forward_and_backward(call)
    if scene.small:
        for dtype in DTYPES:
            loss(scene.predictions(frames, y * x * 6, dtype)).backward()


@example("overlap", "paired_overlap", "nms")
def boxes(scene: Scene) -> Iterator[Call]:
    count, few, most = scene.pick((4096, 100, 500), (700, 50, 100))
    boxes, scores = scene.boxes(count), scene.uniform(count)
    yield "3-D IoU, 4096 by 100", lambda: ops.iou_3d(boxes, boxes[:few])
    yield "overlap of 4096 pairs", lambda: ops.paired_overlap_bev(boxes, boxes.flip(0))
    yield "NMS of 4096 boxes", lambda: ops.nms(boxes, scores, 0.1, most)
    if scene.small:
        labels = torch.randint(3, (count,), device=scene.device)
        ops.nms(boxes, scores, 0.1, most, labels=labels)


@example("select_boxes")
def select_boxes(scene: Scene) -> Iterator[Call]:
    count = scene.pick(200 * 176 * 6, 3780)
    anchors = scene.boxes(count)
    logits, residuals, directions = scene.predictions(1, count)
    few, (before, after) = logits.detach() * 0.6 - 5, scene.pick((4096, 500), (500, 100))

    def select(logits: Tensor) -> ops.SelectedBoxes:
        limits = 0.1, before, 0.01, after
        return ops.select_boxes(logits, residuals, directions, anchors, *limits)

    yield "boxes of a scan's predictions", partial(select, few)
    yield "the same, most anchors pass", partial(select, logits)
    if scene.small:
        for dtype, most, per_class in product(DTYPES, (count, 500), (False, True)):
            predictions = scene.predictions(2, count, dtype)
            ops.select_boxes(*predictions, anchors, 0.5, most, 0.1, 100, per_class)


@example("own_stream")
def stream_of_its_own(scene: Scene) -> Iterator[Call]:
    yield "a stream that is there", lambda: own_stream(0, 0)
    if scene.small:
        with torch.cuda.stream(own_stream(0, 7)):
            ops.iou_3d(scene.points.new_ones(3, 7), scene.points.new_ones(2, 7))


@example("load_points")
def load_points(scene: Scene) -> Iterator[Call]:
    points, offsets = scene.points.cpu().pin_memory(), scene.offsets.cpu().pin_memory()
    workspace = ops.load_workspace(len(offsets) - 1, scene.device)
    yield "points from pinned memory", lambda: ops.load_points(points, offsets, workspace)
    if scene.small:
        offsets = torch.tensor([0, 1000, 2500], dtype=torch.int32).pin_memory()
        for channels in (4, 5):
            points = torch.rand(3000, channels)
            points[:700, 3] = 1e9
            points, staged = points.pin_memory(), torch.zeros(2, dtype=torch.int32).pin_memory()
            moves = torch.rand(2, 13).pin_memory()
            ops.load_points(points, offsets, workspace)
            ops.load_points(points, offsets, workspace, None, moves)
            ops.load_points(points, offsets, workspace, staged)
            ops.stage_points([torch.rand(2500, channels)], points, staged)


@example("stage_points")
def stage_points(scene: Scene) -> Iterator[Call]:
    points = scene.points.cpu()
    pinned, staged = points.pin_memory(), torch.zeros(2, dtype=torch.int32).pin_memory()

    def stage() -> None:
        staged.zero_()
        ops.stage_points([points], pinned, staged)

    yield "points into pinned memory", stage
    if scene.small:
        large = torch.rand(70_000, 4)  # over 1 MB: two threads copy it
        room = torch.zeros(70_000, 4).pin_memory()
        staged.zero_()
        ops.stage_points([large], room, staged, finish=False)
        ops.stage_points([], room, staged)


@example("collect")
def collect(scene: Scene) -> Iterator[Call]:
    parts = [scene.uniform(n) for n in (3500, 500, 500, 5)]
    if scene.small:
        parts = [scene.points, scene.offsets.long(), scene.voxels.coords[5:300]]
    words = sum(part.numel() * part.element_size() // 4 for part in parts)
    out = torch.zeros(words, dtype=torch.int32).pin_memory()
    yield "results to the host", lambda: ops.collect(parts, out)


@example("furthest_point_sampling")
def furthest_point_sampling(scene: Scene) -> Iterator[Call]:
    frames, count, most = scene.pick((1, 16_384, 1024), (2, 3000, 5))
    points = scene.random(frames, count, 3, dtype=torch.float32).detach()
    name = "furthest points, 1024 of 16384"
    yield name, lambda: ops.furthest_point_sampling(points, most)
    if scene.small:
        for count in (5000, 40_000, 100_000, 132_000):  # a block, clusters, streamed
            points = scene.random(2, count, 3, dtype=torch.float32).detach()
            ops.furthest_point_sampling(points, 5)


@example("ball_query", "three_nearest")
def point_neighbours(scene: Scene) -> Iterator[Call]:
    points = scene.uniform(1, scene.pick(16_384, 1000), 3)
    points *= points.new_tensor([70, 80, 4])
    centres = points[:, ::4].contiguous()
    yield (
        "ball query, 32 of 16384, 4096 balls",
        lambda: ops.ball_query(points, centres, 1.6, 32),
    )
    yield "three nearest of 4096, 16384 times", lambda: ops.three_nearest(centres, points)
    if scene.small:
        for sizes in ((0, 5), (100, 40), (3000, 700), (1500, 70_000)):  # slices of a tile
            some, others = (scene.random(2, n, 3, dtype=torch.float32).detach() for n in sizes)
            ops.ball_query(some, others, 0.3, 5)
            ops.three_nearest(some, others)


@example("group_points", "interpolate", "segment_sum", "segment_max")
def point_features(scene: Scene) -> Iterator[Call]:
    count, centres, most = scene.pick((16_384, 4096, 32), (40, 100, 3))
    features, each = scene.random(1, count, 64), scene.random(len(scene.points), 64)
    rows = torch.randint(count, (1, centres, most), device=scene.device)
    few, weights = rows[..., :3], scene.uniform(1, centres, 3)
    clouds = scene.points, scene.offsets, scene.grid
    voxels = ops.dynamic_voxelize(*clouds)
    group = lambda: ops.group_points(features, rows)  # noqa: E731
    blend = lambda: ops.interpolate(features, few, weights)  # noqa: E731
    largest = lambda: ops.voxel_pool(each, voxels, "max")  # noqa: E731
    mean = lambda: ops.voxel_pool(each, voxels, "mean")  # noqa: E731
    yield "grouping of 4096 balls of 32, 64 channels", group
    yield "the same and backward", forward_and_backward(group)
    yield "interpolation at 4096 places", blend
    yield "interpolation and backward", forward_and_backward(blend)
    yield "voxels of all points", lambda: ops.dynamic_voxelize(*clouds)
    yield "largest of voxels, 64 channels", largest
    yield "largest and backward", forward_and_backward(largest)
    yield "mean of voxels", mean
    yield "mean and backward", forward_and_backward(mean)
    if not scene.small:
        return
    rows = torch.randint(-1, 30, (2, 100, 3), device=scene.device)
    weights = scene.uniform(*rows.shape)
    for dtype, channels in product(DTYPES, (3, 6, 16, 160)):
        features = scene.random(2, 40, channels, dtype=dtype)
        each = scene.random(len(scene.points), channels, dtype=dtype)
        ops.group_points(features, rows).sum().backward()
        ops.interpolate(features, rows, weights).sum().backward()
        for reduction in ("max", "mean"):
            ops.voxel_pool(each, voxels, reduction).sum().backward()
