"""One frame of a data set, one batch of frames, and the one box layout.

A box is (x, y, z, l, w, h, yaw) in the LiDAR frame (x forward, y left, z up, metres): (x, y, z) is
the centre of the volume, l lies along the heading, yaw is counter-clockwise from +x in radians.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

if TYPE_CHECKING:
    from data.kitti.calibration import Calibration


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
    labels: Tensor  # [B, M] int64, 1-based, 0 is padding
    frame_ids: tuple[str, ...]

    def to(self, device: torch.device | str, non_blocking: bool = False) -> Batch:
        return self._moved(lambda tensor: tensor.to(device, non_blocking=non_blocking))

    def pin_memory(self) -> Batch:
        return self._moved(lambda tensor: tensor.pin_memory())

    def _moved(self, move: Callable[[Tensor], Tensor]) -> Batch:
        points, offsets, boxes, labels = map(move, self[:4])
        return Batch(points, offsets, boxes, labels, self.frame_ids)
