"""From the predictions of all anchors to boxes in plain torch: definition and CPU path."""

from __future__ import annotations

import torch
from torch import Tensor

from ops.box_coder import apply_direction, decode
from ops.boxes import nms
from ops.reference.bev_cells import bev_spread
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
    frames = []
    for logits, residuals, directions in zip(
        class_logits, box_residuals, direction_logits, strict=True
    ):
        best, index, labels = _candidates(logits, before_nms)
        codes = residuals[index].float().nan_to_num(nan=0, posinf=0, neginf=0)
        boxes = decode(codes, anchors[index])
        yaw = apply_direction(boxes[:, 6], directions[index].argmax(dim=-1))
        boxes = torch.cat((boxes[:, :6], yaw[:, None]), dim=1)
        count = (best >= score).sum(dtype=torch.int32).view(1)
        groups = labels if per_class else None
        kept = nms(boxes, best, iou_threshold, after_nms, count, groups)
        rows, empty = kept.indices.clamp(min=0), kept.indices < 0
        frames.append(
            (
                boxes[rows].masked_fill(empty[:, None], 0),
                best[rows].masked_fill(empty, 0),
                labels[rows].masked_fill(empty, 0),
                kept.count[0],
            )
        )
    boxes, scores, labels, count = (torch.stack(parts) for parts in zip(*frames, strict=True))
    return boxes, scores, labels, count


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
    of_cell = cells.channels[2] // 2
    logits, residuals, directions = (
        group.reshape(len(group), -1, group.shape[-1] // of_cell) for group in bev_spread(*cells)
    )
    limits = score, before_nms, iou_threshold, after_nms, per_class
    return select_boxes(logits, residuals, directions, anchors, *limits)


def _candidates(logits: Tensor, before_nms: int) -> tuple[Tensor, Tensor, Tensor]:
    """Scores, indices and labels of the best anchors; of equal scores the lower index first."""
    scores, labels = torch.sigmoid(logits.float()).nan_to_num(nan=0).max(dim=-1)
    # Positive floats have the order of their bits. The index in the low bits makes keys unique.
    count = len(scores)
    order = torch.arange(count, device=scores.device)
    keys = (scores.view(torch.int32).long() << 32) | (count - 1 - order)
    index = count - 1 - (keys.topk(before_nms).values & 0xFFFFFFFF)
    return scores[index], index, labels[index] + 1
