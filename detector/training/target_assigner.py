"""Target assignment as a module: anchors are matched with ground-truth boxes."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ops import Match, Targets, anchor_sides, anchor_targets, match_anchors


class TargetAssigner(nn.Module):
    """Matches anchors and ground truth by the rule of `ops.match_anchors`."""

    anchors: Tensor  # [Y, X, K, R, 7]
    columns: Tensor  # [X, K, R, 2]
    rows: Tensor  # [Y, K, R, 2]
    thresholds: Tensor  # [K, 2]

    def __init__(self, anchors: Tensor, matched: Sequence[float], unmatched: Sequence[float]):
        """anchors: [Y, X, K, R, 7], those of a row at one y and those of a column at one x;
        thresholds: K each."""
        super().__init__()
        columns, rows = anchor_sides(anchors)
        thresholds = torch.tensor([*zip(matched, unmatched, strict=True)], dtype=torch.float32)
        buffers = {"anchors": anchors, "columns": columns, "rows": rows, "thresholds": thresholds}
        for name, tensor in buffers.items():
            self.register_buffer(name, tensor, persistent=False)

    def forward(self, boxes: Tensor, labels: Tensor) -> Targets:
        """boxes [B, M, 7] and labels [B, M] (from 1; 0: padding, ignored) -> targets."""
        boxes = boxes.float()
        return anchor_targets(self.anchors, boxes, self.match(boxes, labels).rows)

    def match(self, boxes: Tensor, labels: Tensor) -> Match:
        """boxes [B, M, 7] float32 and labels [B, M] (from 1; 0: padding, ignored) -> match."""
        return match_anchors(self.columns, self.rows, self.thresholds, boxes, labels)
