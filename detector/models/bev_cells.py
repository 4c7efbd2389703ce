"""Which cells of a bird's-eye-view map are computed when most of the map is empty.

A cell whose whole receptive field is empty has the value that it has in an empty map. So one more
frame is computed, an empty one, and every such cell takes its value from there. Zero padding makes
the values of an empty map differ along its border, and no value depends on more than the distances
to the four edges: of the cells of one kind only the first is computed. Nothing is approximated.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache, reduce
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from ops.rulebook import CellPlan, KernelMap, Level, Table


class Window(NamedTuple):
    """Of a square convolution."""

    size: int
    stride: int
    padding: int


class Alike(NamedTuple):
    """Along y and x: the first position that has the value of each in an empty map, -1 for zero."""

    y: tuple[int, ...]
    x: tuple[int, ...]


class Cells(NamedTuple):
    """The cells of B maps, and of an empty one as frame B, that are computed: a row for each."""

    occupied: Tensor  # [B, Y, X] bool: not as in an empty map
    alike: Alike
    where: Tensor  # [N] int64: position of each row in [B + 1, Y, X], rising
    row: Tensor  # [B + 1, Z, Y, X] int32: the row with the value of each cell, -1 for zero

    @classmethod
    def of_sites(cls, level: Level, batch_size: int) -> Cells:
        """Of active sites (b, z, y, x), which are the rows; elsewhere is zero."""
        z, y, x = level.spatial_shape
        row = torch.full((batch_size + 1, z, y, x), -1, dtype=torch.int32)
        coords = level.coords.long()
        where = ((coords[:, 0] * z + coords[:, 1]) * y + coords[:, 2]) * x + coords[:, 3]
        row.view(-1)[where] = torch.arange(len(where), dtype=torch.int32)
        occupied = (row[:-1] >= 0).any(dim=1)
        return cls(occupied, Alike((-1,) * y, (-1,) * x), where, row)

    @classmethod
    def numbered(cls, occupied: Tensor, alike: Alike) -> Cells:
        """With a row for each occupied cell and for each kind of cell of the empty map."""
        batch_size, height, width = occupied.shape
        y, x = torch.tensor(alike.y), torch.tensor(alike.x)
        first_y, first_x = y == torch.arange(height), x == torch.arange(width)
        computed = torch.cat((occupied, (first_y[:, None] & first_x)[None]))
        where = computed.view(-1).nonzero().squeeze(1)
        row = torch.empty(batch_size + 1, height, width, dtype=torch.int32)
        row.view(-1)[where] = torch.arange(len(where), dtype=torch.int32)
        row[-1] = row[-1].index_select(0, y).index_select(1, x)
        row[:-1] = torch.where(occupied, row[:-1], row[-1])
        return cls(occupied, alike, where, row[:, None])

    def convolved(self, window: Window) -> tuple[Cells, KernelMap]:
        """The cells of a convolution's output, and the rows that it reads.

        Offsets of the map are in the order (y, x, z): [size * size * Z, N].
        """
        alike = Alike(*(_alike(line, *window) for line in self.alike))
        cells = Cells.numbered(reached(self.occupied, window), alike)
        height, width = cells.occupied.shape[1:]
        source = pad(self.row, (window.padding,) * 4, value=-1)
        depth, source_height, source_width = source.shape[1:]
        frame, rest = _divide(cells.where, height * width)
        y, x = _divide(rest, width)
        start = frame * depth * source_height + y * window.stride
        start = start * source_width + x * window.stride
        along = torch.arange(window.size)
        offset = (along[:, None] * source_width + along)[..., None]
        offset = (offset + torch.arange(depth) * source_height * source_width).view(-1, 1)
        rows = source.view(-1).take(start + offset)
        return cells, KernelMap(Table(rows), None)


def reached(occupied: Tensor, window: Window) -> Tensor:
    """The outputs whose window touches an occupied cell: [B, Y, X] -> [B, Y', X'] bool."""
    size, stride, padding = window
    occupied = pad(occupied, (padding,) * 4)
    for axis in (1, 2):
        last = occupied.shape[axis] - size + 1
        parts = (occupied.narrow(axis, o, last) for o in range(size))
        touched = reduce(torch.logical_or, parts)
        occupied = touched[:, ::stride] if axis == 1 else touched[..., ::stride]
    return occupied


def upsampled(maps: Sequence[tuple[Cells, int]]) -> tuple[Cells, list[KernelMap]]:
    """The cells of several maps that are enlarged, each by a factor, to the same size and put one
    behind the other; and the rows that they read of each map.

    An enlarged cell has factor * factor rows side by side, those of its parts in the order (y, x).
    """
    occupied = torch.stack([_enlarged(cells.occupied, factor) for cells, factor in maps]).any(dim=0)
    alike = Alike(
        _alike_all(tuple((cells.alike.y, factor) for cells, factor in maps)),
        _alike_all(tuple((cells.alike.x, factor) for cells, factor in maps)),
    )
    whole, kernel_maps = Cells.numbered(occupied, alike), []
    for cells, factor in maps:
        row = _enlarged(cells.row[:, 0], factor)
        y, x = (torch.arange(size, dtype=torch.int32) % factor for size in row.shape[1:])
        part = row * factor**2 + (y[:, None] * factor + x)
        kernel_maps.append(KernelMap(Table(part.view(-1).take(whole.where)[None]), None))
    return whole, kernel_maps


def planned(
    blocks: Sequence[Sequence[Window]],
    shape: Sequence[int],
    device: torch.device,
    channels: Sequence[int] = (),
) -> CellPlan:
    """The plan of blocks of convolutions over maps of (Y, X) cells, which are zero at first. Kept
    are the rows of each block's result. channels: of each result, where they are computed."""
    height, width = shape
    alike = Alike((-1,) * height, (-1,) * width)
    shapes, kinds, lines, kept = [], [], [], []
    for block in blocks:
        for window in block:
            alike = Alike(*(_alike(line, *window) for line in alike))
            shapes.append((len(alike.y), len(alike.x)))
            along_y, along_x = (sorted(set(line)) for line in alike)
            kinds.append(len(along_y) * len(along_x))
            lines += _numbered(alike.y, len(along_x)) + _numbered(alike.x, 1)
        kept.append(len(shapes) - 1)
    windows = tuple(tuple(window) for block in blocks for window in block)
    numbers = torch.tensor(lines, dtype=torch.int32).T.contiguous().to(device)
    return CellPlan(windows, tuple(shapes), tuple(channels), tuple(kinds), numbers, tuple(kept))


