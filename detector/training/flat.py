"""Many tensors in one piece of memory, so that one call updates or sends all of them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

ALIGNMENT = 64  # elements: 256 bytes, where torch would let a tensor of its own begin


def flat_size(tensors: Sequence[Tensor]) -> int:
    """Elements of a flat tensor with a part for each of the tensors."""
    return sum(_room(tensor) for tensor in tensors)


def parts_of(flat: Tensor, tensors: Sequence[Tensor]) -> list[Tensor]:
    """The parts of a flat tensor, each with the shape and strides of its tensor, which are dense in
    any order of axes."""
    parts, begin = [], flat.storage_offset()
    for tensor in tensors:
        parts.append(flat.as_strided(tensor.shape, tensor.stride(), begin))
        begin += _room(tensor)
    return parts


@torch.no_grad()
def move_into(flat: Tensor, tensors: Sequence[Tensor]) -> None:
    """Copies the tensors into the flat one, which from then on is their memory."""
    for tensor, part in zip(tensors, parts_of(flat, tensors), strict=True):
        part.copy_(tensor)
        tensor.data = part


def flatten(tensors: Sequence[Tensor]) -> Tensor:
    """The flat tensor [N] float32 that the tensors become parts of, zero between them."""
    flat = torch.zeros(flat_size(tensors), device=tensors[0].device)
    move_into(flat, tensors)
    return flat


def _room(tensor: Tensor) -> int:
    return -(-tensor.numel() // ALIGNMENT) * ALIGNMENT
