"""Grids: the windows of convolutions over them, and their sites as linear keys.

A window has a kernel size, stride, padding and dilation for every axis. A key is
((b * Z + z) * Y + y) * X + x: keys are in the order of sorted rows.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from math import prod
from typing import Any, NamedTuple

import torch
from torch import Tensor

MOST = 2**31  # sizes and counts are below: coordinates are int32
MOST_CELLS = 2**60  # of a batch of grids: sums of their keys are int64
FARTHEST = 2**30  # sites that a window may reach over: the kernels compute in int32


class ConvGeometry(NamedTuple):
    """A convolution's window: input = output * stride - padding + offset * dilation, per axis."""

    kernel_size: tuple[int, ...]  # (z, y, x) or (y, x)
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]

    @classmethod
    def of(
        cls,
        kernel_size: int | Sequence[int],
        stride: int | Sequence[int] = 1,
        padding: int | Sequence[int] = 0,
        dilation: int | Sequence[int] = 1,
        dims: int = 3,
    ) -> ConvGeometry:
        """Spell out ints for every axis. ValueError where a number is out of its range."""
        window = cls(
            per_axis("kernel_size", kernel_size, dims, least=1),
            per_axis("stride", stride, dims, least=1),
            per_axis("padding", padding, dims, least=0),
            per_axis("dilation", dilation, dims, least=1),
        )
        _check_reach(window.kernel_size, window.dilation)
        for name, numbers in (("stride", window.stride), ("padding", window.padding)):
            if max(numbers) >= FARTHEST:
                raise ValueError(f"{name}: expected less than 2^30, got {numbers}")
        return window

    @classmethod
    def around(cls, kernel_size: tuple[int, ...], dilation: tuple[int, ...]) -> ConvGeometry:
        """The window of a submanifold convolution: around each site."""
        centre = tuple(k // 2 * d for k, d in zip(kernel_size, dilation, strict=True))
        return cls(kernel_size, (1,) * len(kernel_size), centre, dilation)

    def numbers(self) -> tuple[int, ...]:
        """12 numbers, as the operators take a window."""
        fillings = zip(self, (1, 1, 0, 1), strict=True)
        return sum((three_axes(axis, filling) for axis, filling in fillings), ())

    def output_shape(self, spatial_shape: Sequence[int]) -> tuple[int, ...]:
        """floor((in + 2 padding - dilation (kernel - 1) - 1) / stride) + 1 on each axis."""
        axes = zip(spatial_shape, *self, strict=True)
        # lists where a generator would do: the host's time counts here
        shape = tuple([(n + 2 * p - d * (k - 1) - 1) // s + 1 for n, k, s, p, d in axes])
        if min(shape) < 1 or max(shape) >= MOST:
            raise ValueError(
                f"kernel_size: {self.kernel_size} does not fit a grid of {tuple(spatial_shape)}"
            )
        return shape


def three_axes(numbers: Sequence[int], filling: int) -> tuple[int, ...]:
    """The kernels have three axes: fewer are filled up in front."""
    return (filling,) * (3 - len(numbers)) + tuple(numbers)


def per_axis(name: str, value: int | Sequence[int], dims: int, least: int) -> tuple[int, ...]:
    """`value` as one int for each of `dims` axes, none below `least`."""
    dims = whole("dims", dims, 1)
    try:
        numbers: tuple[Any, ...]
        numbers = tuple(value) if hasattr(value, "__iter__") else (value,) * dims
        if not _are_whole(numbers, least):  # of numpy, perhaps
            numbers = tuple(map(operator.index, numbers))
    except (TypeError, MemoryError):
        numbers = ()
    if len(numbers) != dims or not _are_whole(numbers, least):
        raise ValueError(f"{name}: expected {dims} whole numbers from {least} up, got {value}")
    return numbers


def whole(name: str, value: Any, least: int) -> int:
    """`value` as an int from `least` up, below 2^31; else ValueError."""
    try:
        number = operator.index(value)
    except TypeError:
        raise ValueError(f"{name}: expected a whole number, got {value!r}") from None
    if not least <= number < MOST:
        limit = f"at least {least}" if number < least else "less than 2^31"
        raise ValueError(f"{name}: expected {limit}, got {value}")
    return number


def grid_of(spatial_shape: Sequence[int]) -> tuple[int, ...]:
    """The grid's cells on each axis; ValueError unless all are from 1 up and below 2^31."""
    axes = len(spatial_shape) if hasattr(spatial_shape, "__len__") else 0
    shape = per_axis("spatial_shape", spatial_shape, axes or 1, least=1)
    whole("spatial_shape", max(shape), 1)
    return shape


def check_cells(batch_size: int, shapes: Sequence[Sequence[int]]) -> None:
    """ValueError unless int64 keys tell all cells of these grids apart."""
    batch_size = whole("batch_size", batch_size, 0)
    for shape in shapes:
        if batch_size * prod(shape) >= MOST_CELLS:
            raise ValueError(
                f"spatial_shape: {batch_size} grids of {tuple(shape)} have 2^60 cells or more; "
                "take a smaller one"
            )


def check_channels(
    kernel: Sequence[int], in_channels: int, out_channels: int, groups: int = 1
) -> None:
    """ValueError unless a weight of these sizes can be."""
    whole("groups", groups, 1)
    numbers = whole("in_channels", in_channels, 0) * whole("out_channels", out_channels, 0)
    if prod(kernel) * max(numbers, 1) >= MOST_CELLS:
        raise ValueError(
            f"kernel_size: {tuple(kernel)} with {in_channels} and {out_channels} channels has a "
            "weight of 2^60 numbers or more; take a smaller one"
        )
    if in_channels % groups or out_channels % groups:
        raise ValueError(
            f"groups: {groups} does not divide {in_channels} input and {out_channels} output "
            "channels; take a number that divides both"
        )


def check_tensor(
    name: str,
    tensor: Tensor,
    shape: Sequence[int | str],  # of each axis a number, or a word for any number
    kind: torch.dtype | str | None = None,  # "of floats": any floating type; None: any type
) -> None:
    """ValueError unless the tensor has this shape and type."""
    _check_is_tensor(name, tensor)
    axes = zip(shape, tensor.shape, strict=False)
    fits = len(shape) == tensor.ndim and all(isinstance(n, str) or n == m for n, m in axes)
    if kind is not None:
        floats = isinstance(kind, str) and tensor.is_floating_point()
        fits = fits and (floats or tensor.dtype == kind)
    if not fits:
        wanted = "" if kind is None else f" {kind}".replace("torch.", "")
        expected = f"[{', '.join(map(str, shape))}]{wanted}"
        raise ValueError(f"{name}: expected {expected}, got {list(tensor.shape)} {tensor.dtype}")


def _check_is_tensor(name: str, value: Any) -> None:
    if not isinstance(value, Tensor):
        got = type(value).__name__
        raise ValueError(f"{name}: expected a tensor, got {got}; torch.as_tensor makes one of it")


def check_offsets(offsets: Tensor) -> None:
    """ValueError unless they may be the rows [B + 1] where the points of each frame start."""
    if offsets.dtype != torch.int32 or offsets.ndim != 1 or len(offsets) < 2:
        raise ValueError(
            f"offsets: expected [B + 1] int32, got {list(offsets.shape)} {offsets.dtype}"
        )


def same_device(**tensors: Tensor | None) -> None:
    """ValueError unless all of them, by their names, are on one CPU or GPU."""
    first, of_first = None, ""
    for name, tensor in tensors.items():
        if tensor is None:
            continue
        _check_is_tensor(name, tensor)
        device = tensor.device
        if first is None:
            first, of_first = device, name
        if device != first:
            raise ValueError(f"{name}: on {device}, {of_first} on {first}")
        if not (tensor.is_cuda or tensor.is_cpu):
            raise ValueError(f"{name}: on {device}, which is neither a CPU nor a GPU")


def _are_whole(numbers: tuple[int, ...], least: int) -> bool:
    for number in numbers:  # noqa: SIM110  `all` takes the host four times as long
        if not isinstance(number, int) or number < least:
            return False
    return True


def submanifold_window(
    kernel_size: int | Sequence[int], dilation: int | Sequence[int], dims: int
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Kernel size and dilation for every axis; ValueError for an even kernel."""
    kernel = per_axis("kernel_size", kernel_size, dims, least=1)
    if not all(size % 2 for size in kernel):
        raise ValueError(f"kernel_size: a submanifold kernel has odd sizes only, got {kernel}")
    steps = per_axis("dilation", dilation, dims, least=1)
    _check_reach(kernel, steps)
    return kernel, steps


def _check_reach(kernel: tuple[int, ...], dilation: tuple[int, ...]) -> None:
    if max(k * d for k, d in zip(kernel, dilation, strict=True)) >= FARTHEST:
        raise ValueError(
            f"dilation: {dilation} with kernel_size {kernel} reaches over 2^30 sites or more; "
            "take a smaller one"
        )


def level_shapes(
    spatial_shape: tuple[int, ...], downs: Sequence[ConvGeometry]
) -> list[tuple[int, ...]]:
    """The grid, and those that the convolutions make of it one after another."""
    shapes = [spatial_shape]
    for down in downs:
        shapes.append(down.output_shape(shapes[-1]))
    return shapes


def linear_keys(coords: Tensor, shape: Sequence[int]) -> Tensor:
    """[N] int64 keys in the order of the rows; 32 KITTI grids need more than 31 bits."""
    key = coords[:, 0].long()
    for axis, size in enumerate(shape):
        key = key * size + coords[:, 1 + axis]
    return key


def coords_of_keys(keys: Tensor, shape: Sequence[int]) -> Tensor:
    """The inverse of `linear_keys`: [N, 1 + D] int32."""
    coords = torch.empty(len(keys), 1 + len(shape), dtype=torch.int32, device=keys.device)
    for axis in range(len(shape), 0, -1):
        above = torch.div(keys, shape[axis - 1], rounding_mode="floor")
        coords[:, axis] = keys - above * shape[axis - 1]
        keys = above
    coords[:, 0] = keys
    return coords


def check_axes(coords: Tensor, shape: Sequence[int]) -> None:
    """ValueError unless the coords are [N, 1 + D] int32 for the D axes of this grid."""
    if coords.dtype != torch.int32:
        raise ValueError(f"coords: expected int32, got {coords.dtype}")
    if coords.ndim != 2 or coords.shape[1] != 1 + len(shape):
        raise ValueError(
            f"coords: expected [N, {1 + len(shape)}] for a grid of {tuple(shape)}, "
            f"got {list(coords.shape)}"
        )


def check_coords(coords: Tensor, shape: Sequence[int], batch_size: int) -> None:
    """ValueError for the first row that is out of the grid, out of order or there twice."""
    check_axes(coords, shape)
    limit = torch.tensor([batch_size, *shape], dtype=coords.dtype, device=coords.device)
    outside = ((coords < 0) | (coords >= limit)).any(dim=1)
    if outside.any():
        row = int(outside.nonzero()[0])
        raise ValueError(
            f"coords: row {row} is {coords[row].tolist()}, "
            f"outside of {batch_size} grids of {tuple(shape)}"
        )
    key = linear_keys(coords, shape)
    wrong = key[1:] <= key[:-1]
    if wrong.any():
        row = int(wrong.nonzero()[0]) + 1
        fault = "a duplicate of" if key[row] == key[row - 1] else "not sorted after"
        raise ValueError(
            f"coords: row {row} {coords[row].tolist()} is {fault} "
            f"row {row - 1} {coords[row - 1].tolist()}"
        )
