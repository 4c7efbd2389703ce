"""What training minimises: class, box and direction losses of SECOND."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from detector.anchors import build_anchors
from detector.box_coder import direction_bin
from detector.config import Config
from detector.models.anchor_head import Predictions
from detector.training.target_assigner import TargetAssigner, Targets, one_row_at_least
from ops.cuda.anchors import anchor_losses


class Losses(NamedTuple):
    """Weighted losses, 0-dimensional; `total` is the sum of the next three. Only it is to be
    minimised: `by_class`, the share of each class in each of the three, has no gradient. A class's
    share of box and direction is that of the anchors that answer for its boxes."""

    total: Tensor
    classification: Tensor
    box: Tensor
    direction: Tensor
    by_class: Tensor  # [3, K]

    def flat(self) -> Tensor:
        """[4 + 3 K] without gradient, in the order of `loss_names`."""
        return torch.cat([loss.detach().reshape(-1) for loss in self])


def loss_names(classes: Sequence[str]) -> tuple[str, ...]:
    """Names of the values of `Losses.flat`."""
    names = Losses._fields[:4]
    return (*names, *(f"{part} of {name}" for part in names[1:] for name in classes))


class Criterion(nn.Module):
    """Losses of predictions against ground truth.

    Each is a sum over the anchors of a frame divided by the frame's number of positives (at least
    1), averaged over the batch and weighted. Everything stays on the device; nothing waits for it.
    """

    def __init__(
        self, assigner: TargetAssigner, classification: float, box: float, direction: float
    ):
        super().__init__()
        self.assigner = assigner
        self.weights = (classification, box, direction)

    def forward(self, predictions: Predictions, boxes: Tensor, labels: Tensor) -> Losses:
        """boxes [B, M, 7], labels [B, M] from 1, 0 where there is no box."""
        boxes, labels = one_row_at_least(boxes.float(), labels)
        match = self.assigner.match(boxes, labels)
        if boxes.is_cuda:
            anchors = self.assigner.anchors
            return Losses(*anchor_losses(*predictions, anchors, boxes, *match, self.weights))
        predictions = Predictions(*(p.float() for p in predictions))
        targets = self.assigner.targets(match, boxes)
        return losses_of_targets(predictions, targets, match.positives, self.weights)


def losses_of_targets(
    predictions: Predictions,
    targets: Targets,
    positives: Tensor,  # [B]
    weights: Sequence[float],  # of class, box and direction
) -> Losses:
    """The definition of the losses; on a GPU they come from a kernel."""
    logits, residuals, directions = predictions
    classes = torch.arange(1, logits.shape[-1] + 1, device=logits.device)
    answers = targets.labels[..., None] == classes
    share = 1 / positives.clamp(min=1).to(logits.dtype) / len(positives)  # [B]
    parts = (  # [B, A, K]
        focal_loss(logits, targets.labels),
        box_loss(residuals, targets.residuals).sum(-1, keepdim=True) * answers,
        _direction_loss(directions, targets)[..., None] * answers,
    )
    by_class = [w * (share @ part.sum(1)) for w, part in zip(weights, parts, strict=True)]
    by_class = torch.stack(by_class)
    weighted = by_class.sum(1)
    return Losses(weighted.sum(), *weighted, by_class.detach())


def build_criterion(config: Config) -> Criterion:
    """The criterion of a configuration; move it to the model's device."""
    anchors = build_anchors(config)
    matched, unmatched = zip(*((c.matched, c.unmatched) for c in config.classes), strict=True)
    loss = config.loss
    assigner = TargetAssigner(anchors, matched, unmatched)
    return Criterion(assigner, loss.classification, loss.box, loss.direction)


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
    """Smooth-L1 loss [..., 7] of residuals; of the yaw, the sine of the difference counts."""
    difference = residuals - targets
    difference = torch.cat((difference[..., :6], torch.sin(difference[..., 6:])), dim=-1)
    size = difference.abs()
    return torch.where(size < beta, 0.5 * size**2 / beta, size - 0.5 * beta)


def _direction_loss(logits: Tensor, targets: Targets) -> Tensor:
    bins = direction_bin(targets.yaw)
    return F.cross_entropy(logits.flatten(0, 1), bins.flatten(), reduction="none").view_as(bins)
