"""The objects of many frames in flat columns, and the overlaps of detections with labels."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch

from data.kitti.labels import Labels
from ops import paired_overlap_bev


@dataclass(frozen=True)
class Objects:
    """The objects of n_frames frames, frame after frame, each in file order."""

    n_frames: int
    frames: np.ndarray  # [n] int64: index of the object's frame, ascending
    types: np.ndarray  # [n] str in lower case, for the benchmark's evaluators ignore the case
    difficulty: np.ndarray  # [n]: 0 easy, 1 moderate, 2 hard, -1 none
    alpha: np.ndarray  # [n] float64, radians
    bbox: np.ndarray  # [n, 4] float64: image box x1, y1, x2, y2, pixels
    boxes: np.ndarray  # [n, 7] float64: camera frame with z up, see `of`
    scores: np.ndarray  # [n] float64; NaN where the labels have none

    @classmethod
    def of(cls, labels: Sequence[Labels]) -> "Objects":
        """Boxes become (right, forward, up, l, w, h, yaw): the camera's axes relabelled rigidly."""
        sizes = [len(frame) for frame in labels]

        def column(values: Iterable[np.ndarray], *shape: int) -> np.ndarray:
            flat = [np.zeros(0), *(np.asarray(rows, np.float64).ravel() for rows in values)]
            return np.concatenate(flat).reshape(-1, *shape)

        x, y, z, length, height, width, rotation = column((f.boxes for f in labels), 7).T
        boxes = np.stack([x, z, height / 2 - y, length, width, height, -rotation], axis=1)
        types = [kind.lower() for frame in labels for kind in frame.types]
        return cls(
            n_frames=len(sizes),
            frames=np.repeat(np.arange(len(sizes)), sizes),
            types=np.array(types, dtype=str),
            difficulty=column(frame.difficulty for frame in labels),
            alpha=column(frame.alpha for frame in labels),
            bbox=column((frame.bbox for frame in labels), 4),
            boxes=boxes,
            scores=column(np.full(len(f), np.nan) if f.score is None else f.score for f in labels),
        )

    @property
    def height(self) -> np.ndarray:
        """[n] height of the image box, pixels."""
        return self.bbox[:, 3] - self.bbox[:, 1]

    def starts(self) -> np.ndarray:
        """[n_frames + 1] int64: frame f holds the rows starts[f]:starts[f + 1]."""
        return np.searchsorted(self.frames, np.arange(self.n_frames + 1))


class Overlaps(NamedTuple):
    """Every detection that touches a labelled object of its frame, and by how much."""

    frames: np.ndarray  # [P] int64, ascending
    truth: np.ndarray  # [P] int64: row of the ground truth
    detections: np.ndarray  # [P] int64: row of the detections
    iou: dict[str, np.ndarray]  # "bbox", "bev", "3d" -> [P] float64
    dont_care: np.ndarray  # [D] float64: largest share of a detection's image box in one DontCare


def find_overlaps(truth: Objects, detections: Objects) -> Overlaps:
    """Overlaps of all detections with all labelled objects of the same frame."""
    rows, columns = [], []
    dont_care = np.zeros(len(detections.scores))
    cared = truth.types != "dontcare"
    truth_starts, starts = truth.starts(), detections.starts()
    for frame in np.flatnonzero((np.diff(truth_starts) > 0) & (np.diff(starts) > 0)):
        here = np.arange(truth_starts[frame], truth_starts[frame + 1])
        candidates = np.arange(starts[frame], starts[frame + 1])
        objects, regions = here[cared[here]], here[~cared[here]]
        near = _may_touch(truth, objects, detections, candidates)
        pair = np.nonzero(near)
        rows.append(objects[pair[0]])
        columns.append(candidates[pair[1]])
        if len(regions):
            shared = _image_overlap(truth.bbox[regions, None], detections.bbox[None, candidates])
            area = _image_area(detections.bbox[candidates])
            dont_care[candidates] = shared.max(axis=0) / area
    a = np.concatenate([np.zeros(0, np.int64), *rows])
    b = np.concatenate([np.zeros(0, np.int64), *columns])
    iou = _image_iou(truth.bbox[a], detections.bbox[b])
    bev, volume = box_iou(truth.boxes[a], detections.boxes[b])
    return Overlaps(truth.frames[a], a, b, {"bbox": iou, "bev": bev, "3d": volume}, dont_care)


def _may_touch(truth: Objects, a: np.ndarray, detections: Objects, b: np.ndarray) -> np.ndarray:
    """[A, B] bool: image boxes overlap, or circles around the boxes seen from above do."""
    boxes, others = truth.boxes[a, None], detections.boxes[None, b]
    apart = np.hypot(boxes[..., 0] - others[..., 0], boxes[..., 1] - others[..., 1])
    reach = np.hypot(boxes[..., 3], boxes[..., 4]) + np.hypot(others[..., 3], others[..., 4])
    image = _image_overlap(truth.bbox[a, None], detections.bbox[None, b]) > 0
    return image | (2 * apart < reach)


def _image_area(boxes: np.ndarray) -> np.ndarray:
    """[..., 4] -> [...] square pixels; never 0, so that it can divide."""
    area = (boxes[..., 2] - boxes[..., 0]) * (boxes[..., 3] - boxes[..., 1])
    return np.maximum(area, np.finfo(np.float64).tiny)


def _image_overlap(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """[..., 4] x [..., 4] -> [...] square pixels that two image boxes share."""
    low, high = np.maximum(a[..., :2], b[..., :2]), np.minimum(a[..., 2:], b[..., 2:])
    return np.prod(np.maximum(high - low, 0), axis=-1)


def _image_iou(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    shared = _image_overlap(a, b)
    return shared / (_image_area(a) + _image_area(b) - shared)


def box_iou(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """[P, 7] x [P, 7] -> [P], [P]: overlap over union seen from above and of the volumes."""
    area = paired_overlap_bev(torch.from_numpy(a), torch.from_numpy(b)).numpy()
    top = np.minimum(a[:, 2] + a[:, 5] / 2, b[:, 2] + b[:, 5] / 2)
    bottom = np.maximum(a[:, 2] - a[:, 5] / 2, b[:, 2] - b[:, 5] / 2)
    volume = area * np.maximum(top - bottom, 0)

    def over_union(shared: np.ndarray, dimensions: slice) -> np.ndarray:
        union = a[:, dimensions].prod(axis=1) + b[:, dimensions].prod(axis=1) - shared
        return np.where(shared > 0, shared / np.where(shared > 0, union, 1), 0)

    return over_union(area, slice(3, 5)), over_union(volume, slice(3, 6))
