"""The training loss of SECOND: target assignment (anchors are matched with ground-truth boxes);
class, box and direction losses (ops/losses.py) and their sum; the varifocal loss.

Varifocal loss (IoU loss of the scores; Zhang et al., VarifocalNet, CVPR 2021) of positive anchors:
scores learn the overlap that their boxes have.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from millisecond.detector.anchors import build_anchors
from millisecond.detector.config import Config, LossConfig
from millisecond.detector.models.second import AnyPredictions, MovingPredictions, Predictions
from millisecond.ops import (
    Match,
    anchor_loss_gradients,
    anchor_losses,
    anchor_sides,
    match_anchors,
    paired_overlap_bev,
)
from millisecond.ops.anchors import decode


class TargetAssigner(nn.Module):
    """Matches anchors and ground truth by the rule of `ops.match_anchors`."""

    anchors: Tensor  # [Y, X, K, R, 7]
    columns: Tensor  # [X, K, R, 2]
    rows: Tensor  # [Y, K, R, 2]
    thresholds: Tensor  # [K, 2]

    def __init__(self, anchors: Tensor, matched: Sequence[float], unmatched: Sequence[float]):
        """anchors: [Y, X, K, R, 7], all of a row at one y and all of a column at one x;
        thresholds: K each."""
        super().__init__()
        columns, rows = anchor_sides(anchors)
        thresholds = torch.tensor([*zip(matched, unmatched, strict=True)], dtype=torch.float32)
        buffers = {"anchors": anchors, "columns": columns, "rows": rows, "thresholds": thresholds}
        for name, tensor in buffers.items():
            self.register_buffer(name, tensor, persistent=False)

    def match(self, boxes: Tensor, labels: Tensor) -> Match:
        """boxes [B, M, 7 or 9] float32 and labels [B, M] (from 1; 0: padding, ignored) -> match."""
        return match_anchors(self.columns, self.rows, self.thresholds, boxes[..., :7], labels)


MOST = 1024  # positives of a frame; beyond them the focal loss stays


def varifocal_change(
    class_logits: Tensor,  # [B, A, K]
    box_residuals: Tensor,  # [B, A, 7]
    anchors: Tensor,  # [Y, X, K, R, 7]
    boxes: Tensor,  # [B, M, 7]
    match: Match,
) -> Tensor:  # [K]
    """What the varifocal loss adds to the focal loss of each class, without weight: a sum over
    positive anchors, divided and averaged as in `ops.anchor_losses`. Boxes get no gradient.
    """
    per_cell = (-1, *anchors.shape[2:4])  # cells, K, R
    found, overlaps = overlaps_of_positives(box_residuals, anchors, boxes, match)
    share = 1 / match.positives.clamp(min=1).float() / len(match.positives)  # [B]
    weight = (share[:, None] * found).unflatten(1, per_cell).movedim(2, 3)  # [B, cells, R, K]
    # Each anchor's logit of its own class. A gather's gradient would add up by atomics.
    logits = class_logits.unflatten(1, per_cell).diagonal(dim1=2, dim2=4).float()
    learnt = varifocal(logits, overlaps.unflatten(1, per_cell).movedim(2, 3))
    return (weight * (learnt - focal(logits))).sum((0, 1, 2))


def varifocal(logits: Tensor, overlaps: Tensor) -> Tensor:
    """Loss [...] of positives: q * cross entropy of the score with q, the overlap.

    In the paper a positive without any overlap has the loss of a negative; here it has none.
    """
    entropy = F.binary_cross_entropy_with_logits(logits, overlaps, reduction="none")
    return overlaps * entropy


def focal(logits: Tensor) -> Tensor:
    """Focal loss [...] of positives, as `ops.anchor_losses` has it."""
    return 0.25 * torch.sigmoid(-logits) ** 2 * F.softplus(-logits)


@torch.no_grad()
def overlaps_of_positives(
    residuals: Tensor, anchors: Tensor, boxes: Tensor, match: Match
) -> tuple[Tensor, Tensor]:
    """residuals [B, A, 7]; anchors [Y, X, K, R, 7]; boxes [B, M, 7] -> mask [B, A], IoU [B, A].

    The mask has the first `MOST` positives of each frame. The 3-D IoU is between their predicted
    box and their own, 0 for all other anchors. Shapes are fixed: nothing waits for a GPU.
    """
    batch, count = match.rows.shape
    most = min(MOST, count)
    positive = match.rows >= 0
    if boxes.shape[1] == 0:
        return positive, torch.zeros_like(positive, dtype=torch.float32)
    order = torch.arange(count, 0, -1, device=anchors.device, dtype=torch.int32)
    keys = torch.where(positive, order + count, order)  # all different: no ties
    index = keys.topk(most, dim=1).indices  # [B, most]: the positives in their order, then others
    codes = residuals.float().gather(1, index[..., None].expand(-1, -1, 7))
    # A value that is not finite is the box loss's to show; here it must not stop anything.
    predicted = decode(codes.nan_to_num().clamp(-10, 10), anchors.reshape(-1, 7)[index])
    rows = match.rows.long().gather(1, index).clamp(min=0)
    own = boxes.gather(1, rows[..., None].expand(-1, -1, 7))
    overlaps = paired_iou_3d(predicted.reshape(-1, 7), own.reshape(-1, 7)).view(batch, most)
    place = positive.cumsum(1) - 1  # of an anchor in `index`
    found = positive & (place < most)
    spread = overlaps.gather(1, place.clamp(0, most - 1))
    return found, torch.where(found, spread, 0.0)


def paired_iou_3d(a: Tensor, b: Tensor) -> Tensor:
    """IoU [P] of the volumes of row p of a and row p of b, [P, 7] each."""
    top = torch.minimum(a[:, 2] + a[:, 5] / 2, b[:, 2] + b[:, 5] / 2)
    bottom = torch.maximum(a[:, 2] - a[:, 5] / 2, b[:, 2] - b[:, 5] / 2)
    shared = paired_overlap_bev(a, b) * (top - bottom).clamp(min=0)
    volumes = a[:, 3:6].prod(1) + b[:, 3:6].prod(1)
    return (shared / (volumes - shared).clamp(min=1e-6)).clamp(0, 1)


def velocity_loss(velocities: Tensor, anchors: Tensor, boxes: Tensor, match: Match) -> Tensor:
    """Smooth-L1 loss of velocities [B, A, 2] in m/s of each class, [K] without weight: a sum over
    positive anchors, divided and averaged as in `ops.anchor_losses`. anchors: [Y, X, K, R, 7];
    boxes: [B, M, 9], and one whose velocity is unknown (NaN) adds nothing."""
    found = velocities if velocities.dtype == torch.float64 else velocities.float()
    rows = match.rows.clamp(min=0).long()[..., None].expand(-1, -1, 2)
    own = boxes[..., 7:].gather(1, rows).to(found.dtype)
    known = ((match.rows >= 0) & own.isfinite().all(-1))[..., None]
    own = torch.where(known, own, 0.0)
    loss = F.smooth_l1_loss(found, own, reduction="none", beta=1 / 9)
    share = 1 / match.positives.clamp(min=1).to(found.dtype) / len(boxes)  # [B]
    of_anchors = torch.where(known, loss, 0.0).sum(2)
    return share @ of_anchors.unflatten(1, (-1, *anchors.shape[2:4])).sum((1, 3))


class Losses(NamedTuple):
    """Weighted losses, scalars; `total`, the sum of the next three and of the velocities', is what
    training minimises.

    `by_class` is the share of each class in each of them, without gradient. The shares of box,
    direction and velocity are sums over the anchors that are matched with boxes of the class.
    """

    total: Tensor
    classification: Tensor
    box: Tensor
    direction: Tensor
    by_class: Tensor  # [3, K]; [4, K] of a network with velocities

    def flat(self) -> Tensor:
        """[4 + 3 K or 4 + 4 K] without gradient, in the order of `loss_names`."""
        return torch.cat([loss.detach().reshape(-1) for loss in self])


def loss_names(classes: Sequence[str], velocity: bool = False) -> tuple[str, ...]:
    """Names of the values of `Losses.flat`."""
    names = Losses._fields[:4]
    parts = (*names[1:], *["velocity"] * velocity)
    return (*names, *(f"{part} of {name}" for part in parts for name in classes))


class Criterion(nn.Module):
    """Losses of predictions against ground truth.

    Each is a sum over the anchors of a frame divided by the frame's number of positives (at least
    1), averaged over the batch and weighted. Everything stays on the device; nothing waits for it.
    """

    def __init__(self, assigner: TargetAssigner, loss: LossConfig):
        super().__init__()
        self.assigner, self.quality = assigner, loss.quality
        self.weights = (loss.classification, loss.box, loss.direction)
        self.velocity = loss.velocity

    def forward(self, predictions: AnyPredictions, boxes: Tensor, labels: Tensor) -> Losses:
        """boxes [B, M, 7], 9 with velocities; labels [B, M] from 1, 0 where there is no box."""
        boxes = boxes.float()
        return self.losses(predictions, boxes, self.assigner.match(boxes, labels))

    def losses(self, predictions: AnyPredictions, boxes: Tensor, match: Match) -> Losses:
        """boxes [B, M, 7 or 9] float32 and their match with the anchors, see
        `TargetAssigner.match`."""
        truth = self.assigner.anchors, boxes[..., :7].contiguous(), *match
        losses = Losses(*anchor_losses(*predictions[:3], *truth, self.weights))
        if isinstance(predictions, MovingPredictions):
            moving = self._moving(predictions.velocities, boxes, match)
            by_class = torch.cat((losses.by_class, moving.detach()[None]))
            losses = losses._replace(total=losses.total + moving.sum(), by_class=by_class)
        if not self.quality:
            return losses
        change = self._change(predictions, boxes, match)
        by_class = torch.cat((losses.by_class[:1] + change.detach(), losses.by_class[1:]))
        return losses._replace(
            total=losses.total + change.sum(),
            classification=losses.classification + change.sum(),
            by_class=by_class,
        )

    def gradients(
        self, predictions: AnyPredictions, boxes: Tensor, match: Match, of_total: Tensor
    ) -> AnyPredictions:
        """The gradients of the predictions; of_total: float32 scalar, the gradient of the total."""
        truth = self.assigner.anchors, boxes[..., :7].contiguous(), *match
        gradients: AnyPredictions = Predictions(
            *anchor_loss_gradients(*predictions[:3], *truth, self.weights, of_total)
        )
        if isinstance(predictions, MovingPredictions):
            velocities = predictions.velocities.detach().requires_grad_()
            with torch.enable_grad():
                moving = self._moving(velocities, boxes, match).sum()
            (of_moving,) = torch.autograd.grad(moving, velocities, of_total)
            gradients = MovingPredictions(*gradients[:3], of_moving)
        if not self.quality:
            return gradients
        logits = predictions.class_logits.detach().requires_grad_()
        with torch.enable_grad():
            change = self._change(predictions._replace(class_logits=logits), boxes, match).sum()
        (of_change,) = torch.autograd.grad(change, logits, of_total)
        return gradients._replace(class_logits=gradients.class_logits + of_change)

    def _moving(self, velocities: Tensor, boxes: Tensor, match: Match) -> Tensor:
        """The velocity loss of each class, [K]."""
        return self.velocity * velocity_loss(velocities, self.assigner.anchors, boxes, match)

    def _change(self, predictions: AnyPredictions, boxes: Tensor, match: Match) -> Tensor:
        """What the varifocal loss adds to the class loss of each class, [K]."""
        logits, residuals = predictions[:2]
        truth = self.assigner.anchors, boxes[..., :7].contiguous(), match
        return self.weights[0] * varifocal_change(logits, residuals, *truth)


def build_criterion(config: Config) -> Criterion:
    """The criterion of a configuration; move it to the model's device."""
    anchors = build_anchors(config)
    matched, unmatched = zip(*((c.matched, c.unmatched) for c in config.classes), strict=True)
    return Criterion(TargetAssigner(anchors, matched, unmatched), config.loss)
