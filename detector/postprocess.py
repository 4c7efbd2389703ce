"""From predictions to boxes: score threshold, decoding, direction, NMS."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from millisecond.data.boxes import NamedDetections
from millisecond.detector.anchors import build_anchors
from millisecond.detector.config import Config
from millisecond.detector.models.anchor_head import Predictions
from millisecond.ops.bev import CellValues
from millisecond.ops.boxes import SelectedBoxes, select_boxes, select_boxes_of_cells


class Detections(NamedTuple):
    """Boxes of one frame, best first."""

    boxes: Tensor  # [n, 7] (x, y, z, l, w, h, yaw), LiDAR frame, metres and radians
    scores: Tensor  # [n] in [0, 1]
    labels: Tensor  # [n] int64, from 1 in the order of the configuration's classes

    def named(self, class_names: Sequence[str]) -> NamedDetections:
        """The same on the host, with the names of the classes instead of their labels."""
        boxes, scores, labels = (tensor.cpu().numpy() for tensor in self)
        return NamedDetections(boxes, scores, tuple(class_names[label - 1] for label in labels))


class PostProcessor(nn.Module):
    """Best class of each anchor, score threshold, best boxes, NMS."""

    anchors: Tensor  # [A, 7]

    def __init__(
        self,
        anchors: Tensor,
        score: float,
        before_nms: int,
        iou: float,
        after_nms: int,
        per_class: bool = False,
    ):
        """anchors: [Y, X, K, R, 7]. per_class: boxes of different classes suppress nothing."""
        super().__init__()
        self.register_buffer("anchors", anchors.reshape(-1, 7), persistent=False)
        self.score, self.iou, self.after_nms = score, iou, after_nms
        self.before_nms = min(before_nms, len(self.anchors))
        self.per_class = per_class

    @torch.no_grad()
    def forward(self, predictions: Predictions | CellValues) -> list[Detections]:
        """Detections of each frame."""
        boxes, scores, labels, count = self.select(predictions)
        numbers = count.tolist()  # sync: the number of boxes is what the caller asked for
        return [
            Detections(boxes[b, :n], scores[b, :n], labels[b, :n]) for b, n in enumerate(numbers)
        ]

    def select(self, predictions: Predictions | CellValues) -> SelectedBoxes:
        """Detections of all frames in tensors of fixed shape; on a GPU nothing waits for it."""
        limits = self.score, self.before_nms, self.iou, self.after_nms, self.per_class
        if isinstance(predictions, CellValues):
            return select_boxes_of_cells(predictions, self.anchors, *limits)
        logits, residuals, directions = predictions
        return select_boxes(logits, residuals, directions, self.anchors, *limits)


def build_postprocessor(config: Config) -> PostProcessor:
    """The postprocessor of a configuration; move it to the model's device."""
    post = config.postprocess
    limits = post.score, post.before_nms, post.iou, post.after_nms, post.per_class
    return PostProcessor(build_anchors(config), *limits)
