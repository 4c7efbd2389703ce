"""One frame of a data set, one batch of frames, and the one box layout.

A box is (x, y, z, l, w, h, yaw) in the LiDAR frame (x forward, y left, z up, metres): (x, y, z) is
the centre of the volume, l lies along the heading, yaw is counter-clockwise from +x in radians.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from millisecond.data.calibration import Calibration
from millisecond.data.kitti.labels import DONT_CARE
from millisecond.ops.transfer import clamp_intensity, require_unmasked


@dataclass(frozen=True)
class Frame:
    """A scan with its objects, as a data set yields it: host arrays, nothing voxelized.

    difficulty is KITTI's: 0 easy, 1 moderate, 2 hard, -1 none of them. plane is the road in the
    LiDAR frame, (a, b, c, d) with a x + b y + c z + d = 0.
    """

    frame_id: str
    points: np.ndarray  # [P, 4 or more] float32: x, y, z, intensity, further features
    boxes: np.ndarray = field(default_factory=lambda: np.zeros((0, 7), np.float32))  # [M, 7]
    names: tuple[str, ...] = ()  # M type names
    difficulty: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int8))  # [M]
    calibration: Calibration | None = None
    image_shape: tuple[int, int] | None = None  # height, width
    image: Path | None = None
    plane: np.ndarray | None = None  # [4] float32

    def __post_init__(self):
        require_unmasked("points", self.points)
        require_unmasked("boxes", self.boxes)
        count = len(self.names)
        if self.points.ndim != 2 or self.points.shape[1] < 4:
            raise ValueError(
                f"frame {self.frame_id}: points are {self.points.shape}, not [P, 4 or more]"
            )
        if self.boxes.shape != (count, 7) or self.difficulty.shape != (count,):
            raise ValueError(
                f"frame {self.frame_id}: {count} names, boxes {self.boxes.shape} and difficulty "
                f"{self.difficulty.shape} do not describe the same objects"
            )


class Frames(Protocol):
    """A data set: frames by their number."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Frame: ...


class Batch(NamedTuple):
    """Frames as the network takes them; frame b owns points[offsets[b]:offsets[b + 1]]."""

    points: Tensor  # [P, 4 or more] float32
    offsets: Tensor  # [B + 1] int32
    boxes: Tensor  # [B, M, 7] float32, zero rows are padding
    labels: Tensor  # [B, M] int64, 1-based, 0 is padding, -k an ignored box of class k
    frame_ids: tuple[str, ...]

    def to(self, device: torch.device | str, non_blocking: bool = False) -> Batch:
        return self._moved(lambda tensor: tensor.to(device, non_blocking=non_blocking))

    def pin_memory(self) -> Batch:
        return self._moved(lambda tensor: tensor.pin_memory())

    def _moved(self, move: Callable[[Tensor], Tensor]) -> Batch:
        points, offsets, boxes, labels = map(move, self[:4])
        return Batch(points, offsets, boxes, labels, self.frame_ids)


def collate(frames: Sequence[Frame], classes: Sequence[str]) -> Batch:
    """Join frames; a label is 1 + the place of the object's name in classes.

    Wild intensities are clamped, see `clamp_intensity`. Objects of other names are left out of the
    targets; what is named DontCare is an ignored box of every class, -1 to -K. There is at least
    one row of boxes, so a batch without objects is a batch with padding only.
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
    labels = {name: [number] for number, name in enumerate(classes, start=1)}
    labels[DONT_CARE] = [-number for number in range(1, len(classes) + 1)]
    own = [labels.get(name, []) for name in frame.names]
    rows = np.repeat(np.arange(len(own)), [len(numbers) for numbers in own])
    return frame.boxes[rows], np.array([*chain(*own)], np.int64)
