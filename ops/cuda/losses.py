"""The losses of anchors and their gradients on the CUDA kernels, see csrc/anchors/loss.cu."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ops.cuda.fakes import fake
from ops.cuda.library import extension


def anchor_losses(
    class_logits: Tensor,
    box_residuals: Tensor,
    direction_logits: Tensor,
    anchors: Tensor,
    boxes: Tensor,
    match: Tensor,
    positives: Tensor,
    weights: Sequence[float],
) -> tuple[Tensor, ...]:
    """See ops.losses.anchor_losses."""
    extension()
    predictions = class_logits, box_residuals, direction_logits
    return AnchorLosses.apply(*predictions, anchors, boxes, match, positives, weights)


def anchor_loss_gradients(
    class_logits: Tensor,
    box_residuals: Tensor,
    direction_logits: Tensor,
    anchors: Tensor,
    boxes: Tensor,
    match: Tensor,
    positives: Tensor,
    weights: Sequence[float],
    of_total: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """See ops.losses.anchor_loss_gradients."""
    extension()
    predictions = (p.detach().contiguous() for p in (class_logits, box_residuals, direction_logits))
    truth = anchors, boxes.contiguous(), match, positives
    return torch.ops.millisecond.anchor_losses_backward(
        of_total, None, None, None, *predictions, *truth, weights
    )


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


@fake("anchor_losses")
def _fake_anchor_losses(
    logits, residuals, directions, anchors, boxes, match, positives, weights
) -> Tensor:
    return boxes.new_empty(4 + 3 * logits.shape[2])


@fake("anchor_losses_backward")
def _fake_anchor_losses_backward(
    total,
    classification,
    box,
    direction,
    logits,
    residuals,
    directions,
    anchors,
    boxes,
    match,
    positives,
    weights,
) -> tuple[Tensor, Tensor, Tensor]:
    return torch.empty_like(logits), torch.empty_like(residuals), torch.empty_like(directions)
