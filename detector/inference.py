"""The stages of a scan, from points to boxes, on one device: each written once, and their order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from millisecond.data.boxes import NamedDetections
from millisecond.data.checks.sensor import Mounting
from millisecond.detector.anchors import build_anchors
from millisecond.detector.config import PRECISIONS, Config, PostprocessConfig
from millisecond.detector.device import torch_defaults
from millisecond.detector.models.bev_rows import BevRows
from millisecond.detector.models.second import AnyPredictions, Fixed, MovingPredictions, Second
from millisecond.ops.bev import BevCells, CellValues
from millisecond.ops.boxes import SelectedBoxes, select_boxes, select_boxes_of_cells
from millisecond.ops.capture import side_stream
from millisecond.ops.kernel_map import Pyramid
from millisecond.ops.transfer import Moves, clamp_intensity, move_points
from millisecond.ops.voxelize import Voxels

Cloud = np.ndarray | Tensor  # [P, C] float32


class Detections(NamedTuple):
    """Boxes of one frame, best first."""

    # [n, 9] of a network with velocities: behind the yaw vx, vy over ground along x and y, m/s
    boxes: Tensor  # [n, 7] (x, y, z, l, w, h, yaw), LiDAR frame, metres and radians
    scores: Tensor  # [n] in [0, 1]
    labels: Tensor  # [n] int64, from 1 in the order of the configuration's classes

    def named(self, class_names: Sequence[str]) -> NamedDetections:
        """The same on the host, with the names of the classes instead of their labels."""
        boxes, scores, labels = (tensor.cpu().numpy() for tensor in self)
        names = tuple(class_names[label - 1] for label in labels.tolist())
        velocities = boxes[:, 7:] if boxes.shape[1] > 7 else None
        return NamedDetections(boxes[:, :7], scores, names, velocities)


class PostProcessor(nn.Module):
    """Best class of each anchor, score threshold, best boxes, NMS."""

    anchors: Tensor  # [A, 7]

    def __init__(self, anchors: Tensor, limits: PostprocessConfig):
        """anchors: [Y, X, K, R, 7]."""
        super().__init__()
        self.register_buffer("anchors", anchors.reshape(-1, 7), persistent=False)
        self.limits = replace(limits, before_nms=min(limits.before_nms, len(self.anchors)))
        self._limits = astuple(self.limits)

    @torch.no_grad()
    def forward(self, predictions: AnyPredictions | CellValues) -> list[Detections]:
        """Detections of each frame."""
        return split(self.select(predictions))

    def select(self, predictions: AnyPredictions | CellValues) -> SelectedBoxes:
        """Detections of all frames in tensors of fixed shape; on a GPU nothing waits for it."""
        if isinstance(predictions, CellValues):
            return select_boxes_of_cells(predictions, self.anchors, *self._limits)
        limits = self._limits
        if isinstance(predictions, MovingPredictions):
            limits = (*limits, predictions.velocities)
        return select_boxes(*predictions[:3], self.anchors, *limits)


def split(selected: SelectedBoxes) -> list[Detections]:
    """Detections of each frame."""
    boxes, scores, labels, count = selected
    numbers = count.tolist()  # sync: the number of boxes is what the caller asked for
    return [Detections(boxes[b, :n], scores[b, :n], labels[b, :n]) for b, n in enumerate(numbers)]


def build_postprocessor(config: Config) -> PostProcessor:
    """The postprocessor of a configuration; move it to the model's device."""
    return PostProcessor(build_anchors(config), config.postprocess)


class ScoreMap(NamedTuple):
    """What the network thinks of the ground, cell by cell, before boxes are made of it."""

    scores: np.ndarray  # [Y, X] float32 in [0, 1]: the best one of all classes and anchors
    range: tuple[float, ...]  # x0, y0, z0, x1, y1, z1 of the grid in the network's frame, metres
    mounting: Mounting  # from the LiDAR frame to the network's

    def __call__(self, places: np.ndarray) -> np.ndarray:
        """Scores [N] at places [N, 2] of the ground, LiDAR frame; 0 out of the grid."""
        at = self.mounting.to_network(np.pad(places, ((0, 0), (0, 1))))[:, :2]
        low, high = np.array(self.range).reshape(2, 3)[:, :2]
        shape = np.array(self.scores.shape)[::-1]
        cells = np.floor((at - low) / (high - low) * shape).astype(np.int64)
        inside = ((cells >= 0) & (cells < shape)).all(axis=1)
        scores = np.zeros(len(places), np.float32)
        column, row = cells[inside].T
        scores[inside] = self.scores[row, column]
        return scores


class Outcome(NamedTuple):
    """What was found in a batch of clouds."""

    detections: list[Detections]  # of each cloud, on the host
    not_finite: int  # points of the batch that were left out because of that
    capped: int  # points of the batch that were left out by the cap on voxels
    rows: tuple[int, ...]  # of each level of the encoder, in the whole batch


