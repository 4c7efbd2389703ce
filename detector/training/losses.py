"""The training loss: class, box and direction losses of SECOND (ops/losses.py) and their sum."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from detector.anchors import build_anchors
from detector.config import Config
from detector.models.anchor_head import Predictions
from detector.training.target_assigner import TargetAssigner
from detector.training.varifocal import varifocal_change
from ops import Match, anchor_loss_gradients, anchor_losses


class Losses(NamedTuple):
    """Weighted losses, scalars; `total`, the sum of the next three, is what training minimises.

    `by_class` is the share of each class in each of the three, without gradient. The shares of box
    and direction are sums over the anchors that are matched with boxes of the class.
    """

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
        self,
        assigner: TargetAssigner,
        classification: float,
        box: float,
        direction: float,
        quality: bool = False,
    ):
        """quality: positive anchors have the varifocal loss in place of the focal loss."""
        super().__init__()
        self.assigner = assigner
        self.weights = (classification, box, direction)
        self.quality = quality

    def forward(self, predictions: Predictions, boxes: Tensor, labels: Tensor) -> Losses:
        """boxes [B, M, 7], labels [B, M] from 1, 0 where there is no box."""
        boxes = boxes.float()
        return self.losses(predictions, boxes, self.assigner.match(boxes, labels))

    def losses(self, predictions: Predictions, boxes: Tensor, match: Match) -> Losses:
        """boxes [B, M, 7] float32 and their match with the anchors, see `TargetAssigner.match`."""
        truth = self.assigner.anchors, boxes, *match
        losses = Losses(*anchor_losses(*predictions, *truth, self.weights))
        if not self.quality:
            return losses
        change = self._change(predictions, boxes, match)
        by_class = torch.cat((losses.by_class[:1] + change.detach(), losses.by_class[1:]))
        return Losses(
            losses.total + change.sum(),
            losses.classification + change.sum(),
            losses.box,
            losses.direction,
            by_class,
        )

    def gradients(
        self, predictions: Predictions, boxes: Tensor, match: Match, of_total: Tensor
    ) -> Predictions:
        """Of the predictions, from that of the total loss: a scalar, float32."""
        truth = self.assigner.anchors, boxes, *match
        gradients = Predictions(
            *anchor_loss_gradients(*predictions, *truth, self.weights, of_total)
        )
        if not self.quality:
            return gradients
        logits = predictions.class_logits.detach().requires_grad_()
        with torch.enable_grad():
            change = self._change(predictions._replace(class_logits=logits), boxes, match).sum()
        (of_change,) = torch.autograd.grad(change, logits, of_total)
        return gradients._replace(class_logits=gradients.class_logits + of_change)

    def _change(self, predictions: Predictions, boxes: Tensor, match: Match) -> Tensor:
        """What the varifocal loss adds to the class loss of each class, [K]."""
        logits, residuals, _ = predictions
        truth = self.assigner.anchors, boxes, match
        return self.weights[0] * varifocal_change(logits, residuals, *truth)


def build_criterion(config: Config) -> Criterion:
    """The criterion of a configuration; move it to the model's device."""
    anchors = build_anchors(config)
    matched, unmatched = zip(*((c.matched, c.unmatched) for c in config.classes), strict=True)
    loss = config.loss
    assigner = TargetAssigner(anchors, matched, unmatched)
    return Criterion(assigner, loss.classification, loss.box, loss.direction, loss.quality)
