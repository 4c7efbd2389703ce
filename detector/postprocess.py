"""From predictions to boxes: score threshold, decoding, direction, NMS."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from data.detections import NamedDetections
from detector.anchors import build_anchors
from detector.config import Config
from detector.models.anchor_head import Predictions
from ops import apply_direction, decode, nms


class Detections(NamedTuple):
    """Boxes of one frame, best first."""

    boxes: Tensor  # [n, 7] (x, y, z, l, w, h, yaw), LiDAR frame, metres and radians
    scores: Tensor  # [n] in [0, 1]
    labels: Tensor  # [n] int64, from 1 in the order of the configuration's classes

    def named(self, class_names: Sequence[str]) -> NamedDetections:
        """The same on the host, with the names of the classes instead of their labels."""
        boxes, scores, labels = (tensor.cpu().numpy() for tensor in self)
        return NamedDetections(boxes, scores, tuple(class_names[label - 1] for label in labels))


class Padded(NamedTuple):
    """Boxes of one frame in a fixed number of rows, of which the first `count` hold something."""

    boxes: Tensor  # [after_nms, 7]
    scores: Tensor  # [after_nms]
    labels: Tensor  # [after_nms] int64, 0 = no box
    count: Tensor  # type: ignore[assignment]  # [1] int32 (hides tuple.count)


class PostProcessor(nn.Module):
    """Best class of each anchor, score threshold, best boxes, NMS over all classes together."""

    anchors: Tensor  # [A, 7]

    def __init__(self, anchors: Tensor, score: float, before_nms: int, iou: float, after_nms: int):
        """anchors: [Y, X, K, R, 7]."""
        super().__init__()
        self.register_buffer("anchors", anchors.reshape(-1, 7), persistent=False)
        self.score, self.iou, self.after_nms = score, iou, after_nms
        self.before_nms = min(before_nms, len(self.anchors))

    @torch.no_grad()
    def forward(self, predictions: Predictions) -> list[Detections]:
        """Detections of each frame."""
        detections = []
        for frame in zip(*predictions, strict=True):
            boxes, scores, labels, count = self.select(Predictions(*frame))
            n = int(count)  # sync: the number of boxes is what the caller asked for
            detections.append(Detections(boxes[:n], scores[:n], labels[:n]))
        return detections

    def select(self, frame: Predictions) -> Padded:
        """Detections of one frame (no batch dimension) in tensors of fixed shape."""
        best, index, labels = self._candidates(frame.class_logits)
        residuals = frame.box_residuals[index].float().nan_to_num(nan=0, posinf=0, neginf=0)
        boxes = decode(residuals, self.anchors[index])
        bins = frame.direction_logits[index].argmax(dim=-1)
        boxes = torch.cat((boxes[:, :6], apply_direction(boxes[:, 6], bins)[:, None]), dim=1)
        valid = best >= self.score
        count = valid.sum(dtype=torch.int32).view(1)
        kept = nms(boxes, best, self.iou, self.after_nms, count=count)
        rows, empty = kept.indices.clamp(min=0), kept.indices < 0
        return Padded(
            boxes[rows].masked_fill(empty[:, None], 0),
            best[rows].masked_fill(empty, 0),
            labels[rows].masked_fill(empty, 0),
            kept.count,
        )

    def _candidates(self, logits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Scores, indices and labels of the best anchors; of equal scores the lower index first."""
        scores, labels = torch.sigmoid(logits.float()).nan_to_num(nan=0).max(dim=-1)
        # Positive floats have the order of their bits. The index in the low bits makes keys unique.
        count = len(scores)
        order = torch.arange(count, device=scores.device)
        keys = (scores.view(torch.int32).long() << 32) | (count - 1 - order)
        index = count - 1 - (keys.topk(self.before_nms).values & 0xFFFFFFFF)
        return scores[index], index, labels[index] + 1


def build_postprocessor(config: Config) -> PostProcessor:
    """The postprocessor of a configuration; move it to the model's device."""
    post = config.postprocess
    return PostProcessor(
        build_anchors(config), post.score, post.before_nms, post.iou, post.after_nms
    )
