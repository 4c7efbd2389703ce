"""Dense 3-D convolution, which sparse convolution avoids, in three rungs to be read and measured
(csrc/dense3d/dense_conv3d.cu)."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import conv3d

from millisecond.ops.dispatch import on_kernels
from millisecond.ops.geometry import same_device
from millisecond.ops.lab.library import extension, fake

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
    if volume.ndim != 5 or 0 in volume.shape[2:] or volume.dtype not in DTYPES:
        raise ValueError(
            "volume: expected [B, C_in, Z, Y, X] float32 or float16, got "
            f"{list(volume.shape)} {volume.dtype}"
        )
    sizes = [[*weight.shape[:1], volume.shape[1], k, k, k] for k in KERNELS]
    if list(weight.shape) not in sizes or 0 in weight.shape or weight.dtype != volume.dtype:
        raise ValueError(
            f"weight: expected [C_out, {volume.shape[1]}, K, K, K] {volume.dtype} with K 3, 5 or "
            f"7, got {list(weight.shape)} {weight.dtype}"
        )
    same_device(volume=volume, weight=weight)
    if rung not in RUNGS:
        raise ValueError(f"rung: expected {', '.join(RUNGS)}, got {rung!r}")
    if not on_kernels(volume):
        return dense_conv3d_definition(volume, weight, rung)
    extension()
    return torch.ops.millisecond_lab.dense_conv3d(volume.contiguous(), weight.contiguous(), rung)


def dense_conv3d_definition(volume: Tensor, weight: Tensor, rung: str) -> Tensor:
    """`dense_conv3d` in plain torch; every rung computes the same."""
    out = conv3d(volume.float(), weight.float(), padding=weight.shape[2] // 2)
    return out.to(volume.dtype)


@fake("dense_conv3d")
def _fake_dense_conv3d(volume, weight, rung) -> Tensor:
    return volume.new_empty(volume.shape[0], weight.shape[0], *volume.shape[2:])
