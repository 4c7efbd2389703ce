"""Dense 3-D convolution: what sparse convolution saves, in three rungs to be read and measured."""

from __future__ import annotations

import torch
from torch import Tensor

from ops.cuda import dense_conv3d as cuda
from ops.dispatch import on_kernels
from ops.reference import dense_conv3d as reference

RUNGS = ("naive", "tiled", "coarsened")
KERNELS = (3, 5, 7)
DTYPES = (torch.float32, torch.float16)


@torch.no_grad()
def dense_conv3d(
    volume: Tensor,  # [B, C_in, Z, Y, X] float32 or float16
    weight: Tensor,  # [C_out, C_in, K, K, K] of the type of the volume, K 3, 5 or 7
    rung: str = "coarsened",
) -> Tensor:  # [B, C_out, Z, Y, X]
    """Cross-correlation with stride 1 and zeros around, as torch.nn.functional.conv3d(volume,
    weight, padding=K // 2) computes it.

    rung: the kernel that a GPU runs, see docs/dense_convolution.md; a CPU has one way. Sums are
    float32. There is no gradient.
    """
    if volume.ndim != 5 or volume.dtype not in DTYPES:
        raise ValueError(
            "volume: expected [B, C_in, Z, Y, X] float32 or float16, got "
            f"{list(volume.shape)} {volume.dtype}"
        )
    sizes = [[*weight.shape[:1], volume.shape[1], k, k, k] for k in KERNELS]
    if list(weight.shape) not in sizes or weight.dtype != volume.dtype:
        raise ValueError(
            f"weight: expected [C_out, {volume.shape[1]}, K, K, K] {volume.dtype} with K 3, 5 or "
            f"7, got {list(weight.shape)} {weight.dtype}"
        )
    if rung not in RUNGS:
        raise ValueError(f"rung: expected {', '.join(RUNGS)}, got {rung!r}")
    backend = cuda if on_kernels(volume) else reference
    return backend.dense_conv3d(volume, weight, rung)
