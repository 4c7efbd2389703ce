"""Kernel maps: the rulebooks of submanifold and strided sparse convolutions.

A kernel map says for every output row and kernel offset which input row is read. On CUDA it comes
from a bitmap of the active sites with rank and select (csrc/index/), on a CPU from a walk along the
sorted sites (csrc/cpu/), elsewhere from a binary search in their keys.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import ModuleType

import torch
from torch import Tensor

from ops.cpu import kernel_map as cpu
from ops.cuda import kernel_map as cuda
from ops.cuda.bitmap import fits, new_workspace
from ops.dispatch import on_cpu_kernels
from ops.geometry import ConvGeometry, level_shapes, per_axis, submanifold_window
from ops.reference import kernel_map as reference
from ops.rulebook import KernelMap, Level, Pyramid, Table

__all__ = [
    "ConvGeometry",
    "KernelMap",
    "Level",
    "Pyramid",
    "Table",
    "index_pyramid",
    "index_workspace",
    "strided_map",
    "submanifold_map",
]


def submanifold_map(
    coords: Tensor,  # [N, 1 + D] int32
    spatial_shape: Sequence[int],
    batch_size: int,
    kernel_size: int | Sequence[int] = 3,
    dilation: int | Sequence[int] = 1,
) -> KernelMap:
    """The map of a convolution whose outputs are its inputs' sites; odd kernels only.

    `coords` are (b, z, y, x) or (b, y, x), sorted by row and unique; else ValueError.
    """
    shape = _checked_grid(coords, spatial_shape)
    window = submanifold_window(kernel_size, dilation, len(shape))
    backend = _backend(coords, batch_size, [shape])
    return backend.submanifold_map(coords, shape, batch_size, *window)


def strided_map(
    coords: Tensor,  # [N, 1 + D] int32
    spatial_shape: Sequence[int],
    batch_size: int,
    geometry: ConvGeometry,
) -> tuple[Tensor, tuple[int, ...], KernelMap]:
    """Output coords [M, 1 + D] int32, their grid, and the map of a regular convolution.

    An output exists wherever its window touches an input. Rows of both are sorted.
    """
    shape = _checked_grid(coords, spatial_shape)
    geometry = ConvGeometry.of(*geometry, dims=len(shape))
    backend = _backend(coords, batch_size, level_shapes(shape, [geometry]))
    return backend.strided_map(coords, shape, batch_size, geometry)


def index_pyramid(
    coords: Tensor,  # [N, 1 + D] int32
    spatial_shape: Sequence[int],
    batch_size: int,
    downs: Sequence[ConvGeometry],
    submanifold_kernel: int | Sequence[int] = 3,
    last_submanifold: bool = False,
    capacities: Sequence[int] | None = None,
    count: Tensor | None = None,  # [1] int32
    transposed: bool = True,
    workspace: Tensor | None = None,
    clear_on: torch.cuda.Stream | None = None,
) -> Pyramid:
    """Every map of an encoder: level 0 is `coords`, level l + 1 the outputs of `downs[l]`.

    The last level gets a submanifold map only with `last_submanifold`. Rows of `coords` from
    `count` on are ignored. With `capacities` (rows, one number per level) every tensor has that
    many rows: each level is the exact one cut off there, and entries that point at rows cut off
    are -1. Beyond a level's count coords are -1 and tables undefined. `overflow` tells which levels
    were cut.

    Without `transposed` the maps between levels have no backward table: inference needs none.
    On CUDA, grids whose bitmap fits 1 GiB are indexed by it: with capacities nothing is read back
    to the host, else one copy of the counts. Others take the reference's search. A `workspace` of
    `index_workspace` saves zeroing one in every call; it is zero again when the call's kernels are
    done, so calls on one stream may share it. With capacities it becomes zero on the stream
    `clear_on`, where one is given, beside what follows on the current one: who uses the workspace
    again waits for that stream.
    """
    if capacities is not None and len(capacities) != len(downs) + 1:
        raise ValueError(
            f"capacities: expected {len(downs) + 1} numbers, one per level, got {len(capacities)}"
        )
    shape = _checked_grid(coords, spatial_shape)
    kernel, _ = submanifold_window(submanifold_kernel, 1, len(shape))
    downs = [ConvGeometry.of(*down, dims=len(shape)) for down in downs]
    backend = _backend(coords, batch_size, level_shapes(shape, downs))
    options = last_submanifold, capacities, count, transposed, workspace, clear_on
    return backend.index_pyramid(coords, shape, batch_size, downs, kernel, *options)


def pyramid_builder(
    spatial_shape: Sequence[int],
    batch_size: int,
    downs: Sequence[ConvGeometry],
    submanifold_kernel: int | Sequence[int],
    last_submanifold: bool,
    transposed: bool,
    device: torch.device,
) -> Callable[[Tensor], Pyramid]:
    """`index_pyramid` of coords on one device and nothing else: all but the coords is checked once,
    for the host's sake, and on CUDA one call does the rest."""
    shape = per_axis("spatial_shape", spatial_shape, len(spatial_shape), least=1)
    kernel, _ = submanifold_window(submanifold_kernel, 1, len(shape))
    downs = [ConvGeometry.of(*down, dims=len(shape)) for down in downs]
    grid = shape, batch_size, downs, kernel, last_submanifold
    if device.type == "cuda" and fits(batch_size, level_shapes(shape, downs)):
        return cuda.pyramid_builder(*grid, transposed)
    return lambda coords: index_pyramid(coords, *grid, transposed=transposed)


def index_workspace(
    spatial_shape: Sequence[int],
    batch_size: int,
    downs: Sequence[ConvGeometry],
    device: torch.device,
) -> Tensor:
    """Workspace for `index_pyramid` with these arguments, or for `voxelize` without `downs`."""
    downs = [ConvGeometry.of(*down, dims=len(spatial_shape)) for down in downs]
    return new_workspace(batch_size, level_shapes(tuple(spatial_shape), downs), device)


def _backend(coords: Tensor, batch_size: int, shapes: Sequence[tuple[int, ...]]) -> ModuleType:
    if coords.is_cuda and fits(batch_size, shapes):
        return cuda
    return cpu if on_cpu_kernels(coords) and cpu.fits(batch_size, shapes) else reference


def _checked_grid(coords: Tensor, spatial_shape: Sequence[int]) -> tuple[int, ...]:
    shape = per_axis("spatial_shape", spatial_shape, len(spatial_shape), least=1)
    if coords.dtype != torch.int32:
        raise ValueError(f"coords: expected int32, got {coords.dtype}")
    if coords.ndim != 2 or coords.shape[1] != 1 + len(shape):
        raise ValueError(
            f"coords: expected [N, {1 + len(shape)}] for a grid of {shape}, "
            f"got {list(coords.shape)}"
        )
    return shape
