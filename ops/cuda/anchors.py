"""Matching of anchors and ground truth, and the losses of anchors, on the CUDA kernels.

Anchors are [Y, X, K, R, 7], numbered in that order: A = Y * X * K * R.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ops.cuda.library import extension


def match_anchors(
    columns: Tensor,  # [X, K, R, 2] lower and upper x of the anchors' axis-aligned rectangles
    rows: Tensor,  # [Y, K, R, 2] lower and upper y
    thresholds: Tensor,  # [K, 2] matched, unmatched
    boxes: Tensor,  # [B, M, 7], M >= 1
    labels: Tensor,  # [B, M] int64, from 1; others: no box
) -> tuple[Tensor, Tensor]:
    """match [B, A] int32: row of an anchor's box, -1 background, -2 ignored; positives [B] int32:
    anchors that have a box."""
    extension()
    return torch.ops.millisecond.match_anchors(
        columns, rows, thresholds, boxes.contiguous(), labels.contiguous()
    )


def anchor_losses(
    class_logits: Tensor,  # [B, A, K]
    box_residuals: Tensor,  # [B, A, 7]
    direction_logits: Tensor,  # [B, A, 2]
    anchors: Tensor,
    boxes: Tensor,  # [B, M, 7]
    match: Tensor,
    positives: Tensor,
    weights: Sequence[float],  # of class, box and direction
) -> tuple[Tensor, ...]:
    """Total, class, box and direction loss, each of no dimensions, and the share of each class in
    the last three [3, K], which has no gradient. Predictions are float32, float16 or bfloat16, all
    three of one type; the losses and all in between are float32."""
    extension()
    predictions = class_logits, box_residuals, direction_logits
    return AnchorLosses.apply(*predictions, anchors, boxes, match, positives, weights)


class AnchorLosses(torch.autograd.Function):
    """Losses, and in one go the gradients of whichever of them has one."""

    @staticmethod
    def forward(ctx, logits, residuals, directions, anchors, boxes, match, positives, weights):
        predictions = (p.contiguous() for p in (logits, residuals, directions))
        tensors = (*predictions, anchors, boxes.contiguous(), match, positives)
        losses = torch.ops.millisecond.anchor_losses(*tensors, weights)
        ctx.save_for_backward(*tensors)
        ctx.weights = weights
        ctx.set_materialize_grads(False)
        by_class = losses[4:].view(3, -1)
        ctx.mark_non_differentiable(by_class)
        return *losses[:4].unbind(), by_class

    @staticmethod
    @once_differentiable
    def backward(ctx, *of_losses):
        of_predictions = torch.ops.millisecond.anchor_losses_backward(
            *of_losses[:4], *ctx.saved_tensors, ctx.weights
        )
        return *of_predictions, None, None, None, None, None
