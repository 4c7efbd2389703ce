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
    `out` [words + 1] int32 on the host. When all are there the last word becomes 1.

    On a GPU `out` lies in pinned memory, and nothing waits. Calls may be captured in a CUDA graph.
    """
    if out.dtype != torch.int32 or out.ndim != 1 or not out.is_cpu:
        raise ValueError(
            f"out: expected [words + 1] int32 on the host, got {list(out.shape)} {out.dtype} on "
            f"{out.device}"
        )
    words = sum(part.numel() * part.element_size() for part in parts) // 4
    if words + 1 != len(out):
        raise ValueError(f"out: has {len(out)} words, the parts have {words} and need one more")
    backend = cuda if any(part.is_cuda for part in parts) else reference
    backend.collect(parts, out)


def wait_for_parts(out: Tensor) -> bool:
    """Whether the last word of `out`, which was 0, becomes another within 10 ms: what `collect`
    writes is there. That is known some microseconds sooner than that the stream's work has ended.
    Where it is not, to wait for the stream is as good, and it tells of errors.
    """
    backend = cuda if out.is_pinned() else reference
    return backend.wait_for_parts(out)
