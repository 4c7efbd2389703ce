"""Matching of anchors and ground truth, and the targets of anchors."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ops.box_coder import encode, limit_period

MATCH_BACKGROUND, MATCH_IGNORED = -1, -2
LABEL_BACKGROUND, LABEL_IGNORED = 0, -1


def match_anchors(
    columns: Tensor, rows: Tensor, thresholds: Tensor, boxes: Tensor, labels: Tensor
) -> tuple[Tensor, Tensor]:
    """See ops.anchors.match_anchors."""
    parts = [
        _match(columns[:, k], rows[:, k], boxes, labels == k + 1, *limits)
        for k, limits in enumerate(thresholds.tolist())
    ]
    match = torch.stack(parts, dim=3).flatten(1)
    return match, (match >= 0).sum(1, dtype=torch.int32)


def anchor_targets(anchors: Tensor, boxes: Tensor, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """See ops.anchors.anchor_targets: labels, residuals, yaw."""
    _, _, classes, rotations, _ = anchors.shape
    anchors = anchors.reshape(1, -1, 7)
    number = torch.arange(anchors.shape[1], device=boxes.device)
    own_label = number // rotations % classes + 1
    positive = rows >= 0
    others = torch.where(rows == MATCH_BACKGROUND, LABEL_BACKGROUND, LABEL_IGNORED)
    labels = torch.where(positive, own_label, others)
    box = rows.clamp(min=0).long()
    matched = boxes.gather(1, box[..., None].expand(-1, -1, 7))
    matched = torch.where(positive[..., None], matched, anchors)
    yaw = torch.where(positive, matched[..., 6], 0.0)
    return labels, encode(matched, anchors), yaw


def _match(
    columns: Tensor,  # [X, R, 2]
    rows: Tensor,  # [Y, R, 2]
    boxes: Tensor,
    valid: Tensor,
    matched: float,
    unmatched: float,
) -> Tensor:  # [B, Y, X, R] int32
    """The match of the anchors of one class with the boxes that are valid [B, M]."""
    overlap = _aligned_iou(columns, rows, boxes, valid)
    best, row = overlap.max(dim=1)
    of_box = overlap.amax(dim=(2, 3, 4), keepdim=True)
    of_box = torch.where(of_box > 0, of_box, torch.inf)  # no anchor is the best of a box it misses
    positive = (best >= matched) | (overlap == of_box).any(dim=1)
    others = torch.where(best < unmatched, MATCH_BACKGROUND, MATCH_IGNORED)
    return torch.where(positive, row, others).int()


def _aligned_iou(columns: Tensor, rows: Tensor, boxes: Tensor, valid: Tensor) -> Tensor:
    """IoU [B, M, Y, X, R] of the nearest axis-aligned boxes: of anchors whose lower and upper x are
    `columns` [X, R, 2] and y `rows` [Y, R, 2], with boxes [B, M, 7].

    Boxes that are not valid [B, M] overlap nothing.
    """
    lower, upper = aligned_corners(boxes)  # [B, M, 2]
    x = _shared(columns, lower[..., 0], upper[..., 0]) * valid[..., None, None]  # [B, M, X, R]
    y = _shared(rows, lower[..., 1], upper[..., 1])  # [B, M, Y, R]
    intersection = x[:, :, None] * y[:, :, :, None]
    areas = _length(columns) * _length(rows)[:, None]  # [Y, X, R]
    areas = areas + (upper - lower).prod(-1)[..., None, None, None]
    return intersection.div_(areas.sub_(intersection).clamp_(min=1e-6))


def _length(sides: Tensor) -> Tensor:
    return sides[..., 1] - sides[..., 0]


def _shared(sides: Tensor, lower: Tensor, upper: Tensor) -> Tensor:
    """Length [B, M, N, R] that sides [N, R, 2] share with intervals [B, M]."""
    lower, upper = lower[..., None, None], upper[..., None, None]
    low, high = sides.unbind(-1)
    return (torch.minimum(high, upper) - torch.maximum(low, lower)).clamp_(min=0)


def aligned_corners(boxes: Tensor) -> tuple[Tensor, Tensor]:
    """Lower and upper corners [..., 2] of the axis-aligned boxes nearest to the rotated ones."""
    turn = limit_period(boxes[..., 6:7], 0.5, math.pi).abs()
    size = torch.where(turn < math.pi / 4, boxes[..., 3:5], boxes[..., 3:5].flip(-1))
    half = size / 2
    return boxes[..., :2] - half, boxes[..., :2] + half
