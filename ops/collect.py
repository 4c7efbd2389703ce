"""Small results of a device into memory of the host, all in one copy."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ops.cuda import collect as cuda
from ops.reference import collect as reference


@torch.no_grad()
def collect(parts: Sequence[Tensor], out: Tensor) -> None:
    """Writes the bits of all parts (up to 16 of any type of 4 or 8 bytes) one behind another to
    `out` [words] int32 on the host.

    On a GPU `out` lies in pinned memory, and nothing waits: the bits are there when what was queued
    is done. Calls may be captured in a CUDA graph.
    """
    if out.dtype != torch.int32 or out.ndim != 1 or not out.is_cpu:
        raise ValueError(
            f"out: expected [words] int32 on the host, got {list(out.shape)} {out.dtype} on "
            f"{out.device}"
        )
    words = sum(part.numel() * part.element_size() for part in parts) // 4
    if words != len(out):
        raise ValueError(f"out: has {len(out)} words, the parts have {words}")
    backend = cuda if any(part.is_cuda for part in parts) else reference
    backend.collect(parts, out)
