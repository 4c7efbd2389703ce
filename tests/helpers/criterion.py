"""A small criterion, and scenes and predictions for it."""

import torch
from torch import Tensor

from millisecond.detector.anchors import make_anchors
from millisecond.detector.config import LossConfig
from millisecond.detector.models.second import Predictions
from millisecond.detector.training.losses import Criterion, TargetAssigner
from millisecond.ops import Targets, anchor_targets

SIZES = torch.tensor([(3.9, 1.6, 1.56), (0.8, 0.6, 1.73), (1.76, 0.6, 1.73)])
BOTTOMS = -1.78, -0.6, -0.6
RANGE = 0, -8, -3, 12.8, 8, 1
SHAPE = 41, 33  # cells in y and x: no multiple of a block
WEIGHTS = 1.0, 2.0, 0.2


def build(classes: int = 3, shape: tuple[int, int] = SHAPE) -> Criterion:
    anchors = make_anchors(RANGE, shape, SIZES[:classes].tolist(), BOTTOMS[:classes])
    matched, unmatched = (0.6, 0.5, 0.5)[:classes], (0.45, 0.35, 0.35)[:classes]
    return Criterion(TargetAssigner(anchors, matched, unmatched), LossConfig(*WEIGHTS))


def targets_of(assigner: TargetAssigner, boxes: Tensor, labels: Tensor) -> Targets:
    """What anchors are trained for by boxes [B, M, 7] and labels [B, M]."""
    boxes = boxes.float()
    return anchor_targets(assigner.anchors, boxes, assigner.match(boxes, labels).rows)


def scenes(batch: int, boxes: int, seed: int, area=RANGE) -> tuple[Tensor, Tensor]:
    """Boxes [B, M, 7] of all classes, some beyond the area, and labels; a fifth is padding."""
    generator = torch.Generator().manual_seed(seed)
    uniform = lambda *shape: torch.rand(*shape, generator=generator)  # noqa: E731
    labels = torch.randint(0, 4, (batch, boxes), generator=generator)
    labels[uniform(batch, boxes) < 0.2] = 0
    low, high = torch.tensor(area[:3]) - 1.0, torch.tensor(area[3:]) + 1.0
    size = SIZES[(labels - 1).clamp(min=0)] * (0.8 + 0.4 * uniform(batch, boxes, 3))
    yaw = 14 * uniform(batch, boxes, 1) - 7
    where = low + uniform(batch, boxes, 3) * (high - low)
    return torch.cat((where, size, yaw), dim=-1), labels


def random_predictions(criterion: Criterion, batch: int, dtype: torch.dtype) -> Predictions:
    classes = criterion.assigner.anchors.shape[2]
    count = criterion.assigner.anchors.numel() // 7
    generator = torch.Generator().manual_seed(batch)
    logits, residuals, directions = (
        torch.randn(batch, count, width, generator=generator) for width in (classes, 7, 2)
    )
    return Predictions(*(p.to(dtype) for p in (2 * logits - 2, residuals / 2, directions)))
