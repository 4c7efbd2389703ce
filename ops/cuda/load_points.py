"""Points from pinned memory to the GPU, see csrc/transfer/load_points.cu."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ops.cuda.fakes import fake
from ops.cuda.library import extension
from ops.reference.load_points import FEW, SCALES


def load_points(
    points: Tensor, offsets: Tensor, workspace: Tensor, staged: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """See ops.load_points.load_points."""
    extension()
    for name, tensor in (("points", points), ("offsets", offsets), ("staged", staged)):
        if tensor is not None and tensor.is_cpu and not tensor.is_pinned():
            raise ValueError(f"{name}: not in pinned memory; call .pin_memory()")
    return torch.ops.millisecond.load_points(points, offsets, workspace, staged, SCALES, FEW)


def stage_points(clouds: Sequence[Tensor], points: Tensor, staged: Tensor) -> None:
    """See ops.load_points.stage_points."""
    extension()
    torch.ops.millisecond.stage_points(clouds, points, staged)


@fake("load_points")
def _fake_load_points(
    points, offsets, workspace, staged, scales, few
) -> tuple[Tensor, Tensor, Tensor]:
    return (
        workspace.new_empty(points.shape, dtype=torch.float32),
        workspace.new_empty(offsets.shape),
        workspace.new_empty(1),
    )


@fake("stage_points")
def _fake_stage_points(clouds, points, staged) -> None:
    return None
