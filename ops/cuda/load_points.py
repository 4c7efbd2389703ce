"""Points from pinned memory to the GPU, see csrc/transfer/load_points.cu."""

from __future__ import annotations

import torch
from torch import Tensor

from ops.cuda.fakes import fake
from ops.cuda.library import extension
from ops.reference.load_points import FEW, SCALES


def load_points(points: Tensor, offsets: Tensor, workspace: Tensor) -> tuple[Tensor, Tensor]:
    """See ops.load_points.load_points."""
    extension()
    for name, tensor in (("points", points), ("offsets", offsets)):
        if tensor.is_cpu and not tensor.is_pinned():
            raise ValueError(f"{name}: not in pinned memory; call .pin_memory()")
    return torch.ops.millisecond.load_points(points, offsets, workspace, SCALES, FEW)


@fake("load_points")
def _fake_load_points(points, offsets, workspace, scales, few) -> tuple[Tensor, Tensor]:
    return (
        workspace.new_empty(points.shape, dtype=torch.float32),
        workspace.new_empty(offsets.shape),
    )
