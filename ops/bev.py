"""Networks on the bird's-eye view, where most cells are empty: only some cells are computed.

A cell whose whole receptive field is empty has the value that it has in an empty map. So one more
frame is computed, an empty one, and every such cell takes its value from there. This is tile
skipping with tiles of one cell. Zero padding makes the values of an empty map differ along its
border. A value there depends at most on the distances to the four edges. This divides the cells
into kinds of equal value, and only the first cell of each kind is computed. Nothing is
approximated. The kernels are in csrc/bev.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from functools import lru_cache, reduce
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from millisecond.ops.dispatch import on_kernels, tf32_allowed
from millisecond.ops.geometry import linear_keys
from millisecond.ops.library import constant_when_traced, fake
from millisecond.ops.rulebook import KernelMap, Level, Table

PANEL = 128  # outputs of a block of the wide kernels, conv/warpgroup.h


class SquareWindow(NamedTuple):
    """The window of a square convolution."""

    size: int
    stride: int
    padding: int


class CellPlan(NamedTuple):
    """The convolutions over maps of one size: all facts that do not depend on a scan."""

    windows: tuple[SquareWindow, ...]
    shapes: tuple[tuple[int, int], ...]  # (Y, X) cells of each result
    channels: tuple[int, ...]  # of each result, or none: then its tiles are not computed ahead
    kinds: tuple[int, ...]  # of each result: cells of an empty map that differ
    # [3, sum of Y + X] int32: of each result, along y and then x, for each position in an empty
    # map: the first position of the same kind; whether it is this position; the number of the kind
    # (along y multiplied by the number of kinds along x)
    alike: Tensor
    kept: tuple[int, ...]  # results whose rows of all cells are wanted


class BevCells(NamedTuple):
    """Rows of the results of all convolutions, and the rows that each convolution reads."""

    tables: list[Table]  # of each convolution; [size * size * Z, N], offsets in order (y, x, z)
    rows: list[Tensor]  # [B, Y, X] int32 of the kept results: the row with the value of each cell


class CellValues(NamedTuple):
    """Values of all cells of a map as sums over several maps, see `bev_spread`."""

    values: list[Tensor]  # [N * factor * factor, C] of each map
    rows: list[Tensor]  # [B, Y / factor, X / factor] int32 of each map
    factors: list[int]  # of each map
    channels: list[int]  # of each group


# ---- the plan, which does not depend on a scan --------------------------------------------------


def planned(
    blocks: Sequence[Sequence[SquareWindow]],
    shape: Sequence[int],
    device: torch.device,
    channels: Sequence[int] = (),
) -> CellPlan:
    """The plan of blocks of convolutions over maps of (Y, X) cells, which are zero at first. Kept
    are the rows of each block's result. channels: of each result, where they are computed."""
    height, width = shape
    alike = [(-1,) * height, (-1,) * width]  # along y and x; -1: zero
    shapes, kinds, lines, kept = [], [], [], []
    for block in blocks:
        for window in block:
            alike = [_alike(line, *window) for line in alike]
            shapes.append((len(alike[0]), len(alike[1])))
            along_y, along_x = (sorted(set(line)) for line in alike)
            kinds.append(len(along_y) * len(along_x))
            lines += _kinds_of(alike[0], len(along_x)) + _kinds_of(alike[1], 1)
        kept.append(len(shapes) - 1)
    windows = tuple(window for block in blocks for window in block)
    numbers = torch.tensor(lines, dtype=torch.int32).T.contiguous().to(device)
    return CellPlan(windows, tuple(shapes), tuple(channels), tuple(kinds), numbers, tuple(kept))


def _kinds_of(line: tuple[int, ...], step: int) -> list[tuple[int, bool, int]]:
    """For each position of a line: the first position of its kind, whether it is this position, and
    the number of its kind, times `step`."""
    number = {first: step * n for n, first in enumerate(sorted(set(line)))}
    return [(first, first == position, number[first]) for position, first in enumerate(line)]


@lru_cache(maxsize=256)
def _alike(line: tuple[int, ...], size: int, stride: int, padding: int) -> tuple[int, ...]:
    """After a convolution: positions are alike where all inputs that they read are alike, the
    padding too."""
    outside = (-1,) * padding
    padded = outside + line + outside
    starts = range(0, len(padded) - size + 1, stride)
    return _first([padded[start : start + size] for start in starts])


@lru_cache(maxsize=256)
def _alike_all(lines: tuple[tuple[tuple[int, ...], int], ...]) -> tuple[int, ...]:
    """Kinds of enlarged lines (with their factors) one behind the other."""
    enlarged = ([(n, part) for n in line for part in range(factor)] for line, factor in lines)
    return _first(list(zip(*enlarged, strict=True)))


