"""The windows of convolutions: kernel size, stride, padding and dilation for every axis."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

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

    def output_shape(self, spatial_shape: Sequence[int]) -> tuple[int, ...]:
        """floor((in + 2 padding - dilation (kernel - 1) - 1) / stride) + 1 on each axis."""
        axes = zip(spatial_shape, *self, strict=True)
        # lists where a generator would do: the host's time counts here
        shape = tuple([(n + 2 * p - d * (k - 1) - 1) // s + 1 for n, k, s, p, d in axes])
        if min(shape) < 1:
            raise ValueError(
                f"kernel_size: {self.kernel_size} does not fit a grid of {tuple(spatial_shape)}"
            )
        return shape


def per_axis(name: str, value: int | Sequence[int], dims: int, least: int) -> tuple[int, ...]:
    """`value` as one int for each of `dims` axes, none below `least`."""
    numbers = (value,) * dims if isinstance(value, int) else tuple(value)
    if len(numbers) != dims or not _are_whole(numbers, least):
        raise ValueError(f"{name}: expected {dims} whole numbers from {least} up, got {value}")
    return numbers


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
