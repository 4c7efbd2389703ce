"""The losses of anchors in plain torch: focal, smooth-L1 with sine error, direction."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from ops.box_coder import direction_bin
from ops.reference.anchors import anchor_targets


def anchor_losses(
    class_logits: Tensor,
    box_residuals: Tensor,
    direction_logits: Tensor,
    anchors: Tensor,
    boxes: Tensor,
    match: Tensor,
    positives: Tensor,
    weights: Sequence[float],
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """See ops.losses.anchor_losses."""
    logits, residuals, directions = (
        p if p.dtype == torch.float64 else p.float()
        for p in (class_logits, box_residuals, direction_logits)
    )
    with torch.no_grad():
        labels, target_residuals, yaw = anchor_targets(anchors, boxes, match)
    classes = torch.arange(1, logits.shape[-1] + 1, device=logits.device)
    answers = labels[..., None] == classes
    share = 1 / positives.clamp(min=1).to(logits.dtype) / len(positives)  # [B]
    parts = (  # [B, A, K]
        focal_loss(logits, labels),
        box_loss(residuals, target_residuals).sum(-1, keepdim=True) * answers,
        direction_loss(directions, yaw)[..., None] * answers,
    )
    by_class = torch.stack(
        [w * (share @ part.sum(1)) for w, part in zip(weights, parts, strict=True)]
    )
    weighted = by_class.sum(1)
    return weighted.sum(), *weighted, by_class.detach()


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
) -> tuple[Tensor, ...]:
    """See ops.losses.anchor_loss_gradients."""
    predictions = class_logits, box_residuals, direction_logits
    logits, residuals, directions = (values.detach().requires_grad_() for values in predictions)
    with torch.enable_grad():
        truth = anchors, boxes, match, positives
        total, *_ = anchor_losses(logits, residuals, directions, *truth, weights)
    leaves = logits, residuals, directions
    return torch.autograd.grad(total, leaves, of_total.to(total.dtype))


def focal_loss(logits: Tensor, labels: Tensor, alpha: float = 0.25, gamma: float = 2.0) -> Tensor:
    """Sigmoid focal loss (Lin et al. 2017) [..., K] of logits [..., K]; labels [...] count from 1.

    Label 0 is background, a target of zeros; a negative label is ignored, a loss of zeros.
    """
    classes = torch.arange(1, logits.shape[-1] + 1, device=logits.device)
    target = (labels[..., None] == classes).to(logits.dtype)
    score = torch.sigmoid(logits)
    wrong = target * (1 - score) + (1 - target) * score
    weight = (target * alpha + (1 - target) * (1 - alpha)) * wrong**gamma
    entropy = F.binary_cross_entropy_with_logits(logits, target, reduction="none")
    return weight * entropy * (labels >= 0)[..., None]


def box_loss(residuals: Tensor, targets: Tensor, beta: float = 1 / 9) -> Tensor:
    """Smooth-L1 loss [..., 7] of residuals [..., 7] against targets [..., 7].

    For the yaw it is the sine-error loss, smooth-L1 of sin(residual - target): a box that is turned
    by pi has the same loss, and the direction classifier tells the two apart.
    """
    difference = residuals - targets
    difference = torch.cat((difference[..., :6], torch.sin(difference[..., 6:])), dim=-1)
    size = difference.abs()
    return torch.where(size < beta, 0.5 * size**2 / beta, size - 0.5 * beta)


def direction_loss(logits: Tensor, yaw: Tensor) -> Tensor:
    """Cross entropy [B, A] of the direction classifier: logits [B, A, 2], target the half turn that
    the yaw [B, A] lies in."""
    bins = direction_bin(yaw)
    return F.cross_entropy(logits.flatten(0, 1), bins.flatten(), reduction="none").view_as(bins)
