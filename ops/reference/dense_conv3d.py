"""Dense 3-D convolution in plain torch: the definition, and the CPU path."""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import conv3d


def dense_conv3d(volume: Tensor, weight: Tensor, rung: str) -> Tensor:
    """See ops.dense_conv3d; every rung computes the same."""
    out = conv3d(volume.float(), weight.float(), padding=weight.shape[2] // 2)
    return out.to(volume.dtype)
