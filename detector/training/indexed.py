"""A batch as forward and backward take it."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from ops import Pyramid, Voxels


class Indexed(NamedTuple):
    """A batch on the device, its points as voxels with the index of their sites."""

    voxels: Voxels
    pyramid: Pyramid
    boxes: Tensor  # [B, M, 7] float32
    labels: Tensor  # [B, M] int64, from 1, 0 is padding
