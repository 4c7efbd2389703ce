"""Overlap of rotated boxes and non-maximum suppression on the CUDA kernels, see csrc/boxes/."""

from __future__ import annotations

import torch
from torch import Tensor

from ops.cuda.fakes import fake
from ops.cuda.library import extension


def overlap_bev(a: Tensor, b: Tensor) -> Tensor:
    """See ops.boxes.overlap_bev."""
    return _overlap(a, b, "area")


def iou_bev(a: Tensor, b: Tensor) -> Tensor:
    """See ops.boxes.iou_bev."""
    return _overlap(a, b, "iou_bev")


def iou_3d(a: Tensor, b: Tensor) -> Tensor:
    """See ops.boxes.iou_3d."""
    return _overlap(a, b, "iou_3d")


def paired_overlap_bev(a: Tensor, b: Tensor) -> Tensor:
    """See ops.boxes.paired_overlap_bev."""
    extension()
    return torch.ops.millisecond.paired_overlap(a.contiguous(), b.contiguous())


def nms(
    boxes: Tensor,
    scores: Tensor,
    iou_threshold: float,
    max_output: int,
    count: Tensor | None,
    labels: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """See ops.boxes.nms."""
    extension()
    if count is not None:
        row = torch.arange(scores.shape[0], device=scores.device)
        scores = scores.masked_fill(row >= count, -torch.inf)
    order = torch.sort(scores, descending=True, stable=True).indices
    labels = None if labels is None else labels.contiguous()
    return torch.ops.millisecond.nms(
        boxes.contiguous(), order, iou_threshold, max_output, count, labels
    )


def _overlap(a: Tensor, b: Tensor, kind: str) -> Tensor:
    extension()
    return torch.ops.millisecond.overlap(a.contiguous(), b.contiguous(), kind)


@fake("overlap")
def _fake_overlap(a, b, kind) -> Tensor:
    return a.new_empty(a.shape[0], b.shape[0])


@fake("paired_overlap")
def _fake_paired_overlap(a, b) -> Tensor:
    return a.new_empty(a.shape[0])


@fake("nms")
def _fake_nms(boxes, order, iou_threshold, max_output, count, labels=None) -> tuple[Tensor, Tensor]:
    return order.new_empty(max_output), order.new_empty(1, dtype=torch.int32)
