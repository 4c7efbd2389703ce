"""Which anchor answers for which ground-truth box."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from detector.box_coder import encode, limit_period
from ops.cuda.anchors import match_anchors

IGNORED = -1  # as a label
NO_BOX, NEITHER = -1, -2  # as a match: background, ignored


class Match(NamedTuple):
    """Which ground truth the anchors answer for; A in the order (y, x, class, rotation)."""

    index: Tensor  # [B, A] int32: row of the box; NO_BOX, NEITHER
    positives: Tensor  # [B] int32: anchors that have a box


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
    positive anchor answers for the box that *it* overlaps most, the first of equals.
    """

    def __init__(self, anchors: Tensor, matched: Sequence[float], unmatched: Sequence[float]):
        """anchors: [Y, X, K, R, 7], those of a row at one y and those of a column at one x;
        thresholds: K each."""
        super().__init__()
        low, high = _aligned(anchors)
        sides = torch.stack((low, high), dim=-1)  # [Y, X, K, R, 2 (x, y), 2]
        thresholds = torch.tensor([*zip(matched, unmatched, strict=True)], dtype=torch.float32)
        buffers = {
            "anchors": anchors,
            "columns": sides[0, :, ..., 0, :].contiguous(),  # [X, K, R, 2]
            "rows": sides[:, 0, ..., 1, :].contiguous(),  # [Y, K, R, 2]
            "thresholds": thresholds,  # [K, 2]
        }
        for name, tensor in buffers.items():
            self.register_buffer(name, tensor, persistent=False)

    def forward(self, boxes: Tensor, labels: Tensor) -> Targets:
        """boxes [B, M, 7] and labels [B, M] (from 1; 0: padding, ignored) -> targets."""
        boxes, labels = one_row_at_least(boxes.float(), labels)
        return self.targets(self.match(boxes, labels), boxes)

    @torch.no_grad()
    def match(self, boxes: Tensor, labels: Tensor) -> Match:
        """boxes [B, M, 7], M >= 1, and labels [B, M] (from 1; 0: padding, ignored) -> match."""
        if boxes.is_cuda:
            return Match(*match_anchors(self.columns, self.rows, self.thresholds, boxes, labels))
        parts = [
            _match(self.columns[:, k], self.rows[:, k], boxes, labels == k + 1, *thresholds)
            for k, thresholds in enumerate(self.thresholds.tolist())
        ]
        index = torch.stack(parts, dim=3).flatten(1)
        return Match(index, (index >= 0).sum(1, dtype=torch.int32))

    @torch.no_grad()
    def targets(self, match: Match, boxes: Tensor) -> Targets:
        """What the anchors should say, given which of the boxes [B, M, 7] they answer for."""
        anchors = self.anchors.reshape(1, -1, 7)
        _, _, classes, rotations, _ = self.anchors.shape
        number = torch.arange(anchors.shape[1], device=boxes.device)
        own_label = number // rotations % classes + 1
        positive = match.index >= 0
        labels = torch.where(positive, own_label, torch.where(match.index == NO_BOX, 0, IGNORED))
        rows = match.index.clamp(min=0).long()
        matched = boxes.gather(1, rows[..., None].expand(-1, -1, 7))
        matched = torch.where(positive[..., None], matched, anchors)
        yaw = torch.where(positive, matched[..., 6], 0.0)
        return Targets(labels, encode(matched, anchors), yaw)


def one_row_at_least(boxes: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """boxes [B, M, 7] and labels [B, M]; of a batch without any, one row of padding."""
    if boxes.shape[1] > 0:
        return boxes, labels
    return boxes.new_zeros(len(boxes), 1, 7), labels.new_zeros(len(labels), 1)


def _match(
    columns: Tensor,  # [X, R, 2]
    rows: Tensor,  # [Y, R, 2]
    boxes: Tensor,
    valid: Tensor,
    matched: float,
    unmatched: float,
) -> Tensor:  # [B, Y, X, R] int32
    """The match of the anchors of one class with the boxes that are valid [B, M]."""
    overlap = aligned_iou(columns, rows, boxes, valid)
    best, index = overlap.max(dim=1)
    of_box = overlap.amax(dim=(2, 3, 4), keepdim=True)
    of_box = torch.where(of_box > 0, of_box, torch.inf)  # no anchor is the best of a box it misses
    positive = (best >= matched) | (overlap == of_box).any(dim=1)
    return torch.where(positive, index, torch.where(best < unmatched, NO_BOX, NEITHER)).int()


def aligned_iou(columns: Tensor, rows: Tensor, boxes: Tensor, valid: Tensor) -> Tensor:
    """IoU [B, M, Y, X, R] of the nearest axis-aligned boxes: of anchors whose lower and upper x are
    `columns` [X, R, 2] and y `rows` [Y, R, 2], with boxes [B, M, 7].

    Boxes that are not valid [B, M] overlap nothing.
    """
    lower, upper = _aligned(boxes)  # [B, M, 2]
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


def _aligned(boxes: Tensor) -> tuple[Tensor, Tensor]:
    """Lower and upper corners [..., 2] of the axis-aligned boxes nearest to the rotated ones."""
    turn = limit_period(boxes[..., 6:7], 0.5, math.pi).abs()
    size = torch.where(turn < math.pi / 4, boxes[..., 3:5], boxes[..., 3:5].flip(-1))
    half = size / 2
    return boxes[..., :2] - half, boxes[..., :2] + half
