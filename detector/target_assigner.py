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
        y_cells, x_cells, _, rotations, _ = self.anchors.shape
        boxes = boxes.float()
        out = []
        for k, (matched, unmatched) in enumerate(self.thresholds):
            anchors = self.anchors[:, :, k].reshape(-1, 7)
            valid = labels == k + 1
            positive, background, index = _match(anchors, boxes, valid, matched, unmatched)
            label = torch.where(positive, k + 1, torch.where(background, 0, IGNORED))
            out.append((label, index))
        shape = (len(boxes), y_cells, x_cells, len(out), rotations)
        label, index = (
            torch.stack([part.view(*shape[:3], rotations) for part in parts], dim=3).flatten(1)
            for parts in zip(*out, strict=True)
        )
        return self._targets(boxes, label, index)

    def _targets(self, boxes: Tensor, labels: Tensor, index: Tensor) -> Targets:
        positive = labels > 0
        if boxes.shape[1] == 0:
            zeros = self.anchors.new_zeros(*labels.shape, 7)
            return Targets(labels, zeros, zeros[..., 6])
        matched = boxes.gather(1, index[..., None].expand(-1, -1, 7))
        anchors = self.anchors.reshape(1, -1, 7)
        matched = torch.where(positive[..., None], matched, anchors)
        yaw = torch.where(positive, matched[..., 6], 0.0)
        return Targets(labels, encode(matched, anchors), yaw)


def _match(
    anchors: Tensor, boxes: Tensor, valid: Tensor, matched: float, unmatched: float
) -> tuple[Tensor, Tensor, Tensor]:
    """positive, background, and the index of the box that an anchor overlaps most, each [B, N]."""
    if boxes.shape[1] == 0:
        none = valid.new_zeros(len(boxes), len(anchors))
        return none, ~none, none.long()
    overlap = aligned_iou(anchors, boxes) * valid[..., None]  # [B, M, N]
    best, index = overlap.max(dim=1)
    of_box = overlap.amax(dim=2, keepdim=True)  # [B, M, 1]
    of_box = torch.where(of_box > 0, of_box, torch.inf)  # no anchor is the best of a box it misses
    positive = (best >= matched) | (overlap == of_box).any(dim=1)
    return positive, ~positive & (best < unmatched), index


def aligned_iou(anchors: Tensor, boxes: Tensor) -> Tensor:
    """IoU [B, M, N] of the nearest axis-aligned boxes; anchors [N, 7], boxes [B, M, 7]."""
    a_low, a_high = (edge[None, None] for edge in _aligned(anchors))  # [1, 1, N, 2]
    b_low, b_high = (edge[:, :, None] for edge in _aligned(boxes))  # [B, M, 1, 2]
    inner = (
        torch.minimum(a_high[..., axis], b_high[..., axis])
        - torch.maximum(a_low[..., axis], b_low[..., axis])
        for axis in (0, 1)
    )
    x, y = (side.clamp_(min=0) for side in inner)
    intersection = x.mul_(y)
    union = (a_high - a_low).prod(-1) + (b_high - b_low).prod(-1) - intersection
    return intersection.div_(union.clamp_(min=1e-6))


def _aligned(boxes: Tensor) -> tuple[Tensor, Tensor]:
    """Lower and upper corners [..., 2] of the axis-aligned boxes nearest to the rotated ones."""
    turn = limit_period(boxes[..., 6:7], 0.5, math.pi).abs()
    size = torch.where(turn < math.pi / 4, boxes[..., 3:5], boxes[..., [4, 3]])
    half = size / 2
    return boxes[..., :2] - half, boxes[..., :2] + half
