"""From the predictions of all anchors to boxes on the CUDA kernels, see csrc/boxes/select.cu."""

from __future__ import annotations

import torch
from torch import Tensor

from ops.box_coder import DIRECTION_OFFSET, LARGEST_LOG_SIZE
from ops.cuda.fakes import fake
from ops.cuda.library import extension
from ops.rulebook import CellValues


def select_boxes(
    class_logits: Tensor,
    box_residuals: Tensor,
    direction_logits: Tensor,
    anchors: Tensor,
    score: float,
    before_nms: int,
    iou_threshold: float,
    after_nms: int,
    per_class: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """See ops.select_boxes.select_boxes: boxes, scores, labels, count."""
    extension()
    return torch.ops.millisecond.select_boxes(
        class_logits.contiguous(),
        box_residuals.contiguous(),
        direction_logits.contiguous(),
        anchors.contiguous(),
        score,
        before_nms,
        iou_threshold,
        after_nms,
        per_class,
        DIRECTION_OFFSET,
        LARGEST_LOG_SIZE,
    )


def select_boxes_of_cells(
    cells: CellValues,
    anchors: Tensor,
    score: float,
    before_nms: int,
    iou_threshold: float,
    after_nms: int,
    per_class: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """See ops.select_boxes.select_boxes_of_cells."""
    extension()
    return torch.ops.millisecond.select_boxes_of_cells(
        *cells,
        anchors.contiguous(),
        score,
        before_nms,
        iou_threshold,
        after_nms,
        per_class,
        DIRECTION_OFFSET,
        LARGEST_LOG_SIZE,
    )


@fake("select_boxes")
def _fake_select_boxes(
    class_logits, box_residuals, direction_logits, anchors, score, before_nms, iou_threshold,
    after_nms, per_class, direction_offset, largest_log_size,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    return _empty(len(class_logits), after_nms, anchors)


@fake("select_boxes_of_cells")
def _fake_select_boxes_of_cells(
    values, rows, factors, channels, anchors, score, before_nms, iou_threshold,
    after_nms, per_class, direction_offset, largest_log_size,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    return _empty(len(rows[0]), after_nms, anchors)


def _empty(batch: int, after_nms: int, anchors: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return (
        anchors.new_empty(batch, after_nms, 7),
        anchors.new_empty(batch, after_nms),
        anchors.new_empty(batch, after_nms, dtype=torch.int64),
        anchors.new_empty(batch, dtype=torch.int32),
    )
