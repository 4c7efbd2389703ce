"""Which maps a network asks for, so that the next input gets all of them in one call.

Programs ask for one map at a time, and each strided one waits for the device. The maps depend on
the sites and the windows alone, so those of the last input tell what to build for this one. What
was not foreseen is built when it is asked for.
"""

from __future__ import annotations

from typing import NamedTuple

from ops.geometry import ConvGeometry


class Foreseen(NamedTuple):
    """Arguments of `ops.index_pyramid`."""

    downs: tuple[ConvGeometry, ...]
    submanifold_kernel: tuple[int, ...]
    last_submanifold: bool
    transposed: bool  # an inverse convolution has asked for the way back

    def below(self) -> Foreseen:
        """What is left of it for the outputs of its first strided layer."""
        return self._replace(downs=self.downs[1:])


class Record:
    """What was asked for on the sites of one input: along its first chain of strided layers."""

    def __init__(self) -> None:
        self.downs: list[ConvGeometry] = []
        self.kernels: list[list[tuple[int, ...]]] = []  # submanifold, of every level
        self.inverted = False
        self.is_sorted = True  # the rows of the input

    def saw_submanifold(
        self, level: int, kernel: tuple[int, ...], dilation: tuple[int, ...]
    ) -> None:
        if max(dilation) > 1:
            return
        while len(self.kernels) <= level:
            self.kernels.append([])
        if kernel not in self.kernels[level]:
            self.kernels[level].append(kernel)

    def saw_strided(self, level: int, geometry: ConvGeometry) -> bool:
        """Whether it goes on with the chain."""
        if len(self.downs) == level:
            self.downs.append(geometry)
        return self.downs[level] == geometry

    def foreseen(self) -> Foreseen | None:
        """What one call can build: levels with submanifold maps of one kernel."""
        kernels = self.kernels[0] if self.kernels else []
        if not kernels:
            return None
        kernel = max(kernels, key=self._depth)
        depth = self._depth(kernel)
        downs = tuple(self.downs[:depth])
        return Foreseen(downs, kernel, self._has(depth, kernel), self.inverted)

    def _depth(self, kernel: tuple[int, ...]) -> int:
        depth = 0
        while depth < len(self.downs) and self._has(depth, kernel):
            depth += 1
        return depth

    def _has(self, level: int, kernel: tuple[int, ...]) -> bool:
        return level < len(self.kernels) and kernel in self.kernels[level]
