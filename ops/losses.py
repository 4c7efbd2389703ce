"""The losses of SECOND (Yan, Mao and Li 2018): focal loss of the class, smooth-L1 with sine error
of the box, cross entropy of the direction."""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType

from torch import Tensor

from ops.anchors import one_row_at_least
from ops.cuda import losses as cuda
from ops.dispatch import on_kernels
from ops.reference import losses as reference


def anchor_losses(
    class_logits: Tensor,  # [B, A, K]
    box_residuals: Tensor,  # [B, A, 7]
    direction_logits: Tensor,  # [B, A, 2]
    anchors: Tensor,  # [Y, X, K, R, 7]
    boxes: Tensor,  # [B, M, 7]
    match: Tensor,  # [B, A] rows of `match_anchors`
    positives: Tensor,  # [B] of `match_anchors`
    weights: Sequence[float],  # of class, box and direction
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Total, class, box and direction loss, each a scalar, and the share of each class in the last
    three [3, K], which has no gradient.

    Each loss is a sum over the anchors of a frame divided by the frame's number of positives (at
    least 1), averaged over the batch and weighted. Predictions are of one type; below float64 the
    losses and all in between are float32.
    """
    backend = _backend(class_logits, weights)
    predictions = class_logits, box_residuals, direction_logits
    truth = anchors, one_row_at_least(boxes), match, positives
    return backend.anchor_losses(*predictions, *truth, weights)


def anchor_loss_gradients(
    class_logits: Tensor,
    box_residuals: Tensor,
    direction_logits: Tensor,
    anchors: Tensor,
    boxes: Tensor,
    match: Tensor,
    positives: Tensor,
    weights: Sequence[float],
    of_total: Tensor,  # scalar, float32
) -> tuple[Tensor, ...]:
    """The gradients of the predictions from that of the total loss of `anchor_losses`, for which
    the losses themselves need not be there."""
    backend = _backend(class_logits, weights)
    predictions = class_logits, box_residuals, direction_logits
    truth = anchors, one_row_at_least(boxes), match, positives
    return backend.anchor_loss_gradients(*predictions, *truth, weights, of_total)


def _backend(class_logits: Tensor, weights: Sequence[float]) -> ModuleType:
    if len(weights) != 3:
        raise ValueError(f"weights: expected those of class, box and direction, got {weights}")
    return cuda if on_kernels(class_logits) else reference
