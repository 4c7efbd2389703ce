"""Matching of anchors and ground truth on the CUDA kernels, see csrc/anchors/match.cu."""

from __future__ import annotations

from math import prod

import torch
from torch import Tensor

from ops.cuda.fakes import fake
from ops.cuda.library import extension


def match_anchors(
    columns: Tensor, rows: Tensor, thresholds: Tensor, boxes: Tensor, labels: Tensor
) -> tuple[Tensor, Tensor]:
    """See ops.anchors.match_anchors."""
    extension()
    return torch.ops.millisecond.match_anchors(
        columns, rows, thresholds, boxes.contiguous(), labels.contiguous()
    )


@fake("match_anchors")
def _fake_match_anchors(columns, rows, thresholds, boxes, labels) -> tuple[Tensor, Tensor]:
    batch, anchors = boxes.shape[0], rows.shape[0] * columns.shape[0] * prod(columns.shape[1:3])
    match = boxes.new_empty(batch, anchors, dtype=torch.int32)
    return match, boxes.new_empty(batch, dtype=torch.int32)
