"""Frames -> one batch of tensors."""

from collections.abc import Sequence

import numpy as np
import torch

from data.frame import Batch, Frame
from ops.reference.load_points import clamp_intensity


def collate(frames: Sequence[Frame], classes: Sequence[str]) -> Batch:
    """Join frames; a label is 1 + the place of the object's name in classes.

    Wild intensities are clamped, see `clamp_intensity`. Objects of other names are left out of the
    targets. There is at least one row of boxes, so a batch without objects is a batch with padding
    only.
    """
    if not frames:
        raise ValueError("a batch needs at least one frame")
    targets = [_targets(frame, classes) for frame in frames]
    rows = max(1, *(len(labels) for _, labels in targets))
    boxes = np.zeros((len(frames), rows, 7), np.float32)
    labels = np.zeros((len(frames), rows), np.int64)
    for row, (own_boxes, own_labels) in enumerate(targets):
        boxes[row, : len(own_boxes)] = own_boxes
        labels[row, : len(own_labels)] = own_labels
    offsets = np.cumsum([0, *(len(frame.points) for frame in frames)], dtype=np.int32)
    clouds = [torch.from_numpy(frame.points.astype(np.float32, copy=False)) for frame in frames]
    return Batch(
        torch.cat([clamp_intensity(cloud) for cloud in clouds]),
        torch.from_numpy(offsets),
        torch.from_numpy(boxes),
        torch.from_numpy(labels),
        tuple(frame.frame_id for frame in frames),
    )


def _targets(frame: Frame, classes: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    label = {name: number for number, name in enumerate(classes, start=1)}
    labels = np.array([label.get(name, 0) for name in frame.names], np.int64)
    return frame.boxes[labels > 0], labels[labels > 0]
