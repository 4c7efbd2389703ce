"""Varifocal loss (Zhang et al., VarifocalNet, CVPR 2021) of positive anchors: scores learn the
overlap that their boxes have."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from ops import Match, paired_overlap_bev
from ops.box_coder import decode

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

    The mask has the first `MOST` positives of each frame. The 3-D IoU is that of their predicted
    box with their own, 0 for all other anchors. Shapes are fixed: nothing waits for a GPU.
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