def _first(values: Sequence[tuple]) -> tuple[int, ...]:
    """For each value the first position that has it."""
    first: dict[tuple, int] = {}
    return tuple(first.setdefault(value, position) for position, value in enumerate(values))


# ---- cells and tables ---------------------------------------------------------------------------


def bev_cells(level: Level, batch_size: int, plan: CellPlan) -> BevCells:
    """The cells of each convolution that differ from an empty map, and the rows that they read.

    level: sites (b, z, y, x), sorted, which are the rows that the first convolution reads.
    Rows of a result are in the order (frame, y, x). The last frame is empty, and one cell per kind
    is computed there. On CUDA every table has room for all cells, and a count.
    """
    if not on_kernels(level.coords):
        return bev_cells_definition(level, batch_size, plan)
    capacities = [
        batch_size * y * x + kinds for (y, x), kinds in zip(plan.shapes, plan.kinds, strict=True)
    ]
    neighbours, counts, rows, tiles = torch.ops.millisecond.bev_cells(
        level.coords,
        level.count,
        batch_size,
        level.spatial_shape,
        [number for window in plan.windows for number in window],
        plan.alike[1:],
        capacities,
        _tile_bytes(level, plan, capacities),
        plan.kept,
    )
    tables = [
        Table(part, counts[i : i + 1], tiles=tiles[i] if tiles else None)
        for i, part in enumerate(neighbours)
    ]
    return BevCells(tables, rows)


def bev_cells_definition(level: Level, batch_size: int, plan: CellPlan) -> BevCells:
    """`bev_cells` in plain torch."""
    shape, device = level.spatial_shape, level.coords.device
    coords = level.coords if level.count is None else level.coords[: int(level.count)]
    row = torch.full((batch_size + 1, *shape), -1, dtype=torch.int32, device=device)
    row.view(-1)[linear_keys(coords, shape)] = _numbers(len(coords), device)
    occupied = (row[:-1] >= 0).any(dim=1)  # [B, Y, X]: not as in an empty map
    tables, rows = [], []
    for layer, window in enumerate(plan.windows):
        occupied = reached(occupied, window)
        where, numbered = _numbered(occupied, *(line[0] for line in _lines(plan, layer)))
        tables.append(Table(_read(row, where, numbered.shape[1:], window)))
        row = numbered[:, None]
        if layer in plan.kept:
            rows.append(numbered[:-1])
    return BevCells(tables, rows)


def joined_cells(
    cells: BevCells, plan: CellPlan, factors: Sequence[int]
) -> tuple[Tensor, list[KernelMap]]:
    """The kept maps, each enlarged by its factor to the same size, as one map, on a CPU.

    Returns the row of each cell [B, Y, X] int32, and which rows of each map they read. An enlarged
    cell has factor * factor rows side by side, one for each part, in the order (y, x).
    """
    alike: list[list[tuple[tuple[int, ...], int]]] = [[], []]  # along y and x: of each map
    occupied, maps = [], []
    for layer, row, factor in zip(plan.kept, cells.rows, factors, strict=True):
        along = _lines(plan, layer)
        first = cells.tables[layer].neighbours.shape[1] - plan.kinds[layer]  # of the empty frame
        empty = first + along[0][2][:, None] + along[1][2]
        occupied.append(_enlarged(row < first, factor))
        maps.append(_rows_of_parts(torch.cat((row, empty[None])), factor))
        for lines, line in zip(alike, along, strict=True):
            lines.append((tuple(line[0].tolist()), factor))
    y, x = (torch.tensor(_alike_all(tuple(lines))) for lines in alike)
    where, joined = _numbered(torch.stack(occupied).any(dim=0), y, x)
    tables = [Table(parts.view(-1).take(where)[None]) for parts in maps]
    return joined[:-1], [KernelMap(table, None) for table in tables]


def _lines(plan: CellPlan, layer: int) -> tuple[Tensor, Tensor]:
    """`alike` of a result along y and along x."""
    before = sum(y + x for y, x in plan.shapes[:layer])
    y, x = plan.shapes[layer]
    along_y, along_x = plan.alike[:, before : before + y + x].split([y, x], dim=1)
    return along_y, along_x


