"""The losses of SECOND (Yan, Mao and Li 2018): focal loss of the class, smooth-L1 with sine error
of the box, cross entropy of the direction."""

from __future__ import annotations

from collections.abc import Sequence

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
    if len(weights) != 3:
        raise ValueError(f"weights: expected those of class, box and direction, got {weights}")
    backend = cuda if on_kernels(class_logits) else reference
    predictions = class_logits, box_residuals, direction_logits
    truth = anchors, one_row_at_least(boxes), match, positives
    return backend.anchor_losses(*predictions, *truth, weights)
