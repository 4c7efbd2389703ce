"""Varifocal loss (Zhang et al., VarifocalNet, CVPR 2021) of positive anchors: scores learn the
overlap that their boxes have."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ops import Match, paired_overlap_bev
from ops.box_coder import decode

MOST = 1024  # positives of a frame; beyond them the focal loss stays


class Positives(NamedTuple):
    """The first positive anchors of each frame, up to `MOST`, in tensors of fixed shape."""

    anchors: Tensor  # [B, N] int64, all different
    real: Tensor  # [B, N] bool: those that are positive; the others fill up
    overlaps: Tensor  # [B, N] 3-D IoU of the predicted box with the anchor's own; 0 if not real
    classes: Tensor  # [B, N] int64 from 0


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
    found = find_positives(box_residuals, anchors, boxes, match)
    kinds = class_logits.shape[-1]
    # No two rows name one place, so that the gradient's sums have one term each.
    place = found.anchors * kinds + found.classes
    logits = class_logits.flatten(1).gather(1, place).float()
    share = 1 / match.positives.clamp(min=1).float() / len(match.positives)  # [B]
    change = share[:, None] * (varifocal(logits, found.overlaps) - focal(logits)) * found.real
    is_class = found.classes[..., None] == torch.arange(kinds, device=logits.device)
    return (change[..., None] * is_class).sum((0, 1))


def varifocal(logits: Tensor, overlaps: Tensor) -> Tensor:
    """Loss [...] of positives: q * cross entropy of the score with q, the overlap."""
    entropy = F.binary_cross_entropy_with_logits(logits, overlaps, reduction="none")
    return overlaps * entropy


def focal(logits: Tensor) -> Tensor:
    """Focal loss [...] of positives, as `ops.anchor_losses` has it."""
    return 0.25 * torch.sigmoid(-logits) ** 2 * F.softplus(-logits)


@torch.no_grad()
def find_positives(residuals: Tensor, anchors: Tensor, boxes: Tensor, match: Match) -> Positives:
    """residuals [B, A, 7]; anchors [Y, X, K, R, 7]; boxes [B, M, 7]. Nothing waits for a GPU."""
    kinds, turns = anchors.shape[2:4]
    batch, count = match.rows.shape
    order = torch.arange(count, 0, -1, device=anchors.device, dtype=torch.int32)
    keys = torch.where(match.rows >= 0, order + count, order)  # all different: no ties
    index = keys.topk(min(MOST, count), dim=1).indices
    rows = match.rows.long().gather(1, index)
    real = rows >= 0
    overlaps = torch.zeros_like(real, dtype=torch.float32)
    if boxes.shape[1] > 0:
        codes = residuals.float().gather(1, index[..., None].expand(-1, -1, 7))
        # A value that is not finite is the box loss's to show; here it must not stop anything.
        found = decode(codes.nan_to_num().clamp(-10, 10), anchors.reshape(-1, 7)[index])
        own = boxes.gather(1, rows.clamp(min=0)[..., None].expand(-1, -1, 7))
        overlaps = paired_iou_3d(found.reshape(-1, 7), own.reshape(-1, 7)).view(batch, -1)
    return Positives(index, real, torch.where(real, overlaps, 0.0), index // turns % kinds)


def paired_iou_3d(a: Tensor, b: Tensor) -> Tensor:
    """IoU [P] of the volumes of row p of a and row p of b, [P, 7] each."""
    top = torch.minimum(a[:, 2] + a[:, 5] / 2, b[:, 2] + b[:, 5] / 2)
    bottom = torch.maximum(a[:, 2] - a[:, 5] / 2, b[:, 2] - b[:, 5] / 2)
    shared = paired_overlap_bev(a, b) * (top - bottom).clamp(min=0)
    volumes = a[:, 3:6].prod(1) + b[:, 3:6].prod(1)
    return (shared / (volumes - shared).clamp(min=1e-6)).clamp(0, 1)
