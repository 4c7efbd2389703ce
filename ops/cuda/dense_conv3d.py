"""Dense 3-D convolution on the CUDA kernels, see csrc/dense3d/dense_conv3d.cu."""

from __future__ import annotations

import torch
from torch import Tensor

from ops.cuda.fakes import fake
from ops.cuda.library import extension


def dense_conv3d(volume: Tensor, weight: Tensor, rung: str) -> Tensor:
    """See ops.dense_conv3d."""
    extension()
    return torch.ops.millisecond.dense_conv3d(volume.contiguous(), weight.contiguous(), rung)


@fake("dense_conv3d")
def _dense_conv3d(volume, weight, rung) -> Tensor:
    return volume.new_empty(volume.shape[0], weight.shape[0], *volume.shape[2:])
