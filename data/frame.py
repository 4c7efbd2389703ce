"""One frame of a data set, one batch of frames, and the one box layout.

A box is (x, y, z, l, w, h, yaw) in the LiDAR frame (x forward, y left, z up, metres): (x, y, z) is
the centre of the volume, l lies along the heading, yaw is counter-clockwise from +x in radians.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, Protocol, TypeAlias

import numpy as np
import torch
from torch import Tensor

from millisecond.data.calibration import Calibration
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
    velocities: np.ndarray | None = None  # [M, 2] m/s over ground along x and y; NaN: unknown

    def __post_init__(self):
        require_unmasked("points", self.points)
        require_unmasked("boxes", self.boxes)
        count = len(self.names)
        if self.points.ndim != 2 or self.points.shape[1] < 4:
            raise ValueError(
                f"frame {self.frame_id}: points are {self.points.shape}, not [P, 4 or more]"
            )
        shapes = self.boxes.shape, self.difficulty.shape, self.known_velocities.shape
        if shapes != ((count, 7), (count,), (count, 2)):
            raise ValueError(
                f"frame {self.frame_id}: {count} names, boxes {shapes[0]}, difficulty {shapes[1]} "
                f"and velocities {shapes[2]} do not describe the same objects"
            )

    @property
    def known_velocities(self) -> np.ndarray:
        """[M, 2] the velocities, NaN where nobody knows them."""
        unknown = np.full((len(self.boxes), 2), np.nan, np.float32)
        return unknown if self.velocities is None else self.velocities


class Frames(Protocol):
    """A data set: frames by their number."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Frame: ...


# Of tensors that share memory: element types and shapes.
Layout: TypeAlias = tuple[tuple[torch.dtype, tuple[int, ...]], ...]


class Batch(NamedTuple):
    """Frames as the network takes them; frame b owns points[offsets[b]:offsets[b + 1]]."""

    points: Tensor  # [P, 4 or more] float32
    offsets: Tensor  # [B + 1] int32
    boxes: Tensor  # [B, M, 7] float32, or 9 with velocities; zero rows are padding
    labels: Tensor  # [B, M] int64, 1-based, 0 is padding
    frame_ids: tuple[str, ...]

    def part(self, begin: int, end: int) -> Batch:
        """Frames begin to end - 1, in the same memory."""
        first, last = self.offsets[[begin, end]].tolist()
        offsets = self.offsets[begin : end + 1] - first
        rows = slice(begin, end)
        points, ids = self.points[first:last], self.frame_ids[rows]
        return Batch(points, offsets, self.boxes[rows], self.labels[rows], ids)

    def to(self, device: torch.device | str, non_blocking: bool = False) -> Batch:
        tensors = (tensor.to(device, non_blocking=non_blocking) for tensor in self[:4])
        return Batch._make((*tensors, self.frame_ids))

    def pin_memory(self) -> Batch:
        return _batch_of(*self._packed(pin=True))

    def __reduce__(self) -> tuple:
        # as one tensor: a process that sends tensors opens a file and a connection for each one
        return _batch_of, self._packed()

    def _packed(self, pin: bool = False) -> tuple[Tensor, Layout, tuple[str, ...]]:
        """All tensors one behind another as bytes [N]; what `_batch_of` takes."""
        layout = tuple((tensor.dtype, tuple(tensor.shape)) for tensor in self[:4])
        memory = torch.empty(sum(_sizes(layout)), dtype=torch.uint8, pin_memory=pin)
        packed = memory, layout, self.frame_ids
        for place, tensor in zip(_batch_of(*packed)[:4], self[:4], strict=True):
            place.copy_(tensor)
        return packed


ALIGNMENT = 16  # bytes, of each tensor in shared memory


def _sizes(layout: Layout) -> list[int]:
    """Bytes of each tensor's part of the memory."""
    sizes = (math.prod(shape) * kind.itemsize for kind, shape in layout)
    return [-(-size // ALIGNMENT) * ALIGNMENT for size in sizes]


def _batch_of(memory: Tensor, layout: Layout, frame_ids: tuple[str, ...]) -> Batch:
    """The batch whose tensors lie in this memory."""
    parts = zip(memory.split(_sizes(layout)), layout, strict=True)
    tensors = (part.view(kind)[: math.prod(shape)].view(shape) for part, (kind, shape) in parts)
    return Batch._make((*tensors, frame_ids))


def collate(frames: Sequence[Frame], classes: Sequence[str], velocity: bool = False) -> Batch:
    """Join frames; a label is 1 + the place of the object's name in classes. velocity: boxes have
    vx and vy behind their yaw, NaN where a frame does not know them.

    Wild intensities are clamped, see `clamp_intensity`. Objects of other names are left out of the
    targets. There is at least one row of boxes, so a batch without objects is a batch with padding
    only.
    """
    if not frames:
        raise ValueError("a batch needs at least one frame")
    targets = [_targets(frame, classes, velocity) for frame in frames]
    rows = max(1, *(len(labels) for _, labels in targets))
    boxes = np.zeros((len(frames), rows, 9 if velocity else 7), np.float32)
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


def _targets(frame: Frame, classes: Sequence[str], velocity: bool) -> tuple[np.ndarray, np.ndarray]:
    label = {name: number for number, name in enumerate(classes, start=1)}
    labels = np.array([label.get(name, 0) for name in frame.names], np.int64)
    boxes = frame.boxes
    if velocity:
        boxes = np.concatenate([boxes, frame.known_velocities], axis=1)
    return boxes[labels > 0], labels[labels > 0]
