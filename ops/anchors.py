"""Anchors: box coder, target assignment, and the losses of SECOND (Yan, Mao and Li 2018).

Anchors are [Y, X, K, R, 7]: rows of one y, columns of one x, classes, rotations. They are numbered
in that order: A = Y * X * K * R. Labels count the classes from 1.

The box coder writes boxes as residuals to anchors, and a heading as one of the two bins of the
direction classifier: front or back. Target assignment matches anchors with ground-truth boxes. The
losses are focal loss of the class, smooth-L1 with sine error of the box, and cross entropy of the
direction. The kernels are in csrc/anchors.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from millisecond.ops.dispatch import on_kernels
from millisecond.ops.geometry import check_tensor, same_device
from millisecond.ops.library import fake

DIRECTION_OFFSET = 0.78539  # radians: the border of the two bins, a heading that few objects have
LARGEST_LOG_SIZE = 10.0  # limit of log(side / anchor's side): keeps wild predictions finite
MATCH_BACKGROUND, MATCH_IGNORED = -1, -2
LABEL_BACKGROUND, LABEL_IGNORED = 0, -1
PREDICTIONS = "class_logits", "box_residuals", "direction_logits"  # of a network

# ---- box coder ----------------------------------------------------------------------------------


def limit_period(value: Tensor, offset: float, period: float) -> Tensor:
    """The value moved by whole periods into [-offset * period, (1 - offset) * period)."""
    return value - torch.floor(value / period + offset) * period


def encode(boxes: Tensor, anchors: Tensor) -> Tensor:
    """Residuals [..., 7] of boxes [..., 7] to anchors [..., 7]; sizes must be positive."""
    _check_coded("boxes", boxes, anchors)
    xyz, size, yaw = boxes.split((3, 3, 1), dim=-1)
    anchor_xyz, anchor_size, anchor_yaw = anchors.split((3, 3, 1), dim=-1)
    return torch.cat(
        ((xyz - anchor_xyz) / _scale(anchor_size), torch.log(size / anchor_size), yaw - anchor_yaw),
        dim=-1,
    )


def decode(residuals: Tensor, anchors: Tensor) -> Tensor:
    """Boxes [..., 7] from residuals [..., 7] to anchors [..., 7]: the inverse of `encode`."""
    _check_coded("residuals", residuals, anchors)
    xyz, size, yaw = residuals.split((3, 3, 1), dim=-1)
    anchor_xyz, anchor_size, anchor_yaw = anchors.split((3, 3, 1), dim=-1)
    return torch.cat(
        (
            xyz * _scale(anchor_size) + anchor_xyz,
            torch.exp(size.clamp(max=LARGEST_LOG_SIZE)) * anchor_size,
            yaw + anchor_yaw,
        ),
        dim=-1,
    )


def _check_coded(name: str, values: Tensor, anchors: Tensor) -> None:
    same_device(**{name: values}, anchors=anchors)
    if not (values.is_floating_point() and anchors.is_floating_point()):
        raise ValueError(f"{name}: {values.dtype} with anchors {anchors.dtype}, not of floats")
    pairs = zip(reversed(values.shape[:-1]), reversed(anchors.shape[:-1]), strict=False)
    fit = all(1 in pair or pair[0] == pair[1] for pair in pairs)
    if values.shape[-1:] != (7,) or anchors.shape[-1:] != (7,) or not fit:
        raise ValueError(
            f"{name}: expected [..., 7] as the anchors, got {list(values.shape)} and anchors "
            f"{list(anchors.shape)}"
        )


def _scale(anchor_size: Tensor) -> Tensor:
    length, width, height = anchor_size.split(1, dim=-1)
    diagonal = torch.sqrt(length**2 + width**2)
    return torch.cat((diagonal, diagonal, height), dim=-1)


def direction_bin(yaw: Tensor) -> Tensor:
    """The half turn (0 or 1, int64) that a yaw in radians lies in."""
    turned = limit_period(yaw - DIRECTION_OFFSET, 0.0, 2 * math.pi)
    return torch.floor(turned / math.pi).long().clamp(0, 1)


def apply_direction(yaw: Tensor, bins: Tensor) -> Tensor:
    """The yaw turned by a multiple of pi, so that it lies in the half turn of the given bin."""
    axis = limit_period(yaw - DIRECTION_OFFSET, 0.0, math.pi)
    return axis + DIRECTION_OFFSET + math.pi * bins.to(yaw.dtype)


# ---- target assignment --------------------------------------------------------------------------


class Match(NamedTuple):
    """The ground-truth box that each anchor is matched with."""

    rows: Tensor  # [B, A] int32: row of the anchor's box, -1 background, -2 ignored
    positives: Tensor  # [B] int32: number of anchors that have a box


class Targets(NamedTuple):
    """Training targets of the anchors."""

    labels: Tensor  # [B, A] int64: class from 1, 0 background, -1 ignored
    residuals: Tensor  # [B, A, 7], zero where the label is not positive
    yaw: Tensor  # [B, A] heading in radians of the matched box, zero where not positive


@torch.no_grad()
def anchor_sides(anchors: Tensor) -> tuple[Tensor, Tensor]:  # [Y, X, K, R, 7]
    """Lower and upper x [X, K, R, 2] of the columns and y [Y, K, R, 2] of the rows of anchors, as
    axis-aligned boxes."""
    check_tensor("anchors", anchors, ("Y", "X", "K", "R", 7), "of floats")
    if anchors.numel() == 0:
        raise ValueError(f"anchors: expected one or more, got {list(anchors.shape)}")
    low, high = _aligned_corners(anchors)
    sides = torch.stack((low, high), dim=-1)  # [Y, X, K, R, 2 (x, y), 2]
    return sides[0, :, ..., 0, :].contiguous(), sides[:, 0, ..., 1, :].contiguous()


@torch.no_grad()
def match_anchors(
    columns: Tensor,  # [X, K, R, 2] of `anchor_sides`
    rows: Tensor,  # [Y, K, R, 2]
    thresholds: Tensor,  # [K, 2] matched, unmatched
    boxes: Tensor,  # [B, M, 7]
    labels: Tensor,  # [B, M] int64, from 1; others: no box
) -> Match:
    """Match anchors and ground truth of the same class by overlap in bird's-eye view.

    The overlap is computed from the axis-aligned boxes nearest to the rotated boxes. An anchor is
    positive from an overlap of `matched` on and background below `unmatched`; in between it is
    ignored. The best anchors of a box, ties included, are positive too, however small their overlap
    is, unless it is zero. A positive anchor gets the box that *it* overlaps most (the first of
    equals), even where it is positive as the best anchor of another box.
    """
    check_tensor("boxes", boxes, ("B", "M", 7), "of floats")
    check_tensor("labels", labels, boxes.shape[:2])
    kinds = tuple(columns.shape[1:])
    for name, sides in (("columns", columns), ("rows", rows)):
        if not sides.is_floating_point():
            raise ValueError(f"{name}: expected a floating dtype, got {sides.dtype}")
        if sides.ndim != 4 or 0 in sides.shape or tuple(sides.shape[1:]) != (*kinds[:-1], 2):
            raise ValueError(
                f"{name}: expected [N, K, R, 2] of K classes and R rotations, with K and R of "
                f"columns, got {list(sides.shape)}"
            )
    check_tensor("thresholds", thresholds, (kinds[0], 2))
    same_device(boxes=boxes, labels=labels, columns=columns, rows=rows, thresholds=thresholds)
    if boxes.shape[1] == 0:
        boxes, labels = _one_row_at_least(boxes), labels.new_zeros(len(labels), 1)
    if not on_kernels(boxes):
        return match_anchors_definition(columns, rows, thresholds, boxes, labels)
    found = torch.ops.millisecond.match_anchors(
        columns, rows, thresholds, boxes.contiguous(), labels.contiguous()
    )
    return Match(*found)


def match_anchors_definition(
    columns: Tensor, rows: Tensor, thresholds: Tensor, boxes: Tensor, labels: Tensor
) -> Match:
    """`match_anchors` in plain torch; at least one box."""
    parts = [
        _match(columns[:, k], rows[:, k], boxes, labels == k + 1, *limits)
        for k, limits in enumerate(thresholds.tolist())
    ]
    match = torch.stack(parts, dim=3).flatten(1)
    return Match(match, (match >= 0).sum(1, dtype=torch.int32))


def _match(
    columns: Tensor,  # [X, R, 2]
    rows: Tensor,  # [Y, R, 2]
    boxes: Tensor,
    valid: Tensor,
    matched: float,
    unmatched: float,
) -> Tensor:  # [B, Y, X, R] int32
    """The match of the anchors of one class with the boxes that are valid [B, M]."""
    overlap = _aligned_iou(columns, rows, boxes, valid)
    best, row = overlap.max(dim=1)
    of_box = overlap.amax(dim=(2, 3, 4), keepdim=True)
    of_box = torch.where(of_box > 0, of_box, torch.inf)  # no anchor is the best of a box it misses
    positive = (best >= matched) | (overlap == of_box).any(dim=1)
    others = torch.where(best < unmatched, MATCH_BACKGROUND, MATCH_IGNORED)
    return torch.where(positive, row, others).int()


def _aligned_iou(columns: Tensor, rows: Tensor, boxes: Tensor, valid: Tensor) -> Tensor:
    """IoU [B, M, Y, X, R] of anchors and boxes [B, M, 7], each as its nearest axis-aligned box. The
    anchors' lower and upper x are `columns` [X, R, 2], their y are `rows` [Y, R, 2].

    Boxes that are not valid [B, M] overlap nothing.
    """
    lower, upper = _aligned_corners(boxes)  # [B, M, 2]
    x = _shared(columns, lower[..., 0], upper[..., 0]) * valid[..., None, None]  # [B, M, X, R]
    y = _shared(rows, lower[..., 1], upper[..., 1])  # [B, M, Y, R]
    intersection = x[:, :, None] * y[:, :, :, None]
    areas = _length(columns) * _length(rows)[:, None]  # [Y, X, R]
    areas = areas + (upper - lower).prod(-1)[..., None, None, None]
    return intersection.div_(areas.sub_(intersection).clamp_(min=1e-6))


def _length(sides: Tensor) -> Tensor:
    return sides[..., 1] - sides[..., 0]


def _shared(sides: Tensor, lower: Tensor, upper: Tensor) -> Tensor:
    """Length [B, M, N, R] that sides [N, R, 2] share with intervals [B, M]."""
    lower, upper = lower[..., None, None], upper[..., None, None]
    low, high = sides.unbind(-1)
    return (torch.minimum(high, upper) - torch.maximum(low, lower)).clamp_(min=0)


def _aligned_corners(boxes: Tensor) -> tuple[Tensor, Tensor]:
    """Lower and upper corners [..., 2] of the axis-aligned boxes nearest to the rotated ones."""
    turn = limit_period(boxes[..., 6:7], 0.5, math.pi).abs()
    size = torch.where(turn < math.pi / 4, boxes[..., 3:5], boxes[..., 3:5].flip(-1))
    half = size / 2
    return boxes[..., :2] - half, boxes[..., :2] + half


@fake("match_anchors")
def _fake_match_anchors(columns, rows, thresholds, boxes, labels) -> tuple[Tensor, Tensor]:
    anchors = rows.shape[0] * columns.shape[0] * math.prod(columns.shape[1:3])
    match = boxes.new_empty(len(boxes), anchors, dtype=torch.int32)
    return match, boxes.new_empty(len(boxes), dtype=torch.int32)


@torch.no_grad()
def anchor_targets(
    anchors: Tensor,  # [Y, X, K, R, 7]
    boxes: Tensor,  # [B, M, 7]
    rows: Tensor,  # [B, A] int32 of `match_anchors`
) -> Targets:
    """Training targets of the anchors, given the rows of their boxes. Runs in plain torch."""
    check_tensor("anchors", anchors, ("Y", "X", "K", "R", 7))
    check_tensor("boxes", boxes, ("B", "M", 7))
    if not (anchors.is_floating_point() and boxes.is_floating_point()):
        raise ValueError(
            f"anchors: expected floating dtypes, got {anchors.dtype} and boxes {boxes.dtype}"
        )
    check_tensor("rows", rows, (len(boxes), anchors.numel() // 7))
    same_device(anchors=anchors, boxes=boxes, rows=rows)
    most = max(boxes.shape[1], 1) - 1
    if rows.is_cpu and rows.numel() and rows.max() > most:  # a GPU would have to wait
        raise ValueError(f"rows: expected rows of boxes up to {most}, got {int(rows.max())}")
    return anchor_targets_definition(anchors, boxes, rows)


@torch.no_grad()
def anchor_targets_definition(anchors: Tensor, boxes: Tensor, rows: Tensor) -> Targets:
    """`anchor_targets` without checks."""
    _, _, classes, rotations, _ = anchors.shape
    boxes, anchors = _one_row_at_least(boxes), anchors.reshape(1, -1, 7)
    number = torch.arange(anchors.shape[1], device=boxes.device)
    own_label = number // rotations % classes + 1
    positive = rows >= 0
    others = torch.where(rows == MATCH_BACKGROUND, LABEL_BACKGROUND, LABEL_IGNORED)
    labels = torch.where(positive, own_label, others)
    box = rows.clamp(min=0).long()
    matched = boxes.gather(1, box[..., None].expand(-1, -1, 7))
    matched = torch.where(positive[..., None], matched, anchors)
    yaw = torch.where(positive, matched[..., 6], 0.0)
    return Targets(labels, encode(matched, anchors), yaw)


def _one_row_at_least(boxes: Tensor) -> Tensor:
    """boxes [B, M, 7]; without any, one row of zeros."""
    return boxes if boxes.shape[1] > 0 else boxes.new_zeros(len(boxes), 1, 7)


# ---- losses -------------------------------------------------------------------------------------


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

    Each loss is a sum over the anchors of a frame, divided by the frame's number of positives (at
    least 1), averaged over the batch and weighted. All predictions have one dtype. Below float64,
    the losses and all intermediate results are float32.
    """
    predictions = class_logits, box_residuals, direction_logits
    _check_losses(predictions, anchors, boxes, match, positives, weights)
    weights = [float(weight) for weight in weights]
    if not on_kernels(class_logits):
        return anchor_losses_definition(*predictions, anchors, boxes, match, positives, weights)
    truth = anchors, _one_row_at_least(boxes), match, positives
    return AnchorLosses.apply(*predictions, *truth, weights)