class Predicted(NamedTuple):
    """What the network makes of a batch, all on its device."""

    voxels: Voxels
    pyramid: Pyramid
    predictions: AnyPredictions | CellValues  # of every anchor


class Inference:
    """A network for inference with its postprocessor; nothing is kept between calls."""

    def __init__(self, model: Second, config: Config, device: torch.device, precision: str):
        """A copy of `model` is used, with its BatchNorms folded."""
        self.device = device
        self._map_shape = build_anchors(config).shape[:2]
        self.model = model.fold().to(device, PRECISIONS[precision])
        self.postprocess = build_postprocessor(config).to(device)
        self._rows = BevRows.of(self.model)
        # whether a GPU computes occupied cells of the map, by our kernels; else all, by cuDNN
        self.on_cells = precision != "fp32"

    @torch_defaults()
    @torch.inference_mode()
    def __call__(self, clouds: Sequence[Cloud], moves: Moves = ()) -> Outcome:
        """Clouds in one batch. moves: of the clouds into the network's frame."""
        voxels, pyramid, predictions = self.forward(*self._batch(clouds, moves))
        found = self.postprocess(predictions)
        not_finite, capped = voxels.dropped.tolist()  # sync: the boxes are awaited anyway
        rows = tuple(len(level.coords) for level in pyramid.levels)
        on_host = [Detections(*(tensor.cpu() for tensor in frame)) for frame in found]
        return Outcome(on_host, not_finite, capped, rows)

    @torch_defaults()
    @torch.inference_mode()
    def score_map(self, cloud: Cloud, moves: Moves = ()) -> np.ndarray:
        """[Y, X] float32: the best score of each cell of the map, in [0, 1]."""
        sites = self.model.sites(*self._batch([cloud], moves))
        logits = self.predictions(*sites).class_logits
        return logits.float().sigmoid().reshape(*self._map_shape, -1).amax(-1).cpu().numpy()

    def _batch(self, clouds: Sequence[Cloud], moves: Moves) -> tuple[Tensor, Tensor]:
        """All points, moved, on the device, and where each cloud begins."""
        parts = list(map(as_tensor, clouds))
        for frame, move in enumerate(moves):
            parts[frame] = move_points(parts[frame], move) if move else parts[frame]
        points = torch.cat([clamp_intensity(part).to(self.device) for part in parts])
        sizes = torch.tensor([0, *map(len, clouds)])
        return points, sizes.cumsum(0).int().to(self.device)

    def forward(self, points: Tensor, offsets: Tensor, fixed: Fixed | None = None) -> Predicted:
        """Points on the device, see `Second.sites` -> predictions. With fixed sizes a CUDA graph
        can be captured, in which a side stream works beside the encoder."""
        if fixed is None:
            voxels, pyramid = self.model.sites(points, offsets)
            cells, rows = self.cells(pyramid), self.encode(voxels, pyramid)
        else:
            side, current = side_stream(), torch.cuda.current_stream()
            voxels, pyramid = self.model.sites(points, offsets, fixed, side)
            side.wait_stream(current)
            with torch.cuda.stream(side):  # beside the encoder: they need the sites alone
                cells = self.cells(pyramid)
            rows = self.encode(voxels, pyramid)
            current.wait_stream(side)
        return Predicted(voxels, pyramid, self.predict(rows, pyramid, cells))

    def predictions(self, voxels: Voxels, pyramid: Pyramid) -> AnyPredictions:
        """Voxels and their pyramid -> predictions of every anchor, one tensor per head."""
        rows = self.encode(voxels, pyramid)
        return self._rows.predict(rows, pyramid.levels[-1], pyramid.batch_size)

    def encode(self, voxels: Voxels, pyramid: Pyramid) -> Tensor:
        """Voxels and their pyramid -> the rows of the bird's-eye-view map."""
        return self.model.encoder.rows(voxels.features, pyramid)

    def cells(self, pyramid: Pyramid) -> BevCells | None:
        """The cells of the map that `predict` computes; None where it finds them itself."""
        level = pyramid.levels[-1]
        if not (level.coords.is_cuda and self.on_cells):
            return None
        return self._rows.cells(level, pyramid.batch_size)

    def predict(
        self, rows: Tensor, pyramid: Pyramid, cells: BevCells | None
    ) -> AnyPredictions | CellValues:
        """What `encode` and `cells` return -> predictions of every anchor."""
        if cells is not None:
            return self._rows.values(rows, cells)
        return self._rows.predict(rows, pyramid.levels[-1], pyramid.batch_size)


def as_tensor(cloud: Cloud) -> Tensor:
    """The same points for torch."""
    if isinstance(cloud, Tensor):
        return cloud
    # torch has no tensors that must not be written to, nor any with negative strides
    usable = cloud.flags.writeable and min(cloud.strides) >= 0
    return torch.from_numpy(cloud if usable else cloud.copy())