def _numbered(occupied: Tensor, y: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """A row for each occupied cell and for each kind of cell of the empty map.

    Returns the positions [N] int64 of the rows in [B + 1, Y, X], rising, and for each cell the row
    with its value. y, x: for each position, the first one with the same value in an empty map.
    """
    first_y, first_x = (line == _numbers(len(line), line.device) for line in (y, x))
    computed = torch.cat((occupied, (first_y[:, None] & first_x)[None]))
    where = computed.view(-1).nonzero().squeeze(1)
    row = torch.empty(computed.shape, dtype=torch.int32, device=occupied.device)
    row.view(-1)[where] = _numbers(len(where), row.device)
    row[-1] = row[-1].index_select(0, y).index_select(1, x)
    row[:-1] = torch.where(occupied, row[:-1], row[-1])
    return where, row


def _read(row: Tensor, where: Tensor, shape: Sequence[int], window: SquareWindow) -> Tensor:
    """Rows that each cell of a convolution's result reads: [size * size * Z, N], offsets in the
    order (y, x, z).

    row: [B + 1, Z, Y, X] of the source; where, shape: of the result.
    """
    size, stride, padding = window
    source = pad(row, (padding,) * 4, value=-1)
    depth, source_height, source_width = source.shape[1:]
    frame, rest = _divide(where, shape[0] * shape[1])
    y, x = _divide(rest, shape[1])
    start = (frame * depth * source_height + y * stride) * source_width + x * stride
    along = torch.arange(size, device=row.device)
    heights = torch.arange(depth, device=row.device) * source_height * source_width
    offset = (along[:, None] * source_width + along)[..., None] + heights
    return source.view(-1).take(start + offset.view(-1, 1))


def reached(occupied: Tensor, window: SquareWindow) -> Tensor:
    """The outputs whose window touches an occupied cell: [B, Y, X] -> [B, Y', X'] bool."""
    size, stride, padding = window
    occupied = pad(occupied, (padding,) * 4)
    for axis in (1, 2):
        last = occupied.shape[axis] - size + 1
        parts = (occupied.narrow(axis, o, last) for o in range(size))
        touched = reduce(torch.logical_or, parts)
        occupied = touched[:, ::stride] if axis == 1 else touched[..., ::stride]
    return occupied


def _enlarged(maps: Tensor, factor: int) -> Tensor:
    """[B, Y, X] -> [B, Y * factor, X * factor]."""
    parts = maps[:, :, None, :, None].expand(-1, -1, factor, -1, factor)
    return parts.flatten(3).flatten(1, 2)


def _rows_of_parts(rows: Tensor, factor: int) -> Tensor:
    """Rows [B, Y * factor, X * factor] of the parts of enlarged cells, from the cells' rows."""
    parts = _enlarged(rows, factor) * factor**2
    y, x = (_numbers(size, rows.device) % factor for size in parts.shape[1:])
    return parts + (y[:, None] * factor + x)


def _divide(numbers: Tensor, divisor: int) -> tuple[Tensor, Tensor]:
    quotient = torch.div(numbers, divisor, rounding_mode="floor")
    return quotient, numbers - quotient * divisor


def _numbers(count: int, device: torch.device) -> Tensor:
    return torch.arange(count, dtype=torch.int32, device=device)


def _tile_bytes(level: Level, plan: CellPlan, capacities: Sequence[int]) -> list[int]:
    """Tiles of the tables, for the kernels of wide layers; none for others."""
    if not plan.channels:
        return []
    depths = [level.spatial_shape[0]] + [1] * (len(capacities) - 1)
    volumes = [size**2 * z for (size, _, _), z in zip(plan.windows, depths, strict=True)]
    rows = [operator.index(capacity) for capacity in capacities]  # one graph per batch size
    return _tile_sizes(level.coords.device.index, rows, volumes, plan.channels)


@constant_when_traced
def _tile_sizes(
    device: int, rows: Sequence[int], volumes: Sequence[int], channels: Sequence[int]
) -> list[int]:
    return torch.ops.millisecond.tile_sizes(device, rows, volumes, channels)


@fake("bev_cells")
def _fake_bev_cells(
    coords, count, batch_size, shape, windows, kinds, capacities, tile_bytes, kept
) -> tuple[list[Tensor], Tensor, list[Tensor], list[Tensor]]:
    depth, height, width = shape
    neighbours, shapes = [], []
    for layer, capacity in enumerate(capacities):
        size, stride, padding = windows[3 * layer : 3 * layer + 3]
        height, width = ((n + 2 * padding - size) // stride + 1 for n in (height, width))
        shapes.append((height, width))
        volume = size * size * (depth if layer == 0 else 1)
        neighbours.append(coords.new_empty(volume, capacity))
    rows = [coords.new_empty(batch_size, *shapes[layer]) for layer in kept]
    tiles = [coords.new_empty(size, dtype=torch.uint8) for size in tile_bytes]
    return neighbours, coords.new_empty(len(capacities)), rows, tiles


# ---- heads and values of all cells --------------------------------------------------------------


class BevHeads:
    """rows -> head(relu(up(rows))): up-sampling, and a map's share of the heads' outputs.

    A row becomes `parts` rows, one for each part of the enlarged cell, in the order (y, x). On CUDA
    the weights are kept in the order in which the tensor cores read them.
    """

    def __init__(self, up: Tensor, up_bias: Tensor, head: Tensor, head_bias: Tensor, parts: int):
        """up: [C_in, parts * width]; head: [width, outputs]; biases float32 or as the weights."""
        weights = up, up_bias.float(), head, head_bias.float()
        self._weights = _packed(*weights) if on_kernels(up) else weights
        self._parts = parts

    def __call__(self, rows: Tensor, count: Tensor | None = None) -> Tensor:
        """[N, C_in] -> [N * parts, outputs or more]; columns behind the outputs hold nothing.

        count [1] int32: the number of rows that exist.
        """
        if not isinstance(self._weights, _Packed):
            return bev_heads_definition(rows, *self._weights, self._parts)
        up, up_bias, head, head_bias, outputs, tf32 = self._weights
        return torch.ops.millisecond.bev_heads(
            rows, up, up_bias, head, head_bias, self._parts, outputs, count, tf32
        )


def bev_heads_definition(
    rows: Tensor, up: Tensor, up_bias: Tensor, head: Tensor, head_bias: Tensor, parts: int
) -> Tensor:
    """`BevHeads` in plain torch: [N * parts, outputs]."""
    wide = (rows.float() @ up.float() + up_bias).relu_()
    enlarged = wide.to(rows.dtype).view(len(rows) * parts, -1)
    return (enlarged.float() @ head.float() + head_bias).to(rows.dtype)


class _Packed(NamedTuple):
    """Weights in the order in which the tensor cores read them."""

    up: Tensor  # flat, as `head`
    up_bias: Tensor  # [parts * width]
    head: Tensor
    head_bias: Tensor  # [outputs], filled up
    outputs: int
    tf32: bool  # float32 weights are in the order for tf32


def _packed(up: Tensor, up_bias: Tensor, head: Tensor, head_bias: Tensor) -> _Packed:
    outputs, tf32 = head.shape[1], tf32_allowed()
    room = (0, -outputs % PANEL)
    pack = torch.ops.millisecond.pack_weight
    return _Packed(
        pack(up[None].contiguous(), tf32),
        up_bias,
        pack(pad(head, room)[None].contiguous(), tf32),
        pad(head_bias, room),
        outputs,
        tf32,
    )


@fake("bev_heads")
def _fake_bev_heads(features, up, up_bias, head, head_bias, parts, *_) -> Tensor:
    return features.new_empty(len(features) * parts, head_bias.shape[0])


def bev_spread(
    values: Sequence[Tensor],
    rows: Sequence[Tensor],
    factors: Sequence[int],
    channels: Sequence[int],
) -> list[Tensor]:
    """The sum of several maps' values for every cell, in groups of channels: [B, Y, X, c] each.

    values: [N * factor * factor, C] of each map. A factor enlarges the cells of its map: the parts
    of a row are side by side, in the order (y, x). rows: [B, Y / factor, X / factor] int32.
    Channels beyond the groups are left out.
    """
    if not on_kernels(rows[0]):
        return bev_spread_definition(values, rows, factors, channels)
    return torch.ops.millisecond.bev_spread(values, rows, factors, channels)


def bev_spread_definition(
    values: Sequence[Tensor],
    rows: Sequence[Tensor],
    factors: Sequence[int],
    channels: Sequence[int],
) -> list[Tensor]:
    """`bev_spread` in plain torch."""
    total: Tensor | None = None
    for value, row, factor in zip(values, rows, factors, strict=True):
        part = value[_rows_of_parts(row.long(), factor)].float()
        total = part if total is None else total + part
    assert total is not None
    parts = total[..., : sum(channels)].to(values[0].dtype).split(list(channels), dim=-1)
    return [part.contiguous() for part in parts]


@fake("bev_spread")
def _fake_bev_spread(values, rows, factors, channels) -> list[Tensor]:
    batch_size, height, width = rows[0].shape
    shape = batch_size, height * factors[0], width * factors[0]
    return [values[0].new_empty(*shape, count) for count in channels]
