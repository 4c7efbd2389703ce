"""Clouds of the host to a device, one behind another."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ops.cuda import upload as cuda
from ops.reference import upload as reference

ALIGNMENT = 4  # words


def upload(clouds: Sequence[Tensor], staged: Tensor, out: Tensor) -> None:
    """Writes points [P, C] float32 of all clouds one behind another to `out` [words] int32, from
    word `header_words(B)` on; before them, in [B + 1] words, where each cloud begins.

    staged: [words] int32 on the host, not to be written to before the device is done. With pinned
    memory nothing waits for a GPU. The clouds may change when the call returns.
    """
    for cloud in clouds:
        if cloud.dtype != torch.float32 or cloud.ndim != 2 or not cloud.is_cpu:
            shape = list(cloud.shape)
            raise ValueError(
                f"clouds: expected [P, C] float32 on the host, got {shape} {cloud.dtype} on "
                f"{cloud.device}"
            )
    words = header_words(len(clouds)) + sum(cloud.numel() for cloud in clouds)
    for name, memory in (("staged", staged), ("out", out)):
        if memory.dtype != torch.int32 or memory.ndim != 1 or memory.numel() < words:
            shape = list(memory.shape)
            raise ValueError(
                f"{name}: expected [{words} or more] int32, got {shape} {memory.dtype}"
            )
    backend = cuda if out.is_cuda else reference
    backend.upload(clouds, staged, out)


def header_words(batch_size: int) -> int:
    """Words before the points."""
    return -(-(batch_size + 1) // ALIGNMENT) * ALIGNMENT
