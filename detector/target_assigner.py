"""Which anchor answers for which ground-truth box."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from detector.box_coder import encode, limit_period

IGNORED = -1


class Targets(NamedTuple):
    """What the anchors should say; A in the order (y, x, class, rotation)."""

    labels: Tensor  # [B, A] int64: class from 1, 0 background, -1 ignored
    residuals: Tensor  # [B, A, 7], zero where the label is not positive
    yaw: Tensor  # [B, A] heading in radians of the matched box, zero where not positive


class TargetAssigner(nn.Module):
    """Matches anchors and ground truth of the same class by overlap in bird's-eye view.

    The overlap is that of the axis-aligned boxes nearest to the rotated ones. An anchor is positive
    from `matched` on and background below `unmatched`; in between it is ignored. The best anchors
    of a box, ties included, are positive however small that overlap is, unless it is zero. A
    positive anchor answers for the box that *it* overlaps most.
    """

    def __init__(self, anchors: Tensor, matched: Sequence[float], unmatched: Sequence[float]):
        """anchors: [Y, X, K, R, 7]; thresholds: K each."""
        super().__init__()
        self.register_buffer("anchors", anchors, persistent=False)
        self.thresholds = tuple(zip(matched, unmatched, strict=True))

    @torch.no_grad()
    def forward(self, boxes: Tensor, labels: Tensor) -> Targets:
        """boxes [B, M, 7] and labels [B, M] (from 1; 0: padding, ignored) -> targets."""
        if boxes.shape[1] == 0:
            boxes, labels = boxes.new_zeros(len(boxes), 1, 7), labels.new_zeros(len(labels), 1)
        boxes = boxes.float()
        parts = []
        for k, (matched, unmatched) in enumerate(self.thresholds):
            anchors = self.anchors[:, :, k]
            positive, background, index = _match(
                anchors, boxes, labels == k + 1, matched, unmatched
            )
            label = torch.where(positive, k + 1, torch.where(background, 0, IGNORED))
            parts.append((label, index))
        label, index = (torch.stack(part, dim=3).flatten(1) for part in zip(*parts, strict=True))
        return self._targets(boxes, label, index)

    def _targets(self, boxes: Tensor, labels: Tensor, index: Tensor) -> Targets:
        positive = labels > 0
        matched = boxes.gather(1, index[..., None].expand(-1, -1, 7))
        anchors = self.anchors.reshape(1, -1, 7)
        matched = torch.where(positive[..., None], matched, anchors)
        yaw = torch.where(positive, matched[..., 6], 0.0)
        return Targets(labels, encode(matched, anchors), yaw)


def _match(
    anchors: Tensor, boxes: Tensor, valid: Tensor, matched: float, unmatched: float
) -> tuple[Tensor, Tensor, Tensor]:
    """positive, background, index of the box that an anchor overlaps most, each [B, Y, X, R]."""
    overlap = aligned_iou(anchors, boxes, valid)
    best, index = overlap.max(dim=1)
    of_box = overlap.amax(dim=(2, 3, 4), keepdim=True)
    of_box = torch.where(of_box > 0, of_box, torch.inf)  # no anchor is the best of a box it misses
    positive = (best >= matched) | (overlap == of_box).any(dim=1)
    return positive, ~positive & (best < unmatched), index


def aligned_iou(anchors: Tensor, boxes: Tensor, valid: Tensor) -> Tensor:  # [B, M, Y, X, R]
    """IoU of the nearest axis-aligned boxes; anchors [Y, X, R, 7], boxes [B, M, 7].

    Boxes that are not valid [B, M] overlap nothing. Anchors of a row share their y and those of a
    column their x, so the sides of the intersections are found once a row and once a column.
    """
    low, high = _aligned(anchors)  # [Y, X, R, 2]
    lower, upper = _aligned(boxes)  # [B, M, 2]
    column, row = (low[0, ..., 0], high[0, ..., 0]), (low[:, 0, :, 1], high[:, 0, :, 1])
    x = _shared(*column, lower[..., 0], upper[..., 0]) * valid[..., None, None]  # [B, M, X, R]
    y = _shared(*row, lower[..., 1], upper[..., 1])  # [B, M, Y, R]
    intersection = x[:, :, None] * y[:, :, :, None]
    areas = (high - low).prod(-1) + (upper - lower).prod(-1)[..., None, None, None]
    return intersection.div_(areas.sub_(intersection).clamp_(min=1e-6))


def _shared(low: Tensor, high: Tensor, lower: Tensor, upper: Tensor) -> Tensor:
    """Length [B, M, N, R] that intervals [N, R] share with intervals [B, M]."""
    lower, upper = lower[..., None, None], upper[..., None, None]
    return (torch.minimum(high, upper) - torch.maximum(low, lower)).clamp_(min=0)


def _aligned(boxes: Tensor) -> tuple[Tensor, Tensor]:
    """Lower and upper corners [..., 2] of the axis-aligned boxes nearest to the rotated ones."""
    turn = limit_period(boxes[..., 6:7], 0.5, math.pi).abs()
    size = torch.where(turn < math.pi / 4, boxes[..., 3:5], boxes[..., 3:5].flip(-1))
    half = size / 2
    return boxes[..., :2] - half, boxes[..., :2] + half