def _numbered(line: tuple[int, ...], step: int) -> list[tuple[int, bool, int]]:
    """Of each position of a line: the first one that is as it, whether that is itself, and the
    number of its kind, times `step`."""
    number = {first: step * n for n, first in enumerate(sorted(set(line)))}
    return [(first, first == position, number[first]) for position, first in enumerate(line)]


def _enlarged(maps: Tensor, factor: int) -> Tensor:
    """[B, Y, X] -> [B, Y * factor, X * factor]."""
    parts = maps[:, :, None, :, None].expand(-1, -1, factor, -1, factor)
    return parts.flatten(3).flatten(1, 2)


def _divide(numbers: Tensor, divisor: int) -> tuple[Tensor, Tensor]:
    quotient = torch.div(numbers, divisor, rounding_mode="floor")
    return quotient, numbers - quotient * divisor


@lru_cache(maxsize=256)
def _alike(line: tuple[int, ...], size: int, stride: int, padding: int) -> tuple[int, ...]:
    """After a convolution: positions are alike where all that they read is, the padding too."""
    outside = (-1,) * padding
    padded = outside + line + outside
    starts = range(0, len(padded) - size + 1, stride)
    return _first([padded[start : start + size] for start in starts])


@lru_cache(maxsize=256)
def _alike_all(lines: tuple[tuple[tuple[int, ...], int], ...]) -> tuple[int, ...]:
    """Of enlarged lines (with their factors) one behind the other."""
    enlarged = ([(n, part) for n in line for part in range(factor)] for line, factor in lines)
    return _first(list(zip(*enlarged, strict=True)))


def _first(values: Sequence[tuple]) -> tuple[int, ...]:
    """Of each value the first position that has it."""
    first: dict[tuple, int] = {}
    return tuple(first.setdefault(value, position) for position, value in enumerate(values))
