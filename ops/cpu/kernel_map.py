"""Kernel maps on a CPU, by walking along the sorted sites (csrc/cpu/index.cpp)."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from math import prod

import torch
from torch import Tensor

from millisecond.ops.cpu.library import loaded, threads
from millisecond.ops.geometry import ConvGeometry, check_coords
from millisecond.ops.rulebook import KernelMap, Table

MOST_LINES = 1 << 24  # of sites along x: 64 MiB of their starts
LONGEST_LINE = 1 << 16  # cells


class _Grid(ctypes.Structure):
    _fields_ = [(name, ctypes.c_int32) for name in ("batch", "z", "y", "x")]


class _Window(ctypes.Structure):
    _fields_ = [(name, ctypes.c_int32 * 3) for name in ("size", "stride", "padding", "dilation")]


def fits(batch_size: int, shapes: Sequence[tuple[int, ...]]) -> bool:
    """Whether the grids are small enough for a list of all lines."""
    lines = max(batch_size * prod(shape[:-1]) for shape in shapes)
    longest = max(shape[-1] for shape in shapes)
    return len(shapes[0]) <= 3 and lines <= MOST_LINES and longest <= LONGEST_LINE


class WalkedSites:
    """The sites of a level and where each of their lines starts."""

    def __init__(self, coords: Tensor, shape: tuple[int, ...], batch_size: int):
        self.coords, self.shape, self.batch_size = coords, shape, batch_size
        self._spare = 3 - len(shape)  # axes that the kernels have and these sites have not
        if self._spare:
            none = coords.new_zeros(len(coords), self._spare)
            coords = torch.cat((coords[:, :1], none, coords[:, 1:]), dim=1)
        self._four = coords.contiguous()
        self._starts = torch.empty(self._lines(shape) + 1, dtype=torch.int32)
        line_starts = loaded().line_starts
        line_starts.restype = ctypes.c_int64
        rows = ctypes.c_int64(len(coords))
        wrong = line_starts(_pointer(self._four), rows, self._grid(shape), _pointer(self._starts))
        if wrong >= 0:
            check_coords(self.coords, shape, batch_size)

    def submanifold_map(self, kernel_size: tuple[int, ...], dilation: tuple[int, ...]) -> KernelMap:
        window = self._window(kernel_size, None, None, dilation)
        neighbours = self.coords.new_empty(prod(kernel_size), len(self.coords))
        loaded().submanifold_neighbours(
            _pointer(self._four),
            _pointer(self._starts),
            ctypes.c_int64(len(self.coords)),
            self._grid(self.shape),
            window,
            _pointer(neighbours),
            threads(),
        )
        table = Table(neighbours)
        return KernelMap(table, table.reversed())

    def strided_map(
        self, geometry: ConvGeometry, transposed: bool
    ) -> tuple[WalkedSites, KernelMap]:
        """The sites of the outputs, and the map to them."""
        shape = geometry.output_shape(self.shape)
        window, rows = self._window(*geometry), len(self.coords)
        read = _pointer(self._four), _pointer(self._starts)
        grids = self._grid(self.shape), self._grid(shape)
        counts = torch.empty(self._lines(shape), dtype=torch.int32)
        loaded().count_outputs(*read, *grids, window, _pointer(counts), threads())
        starts = torch.nn.functional.pad(counts.cumsum(0, dtype=torch.int32), (1, 0))
        length, offsets = int(starts[-1]), prod(geometry.kernel_size)
        coords = self.coords.new_empty(length, 4)
        forward = self.coords.new_empty(offsets, length)
        backward = self.coords.new_full((offsets, rows), -1) if transposed else None
        loaded().strided_neighbours(
            *read,
            ctypes.c_int64(rows),
            *grids,
            window,
            _pointer(starts),
            ctypes.c_int64(length),
            _pointer(coords),
            _pointer(forward),
            None if backward is None else _pointer(backward),
            threads(),
        )
        if self._spare:
            coords = torch.cat((coords[:, :1], coords[:, 1 + self._spare :]), dim=1)
        table = None if backward is None else Table(backward)
        return WalkedSites(coords, shape, self.batch_size), KernelMap(Table(forward), table)

    def _lines(self, shape: tuple[int, ...]) -> int:
        return self.batch_size * prod(shape[:-1])

    def _grid(self, shape: tuple[int, ...]) -> _Grid:
        return _Grid(self.batch_size, *(1,) * self._spare, *shape)

    def _window(self, size, stride, padding, dilation) -> _Window:
        axes = (size, 1), (stride, 1), (padding, 0), (dilation, 1)
        return _Window(
            *(
                (*(none,) * self._spare, *(given or (none,) * len(self.shape)))
                for given, none in axes
            )
        )


def _pointer(tensor: Tensor) -> ctypes.c_void_p:
    return ctypes.c_void_p(tensor.data_ptr())
