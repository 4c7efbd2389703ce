"""From the predictions of all anchors to boxes: scores, the best of them, decoding, suppression."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ops.cuda import select_boxes as cuda
from ops.dispatch import on_kernels
from ops.reference import select_boxes as reference
from ops.rulebook import CellValues


class SelectedBoxes(NamedTuple):
    """Boxes of each frame, best first, in a fixed number of rows; zeros behind the last one."""

    boxes: Tensor  # [B, after_nms, 7] float32 (x, y, z, l, w, h, yaw)
    scores: Tensor  # [B, after_nms] float32
    labels: Tensor  # [B, after_nms] int64, from 1
    count: Tensor  # type: ignore[assignment]  # [B] int32: boxes (hides tuple.count)


@torch.no_grad()
def select_boxes(
    class_logits: Tensor,  # [B, A, K]
    box_residuals: Tensor,  # [B, A, 7]
    direction_logits: Tensor,  # [B, A, 2]
    anchors: Tensor,  # [A, 7] float32
    score: float,
    before_nms: int,
    iou_threshold: float,
    after_nms: int,
    per_class: bool = False,
) -> SelectedBoxes:
    """The score of an anchor is its best class's: the greatest sigmoid of a logit, of equal ones
    the first. Anchors that score less than `score` are left out. The `before_nms` best of the rest
    become boxes, of equal scores the lower anchors: they are decoded, and turned into the half turn
    that their direction says. `nms` keeps up to `after_nms` of them; per_class: among boxes of one
    class only.

    A logit that is not a number scores 0, and a residual that is not finite is 0. The kernels
    never wait for the device and may be captured in a CUDA graph; their numbers differ from the
    reference's by rounding.
    """
    batch, count, _ = class_logits.shape
    for name, tensor, width in (
        ("box_residuals", box_residuals, 7),
        ("direction_logits", direction_logits, 2),
    ):
        if tensor.shape != (batch, count, width):
            expected = [batch, count, width]
            raise ValueError(f"{name}: expected {expected}, got {list(tensor.shape)}")
    _check(anchors, count, before_nms, after_nms)
    backend = cuda if on_kernels(class_logits) else reference
    limits = score, min(before_nms, count), iou_threshold, after_nms, per_class
    predictions = class_logits, box_residuals, direction_logits
    return SelectedBoxes(*backend.select_boxes(*predictions, anchors, *limits))


@torch.no_grad()
def select_boxes_of_cells(
    cells: CellValues,
    anchors: Tensor,  # [A, 7] float32
    score: float,
    before_nms: int,
    iou_threshold: float,
    after_nms: int,
    per_class: bool = False,
) -> SelectedBoxes:
    """As `select_boxes`, to the bit, of the predictions that `bev_spread` would write: groups of
    class logits, residuals and directions, of the anchors of a cell side by side. Only those that
    are needed are computed."""
    _, y, x = cells.rows[0].shape
    count = y * x * cells.factors[0] ** 2 * (cells.channels[2] // 2)
    _check(anchors, count, before_nms, after_nms)
    backend = cuda if on_kernels(anchors) else reference
    limits = score, min(before_nms, count), iou_threshold, after_nms, per_class
    return SelectedBoxes(*backend.select_boxes_of_cells(cells, anchors, *limits))


def _check(anchors: Tensor, count: int, before_nms: int, after_nms: int) -> None:
    if anchors.shape != (count, 7) or anchors.dtype != torch.float32:
        raise ValueError(
            f"anchors: expected [{count}, 7] float32, got {list(anchors.shape)} {anchors.dtype}"
        )
    for name, value in (("before_nms", before_nms), ("after_nms", after_nms)):
        if value < 1:
            raise ValueError(f"{name} is {value}: it must be at least 1")