def anchor_losses_definition(
    class_logits: Tensor,
    box_residuals: Tensor,
    direction_logits: Tensor,
    anchors: Tensor,
    boxes: Tensor,
    match: Tensor,
    positives: Tensor,
    weights: Sequence[float],
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """`anchor_losses` in plain torch."""
    logits, residuals, directions = (
        p if p.dtype == torch.float64 else p.float()
        for p in (class_logits, box_residuals, direction_logits)
    )
    labels, target_residuals, yaw = anchor_targets_definition(anchors, boxes, match)
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
    of_total: Tensor,  # scalar, float32
) -> tuple[Tensor, ...]:
    """The gradients of the predictions from the gradient of the total loss of `anchor_losses`. The
    losses themselves are not needed."""
    predictions = class_logits, box_residuals, direction_logits
    _check_losses(predictions, anchors, boxes, match, positives, weights)
    if not on_kernels(class_logits):
        truth = anchors, boxes, match, positives
        return anchor_loss_gradients_definition(*predictions, *truth, weights, of_total)
    dense = (p.detach().contiguous() for p in predictions)
    truth = anchors, _one_row_at_least(boxes).contiguous(), match, positives
    return torch.ops.millisecond.anchor_losses_backward(
        of_total, None, None, None, *dense, *truth, weights
    )


