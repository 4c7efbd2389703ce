"""The convolutions of two networks on the sites of scans, each with the number of its uses."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from torch import Tensor

from millisecond.ops.kernel_map import ConvGeometry, Level, index_pyramid
from millisecond.ops.rulebook import KernelMap

AROUND = ConvGeometry((3, 3, 3), (1, 1, 1), (1, 1, 1), (1, 1, 1))
HALF = ConvGeometry((2, 2, 2), (2, 2, 2), (0, 0, 0), (1, 1, 1))
Convolution = tuple[int, int, int | str]  # see `encoder_layers`


class Layer(NamedTuple):
    """One convolution of a network on the sites of a scan."""

    kind: str  # submanifold, strided, inverse
    level: int  # of the inputs
    c_in: int
    c_out: int
    times: int  # how often the network has it
    inputs: Level
    outputs: Level
    geometry: ConvGeometry
    kernel_map: KernelMap

    @property
    def name(self) -> str:
        return f"{self.kind} {self.level}: {self.c_in}-{self.c_out}"

    @property
    def place(self) -> int | str:
        """As in `encoder_layers`."""
        return f"d{self.level + 1}" if self.kind == "strided" else self.level


def encoder_layers(
    channels: Sequence[int] = (16, 32, 64, 64), out_channels: int = 128
) -> tuple[Convolution, ...]:
    """(channels in, channels out, map) of each convolution of SECOND's encoder, by default as in
    second_kitti.yaml.

    A number is a submanifold level, "d1" the step down to level 1.
    """
    layers: list[Convolution] = [(4, channels[0], 0), (channels[0], channels[0], 0)]
    for level, (narrow, wide) in enumerate(pairwise(channels), start=1):
        layers += [(narrow, wide, f"d{level}"), (wide, wide, level), (wide, wide, level)]
    return (*layers, (channels[-1], out_channels, f"d{len(channels)}"))


def second_layers(
    levels: Sequence[Level],
    downs: Sequence[ConvGeometry],
    channels: Sequence[int] = (16, 32, 64, 64),
    out_channels: int = 128,
) -> list[Layer]:
    """SECOND's encoder, by default as in second_kitti.yaml; downs lead from level to level."""
    found: dict[tuple, Layer] = {}
    for c_in, c_out, place in encoder_layers(channels, out_channels):
        if isinstance(place, int):
            layer = same_sites(levels[place], place, c_in, c_out)
        else:
            above = int(place[1]) - 1
            layer = _down(levels[above], levels[above + 1], above, c_in, c_out, downs[above])
        _count(found, layer)
    return list(found.values())


def unet_layers(coords: Tensor, shape: Sequence[int], batch_size: int) -> list[Layer]:
    """The convolutions of MinkUNet18 (Choy, Gwak and Savarese 2019), kernels of 3 in place of the
    stem's 5: four levels down by 2 x 2 x 2, residual blocks of two convolutions, inverse
    convolutions up, the skipped features beside them."""
    levels = index_pyramid(coords, shape, batch_size, [HALF] * 4, last_submanifold=True).levels
    found: dict[tuple, Layer] = {}

    def blocks(level: int, c_in: int, c_out: int) -> None:
        for channels in (c_in, c_out, c_out, c_out):
            _count(found, same_sites(levels[level], level, channels, c_out))

    _count(found, same_sites(levels[0], 0, 4, 32))
    width = 32
    for level, wide in enumerate((32, 64, 128, 256)):
        _count(found, _down(levels[level], levels[level + 1], level, width, width, HALF))
        blocks(level + 1, width, wide)
        width = wide
    for level, wide, skipped in ((3, 256, 128), (2, 128, 64), (1, 96, 32), (0, 96, 32)):
        _count(found, _up(levels[level + 1], levels[level], level + 1, width, wide))
        blocks(level, wide + skipped, wide)
        width = wide
    return list(found.values())


def same_sites(level: Level, number: int, c_in: int, c_out: int) -> Layer:
    """A submanifold convolution of 3 x 3 x 3."""
    assert level.submanifold is not None
    place = level, level, AROUND, level.submanifold
    return Layer("submanifold", number, c_in, c_out, 1, *place)


def _down(
    above: Level, below: Level, number: int, c_in: int, c_out: int, geometry: ConvGeometry
) -> Layer:
    assert below.down is not None
    return Layer("strided", number, c_in, c_out, 1, above, below, geometry, below.down)


def _up(below: Level, above: Level, number: int, c_in: int, c_out: int) -> Layer:
    assert below.down is not None
    place = below, above, HALF, below.down.reversed()
    return Layer("inverse", number, c_in, c_out, 1, *place)


def _count(found: dict[tuple, Layer], layer: Layer) -> None:
    times = found[layer[:4]].times + 1 if layer[:4] in found else 1
    found[layer[:4]] = layer._replace(times=times)
