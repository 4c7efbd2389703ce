"""The training loss of SECOND: target assignment (anchors are matched with ground-truth boxes);
class, box and direction losses (ops/anchors.py) and their sum; losses of positive anchors that a
configuration may add to them.

Varifocal loss (IoU loss of the scores; Zhang et al., VarifocalNet, CVPR 2021): scores learn the
overlap that their boxes have. Distance-IoU loss (Zheng et al., Distance-IoU Loss, AAAI 2020): boxes
learn the overlap itself.
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


MOST = 1024  # positives of a frame; beyond them only the losses of `ops.anchor_losses` stay


class Positives(NamedTuple):
    """The first `MOST` positives of each frame in their order, then others; fixed shapes: nothing
    waits for a GPU."""

    anchor: Tensor  # [B, M] its number
    real: Tensor  # [B, M] bool: is a positive
    predicted: Tensor  # [B, M, 7] boxes
    own: Tensor  # [B, M, 7] boxes of the ground truth; any for others


def positives_of(residuals: Tensor, anchors: Tensor, boxes: Tensor, match: Match) -> Positives:
    """residuals [B, A, 7]; anchors [Y, X, K, R, 7]; boxes [B, one or more, 7]."""
    count = match.rows.shape[1]
    order = torch.arange(count, 0, -1, device=anchors.device, dtype=torch.int32)
    keys = torch.where(match.rows >= 0, order + count, order)  # all different: no ties
    index = keys.topk(min(MOST, count), dim=1).indices
    # No anchor comes twice, so the order in which a gradient is added up does not matter.
    codes = residuals.float().gather(1, index[..., None].expand(-1, -1, 7))
    # A value that is not finite is the box loss's to show; here it must not stop anything.
    predicted = decode(codes.nan_to_num().clamp(-10, 10), anchors.reshape(-1, 7)[index])
    rows = match.rows.long().gather(1, index)
    own = boxes.gather(1, rows.clamp(min=0)[..., None].expand(-1, -1, 7))
    return Positives(index, rows >= 0, predicted, own)


def varifocal_change(
    class_logits: Tensor,  # [B, A, K]
    anchors: Tensor,  # [Y, X, K, R, 7]
    positives: Positives,
    match: Match,
) -> Tensor:  # [K]
    """What the varifocal loss adds to the focal loss of each class, without weight: a sum over
    positive anchors, divided and averaged as in `ops.anchor_losses`. Boxes get no gradient.
    """
    per_cell = (-1, *anchors.shape[2:4])  # cells, K, R
    found, overlaps = overlaps_of_anchors(positives, match)
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
def overlaps_of_anchors(positives: Positives, match: Match) -> tuple[Tensor, Tensor]:
    """Mask [B, A] of the positives, and 3-D IoU [B, A] of their predicted box and their own, 0 of
    all other anchors."""
    predicted, own = positives.predicted, positives.own
    overlaps = paired_iou_3d(predicted.reshape(-1, 7), own.reshape(-1, 7)).view(own.shape[:2])
    most = own.shape[1]
    positive = match.rows >= 0
    place = positive.cumsum(1) - 1  # of an anchor in `Positives.anchor`
    found = positive & (place < most)
    spread = overlaps.gather(1, place.clamp(0, most - 1))
    return found, torch.where(found, spread, 0.0)


def overlap_loss(
    anchors: Tensor,  # [Y, X, K, R, 7]
    positives: Positives,
    match: Match,
) -> Tensor:  # [K]
    """The distance-IoU loss of each class, without weight: a sum over positive anchors, divided and
    averaged as in `ops.anchor_losses`.

    1 - IoU + (distance of the centres / diagonal of the box around both)^2, in the frame of the
    true box, as if the predicted one had its yaw, which has the sine-error loss.
    """
    classes, rotations = anchors.shape[2:4]
    index, real, predicted, own = positives
    a, b = (torch.where(real[..., None], box, 1.0) for box in (predicted, own))
    (x, y, z), cos, sin = (a - b)[..., :3].unbind(-1), b[..., 6].cos(), b[..., 6].sin()
    away = torch.stack((cos * x + sin * y, cos * y - sin * x, z), -1)
    half, other = a[..., 3:6] / 2, b[..., 3:6] / 2
    shared = torch.minimum(away + half, other) - torch.maximum(away - half, -other)
    around = torch.maximum(away + half, other) - torch.minimum(away - half, -other)
    inside = _volume(shared.clamp(min=0))
    overlap = inside / (8 * (_volume(half) + _volume(other)) - inside).clamp(min=1e-6)
    loss = 1 - overlap + away.square().sum(-1) / around.square().sum(-1)
    share = 1 / match.positives.clamp(min=1).float() / len(match.positives)  # [B]
    kind = index // rotations % classes
    own_kind = kind[..., None] == torch.arange(classes, device=kind.device)
    return ((loss * real * share[:, None])[..., None] * own_kind).sum((0, 1))


def _volume(sides: Tensor) -> Tensor:
    length, width, height = sides.unbind(-1)  # the gradient of `prod` waits for a GPU
    return length * width * height


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
        self.assigner, self.loss = assigner, loss
        self.weights = (loss.classification, loss.box, loss.direction)

    def forward(self, predictions: AnyPredictions, boxes: Tensor, labels: Tensor) -> Losses:
        """boxes [B, M, 7] float32, 9 with velocities; labels [B, M] from 1, 0: there is no box."""
        return self.losses(predictions, boxes, self.assigner.match(boxes, labels))

    def losses(self, predictions: AnyPredictions, boxes: Tensor, match: Match) -> Losses:
        """boxes [B, M, 7 or 9] float32 and their match with the anchors, see
        `TargetAssigner.match`."""
        truth = self.assigner.anchors, boxes[..., :7].contiguous(), *match
        losses = Losses(*anchor_losses(*predictions[:3], *truth, self.weights))
        further = self._further(predictions, boxes, match)
        if further is None:
            return losses
        rows = further.detach()
        return losses._replace(
            total=losses.total + further.sum(),
            classification=losses.classification + further[0].sum(),
            box=losses.box + further[1].sum(),
            by_class=torch.cat((losses.by_class + rows[:3], rows[3:])),
        )

    def gradients(
        self, predictions: AnyPredictions, boxes: Tensor, match: Match, of_total: Tensor
    ) -> AnyPredictions:
        """The gradients of the predictions; of_total: float32 scalar, the gradient of the total."""
        truth = self.assigner.anchors, boxes[..., :7].contiguous(), *match
        found = anchor_loss_gradients(*predictions[:3], *truth, self.weights, of_total)
        with torch.enable_grad():
            own = [prediction.detach().requires_grad_() for prediction in predictions]
            further = self._further(type(predictions)(*own), boxes, match)
        if further is None:
            return Predictions(*found)
        more = torch.autograd.grad(further.sum(), own, of_total, allow_unused=True)
        sums = (a if b is None else a + b for a, b in zip(found, more, strict=False))
        return type(predictions)(*sums, *more[3:])

    def _further(self, predictions: AnyPredictions, boxes: Tensor, match: Match) -> Tensor | None:
        """What other losses add to `Losses.by_class`, None where there are none."""
        (logits, residuals), moving = predictions[:2], isinstance(predictions, MovingPredictions)
        if not (self.loss.quality or self.loss.overlap or moving):
            return None
        if boxes.shape[1] == 0:
            boxes = boxes.new_zeros(len(boxes), 1, boxes.shape[2])  # rows to gather
        anchors = self.assigner.anchors
        rows = [torch.zeros(logits.shape[2], device=logits.device)] * 3
        if self.loss.quality or self.loss.overlap:
            positives = positives_of(residuals, anchors, boxes[..., :7], match)
            if self.loss.quality:
                rows[0] = self.weights[0] * varifocal_change(logits, anchors, positives, match)
            if self.loss.overlap:
                rows[1] = self.loss.overlap * overlap_loss(anchors, positives, match)
        if isinstance(predictions, MovingPredictions):
            velocities = predictions.velocities
            rows.append(self.loss.velocity * velocity_loss(velocities, anchors, boxes, match))
        return torch.stack(rows)


def build_criterion(config: Config) -> Criterion:
    """The criterion of a configuration; move it to the model's device."""
    anchors = build_anchors(config)
    matched, unmatched = zip(*((c.matched, c.unmatched) for c in config.classes), strict=True)
    return Criterion(TargetAssigner(anchors, matched, unmatched), config.loss)
