"""Target assignment: anchors are matched with ground-truth boxes and get their training targets.

Anchors are [Y, X, K, R, 7]: rows of one y, columns of one x, classes, rotations. They are numbered
in that order: A = Y * X * K * R. Labels count the classes from 1.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ops.cuda import anchors as cuda
from ops.dispatch import on_kernels
from ops.reference import anchors as reference


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
    low, high = reference.aligned_corners(anchors)
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

    The overlap is that of the axis-aligned boxes nearest to the rotated ones. An anchor is positive
    from `matched` on and background below `unmatched`; in between it is ignored. The best anchors
    of a box, ties included, are positive too, however small that overlap is, unless it is zero. A
    positive anchor gets the box that *it* overlaps most (the first of equals), even where it is
    positive as the best anchor of another box.
    """
    if boxes.ndim != 3 or boxes.shape[2] != 7:
        raise ValueError(f"boxes: expected [B, M, 7], got {list(boxes.shape)}")
    if labels.shape != boxes.shape[:2]:
        raise ValueError(f"labels: expected {list(boxes.shape[:2])}, got {list(labels.shape)}")
    if boxes.shape[1] == 0:
        boxes, labels = one_row_at_least(boxes), labels.new_zeros(len(labels), 1)
    backend = cuda if on_kernels(boxes) else reference
    return Match(*backend.match_anchors(columns, rows, thresholds, boxes, labels))


@torch.no_grad()
def anchor_targets(
    anchors: Tensor,  # [Y, X, K, R, 7]
    boxes: Tensor,  # [B, M, 7]
    rows: Tensor,  # [B, A] int32 of `match_anchors`
) -> Targets:
    """Training targets of the anchors, given the rows of their boxes."""
    return Targets(*reference.anchor_targets(anchors, one_row_at_least(boxes), rows))


def one_row_at_least(boxes: Tensor) -> Tensor:
    """boxes [B, M, 7]; without any, one row of zeros."""
    return boxes if boxes.shape[1] > 0 else boxes.new_zeros(len(boxes), 1, 7)