def anchor_loss_gradients_definition(
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
    """`anchor_loss_gradients` in plain torch."""
    predictions = class_logits, box_residuals, direction_logits
    logits, residuals, directions = (values.detach().requires_grad_() for values in predictions)
    with torch.enable_grad():
        truth = anchors, boxes, match, positives
        total, *_ = anchor_losses_definition(logits, residuals, directions, *truth, weights)
    leaves = logits, residuals, directions
    return torch.autograd.grad(total, leaves, of_total.to(total.dtype))


def _check_losses(
    predictions: tuple[Tensor, Tensor, Tensor],
    anchors: Tensor,
    boxes: Tensor,
    match: Tensor,
    positives: Tensor,
    weights: Sequence[float],
) -> None:
    check_tensor("anchors", anchors, ("Y", "X", "K", "R", 7))
    check_tensor("boxes", boxes, ("B", "M", 7))
    batch, count = len(boxes), anchors.numel() // 7
    named = dict(zip(PREDICTIONS, predictions, strict=True))
    for (name, tensor), width in zip(named.items(), (anchors.shape[2], 7, 2), strict=True):
        check_tensor(name, tensor, (batch, count, width))
    check_tensor("match", match, (batch, count))
    check_tensor("positives", positives, (batch,))
    if not all(tensor.is_floating_point() for tensor in predictions):
        kinds = ", ".join(str(tensor.dtype) for tensor in predictions)
        raise ValueError(f"{', '.join(PREDICTIONS)}: not of floats: {kinds}")
    wide = torch.float64 if predictions[0].dtype == torch.float64 else torch.float32
    for name, tensor in (("anchors", anchors), ("boxes", boxes)):
        if tensor.dtype != wide:
            raise ValueError(f"{name}: expected {wide}, got {tensor.dtype}")
    same_device(**named, anchors=anchors, boxes=boxes, match=match, positives=positives)
    if len(weights) != 3:
        raise ValueError(f"weights: expected 3 (class, box, direction), got {weights}")


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

    For the yaw it is the sine-error loss, smooth-L1 of sin(residual - target). A box that is turned
    by pi has the same loss; the direction classifier distinguishes the two.
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


class AnchorLosses(torch.autograd.Function):
    """Losses; their gradients are computed together, in one call."""

    @staticmethod
    def forward(ctx, logits, residuals, directions, anchors, boxes, match, positives, weights):
        predictions = (p.contiguous() for p in (logits, residuals, directions))
        tensors = (*predictions, anchors, boxes.contiguous(), match, positives)
        losses = torch.ops.millisecond.anchor_losses(*tensors, weights)
        ctx.save_for_backward(*tensors)
        ctx.weights = weights
        ctx.set_materialize_grads(False)
        by_class = losses[4:].view(3, -1)
        ctx.mark_non_differentiable(by_class)
        return *losses[:4].unbind(), by_class

    @staticmethod
    @once_differentiable
    def backward(ctx, *of_losses):
        of_predictions = torch.ops.millisecond.anchor_losses_backward(
            *of_losses[:4], *ctx.saved_tensors, ctx.weights
        )
        return *of_predictions, None, None, None, None, None


@fake("anchor_losses")
def _fake_anchor_losses(logits, residuals, directions, anchors, boxes, *_) -> Tensor:
    return boxes.new_empty(4 + 3 * logits.shape[2])


@fake("anchor_losses_backward")
def _fake_anchor_losses_backward(
    total, classification, box, direction, logits, residuals, directions, *_
) -> tuple[Tensor, Tensor, Tensor]:
    return torch.empty_like(logits), torch.empty_like(residuals), torch.empty_like(directions)
