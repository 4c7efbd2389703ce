"""Small results into pinned memory, see csrc/transfer/collect.cu."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ops.cuda.fakes import fake
from ops.cuda.library import extension


def collect(parts: Sequence[Tensor], out: Tensor) -> None:
    """See ops.collect.collect."""
    extension()
    if not out.is_pinned():
        raise ValueError("out: not in pinned memory; call .pin_memory()")
    torch.ops.millisecond.collect([part.contiguous() for part in parts], out)


@fake("collect")
def _fake_collect(parts, out) -> None:
    return None
