"""The workspace of the CUDA index: bitmaps of the active sites, see csrc/index/bitmap.cuh."""

from __future__ import annotations

import functools
import operator
from collections.abc import Sequence

import torch
from torch import Tensor

from ops.cuda.library import extension
from ops.cuda.tracing import constant_when_traced

MAX_WORDS = 1 << 28  # 1 GiB: a batch of 32 KITTI grids takes half of it


def fits(batch_size: int, shapes: Sequence[tuple[int, ...]]) -> bool:
    """Whether there is a bitmap of levels of these shapes, and a GPU's memory holds it."""
    return workspace_words(batch_size, shapes) <= MAX_WORDS


def workspace_words(batch_size: int, shapes: Sequence[tuple[int, ...]]) -> int:
    """Elements of the workspace of a batch with levels of these shapes; 2^63 - 1 for levels that no
    bitmap holds."""
    return _workspace_words(operator.index(batch_size), flat(shapes))  # one graph per batch size


@constant_when_traced
def _workspace_words(batch_size: int, shapes: tuple[int, ...]) -> int:
    return _kept_words(batch_size, shapes)


@functools.lru_cache(maxsize=256)
def _kept_words(batch_size: int, shapes: tuple[int, ...]) -> int:
    extension()
    return torch.ops.millisecond.index_workspace_words(batch_size, shapes)


def new_workspace(
    batch_size: int, shapes: Sequence[tuple[int, ...]], device: torch.device
) -> Tensor:
    """Zeros that the operators mark and leave as zeros again."""
    words = workspace_words(batch_size, shapes)
    return torch.zeros(words, dtype=torch.int32, device=device)


def flat(shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    """(z, y, x) of all levels one after another, as the operators take them."""
    return sum((three_axes(shape, 1) for shape in shapes), ())


def three_axes(numbers: Sequence[int], filling: int) -> tuple[int, ...]:
    """The kernels have three axes: fewer are filled up in front."""
    return (filling,) * (3 - len(numbers)) + tuple(numbers)
