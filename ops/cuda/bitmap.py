"""The workspace of the CUDA index: bitmaps of the active sites, see csrc/index/bitmap.cuh."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import torch
from torch import Tensor

CELL_BITS, TILE_WORDS, HEADER_WORDS = 96, 256, 16  # as in csrc/launchers.h, bitmap.cuh
MAX_LEVELS = 8
MAX_OFFSETS = 32  # bits of a mask
MAX_WORDS = 1 << 28  # 1 GiB: a batch of 32 KITTI grids takes half of it


def fits(
    batch_size: int, shapes: Sequence[tuple[int, ...]], kernels: Sequence[tuple[int, ...]] = ()
) -> bool:
    """Whether masks can hold the kernels and a GPU's memory the bitmap of all levels."""
    return (
        len(shapes) <= MAX_LEVELS
        and all(prod(kernel) <= MAX_OFFSETS for kernel in kernels)
        and workspace_words(batch_size, shapes) <= MAX_WORDS
    )


def workspace_words(batch_size: int, shapes: Sequence[tuple[int, ...]]) -> int:
    """Elements of the workspace of a batch with levels of these shapes."""
    words = HEADER_WORDS + _padded(batch_size)
    for shape in shapes:
        cells = batch_size * prod(shape[:-1]) * -(-shape[-1] // CELL_BITS)
        summary = -(-cells // 32)
        words += 4 * cells + _padded(summary) + _padded(-(-summary // TILE_WORDS))
    return words


def new_workspace(
    batch_size: int, shapes: Sequence[tuple[int, ...]], device: torch.device
) -> Tensor:
    """Zeros that the operators mark and leave as zeros again."""
    words = workspace_words(batch_size, shapes)
    return torch.zeros(words, dtype=torch.int32, device=device)


def _padded(words: int) -> int:
    return -(-words // 4) * 4
