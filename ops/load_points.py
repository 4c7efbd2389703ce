"""Points from the host to the device, with intensities clamped."""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType

import torch
from torch import Tensor

from ops.cuda import load_points as cuda
from ops.reference import load_points as reference


@torch.no_grad()
def load_points(
    points: Tensor,  # [P, C] float32: x, y, z, intensity, then anything
    offsets: Tensor,  # [B + 1] int32
    workspace: Tensor,
    staged: Tensor | None = None,  # [2] int32
) -> tuple[Tensor, Tensor, Tensor]:
    """The same points and offsets on the device of the workspace, and whether the points were late
    [1] int32. Points from offsets[B] on are not read, and what their places hold is undefined.

    The intensities of a frame are clamped to 0 .. scale: the least of 1, 255 and 65535 that all but
    one in a hundred of them keep to. A single wild value would fill the whole map with boxes.
    Intensities that are not finite stay so.

    Points and offsets are on the host, or on the device of the workspace already.

    staged: how many points are there by now, and how many were at the launch, on the host; without
    it all are. A GPU waits for the others, which `stage_points` brings. Where for 20 ms none come
    they are late, and what is returned of them is undefined.

    workspace: from `load_workspace`, for calls on one stream. For a GPU those on the host lie in
    pinned memory, nothing is read back, and calls may be captured in a CUDA graph: each replay
    reads what the memory then holds.
    """
    if points.dtype != torch.float32 or points.ndim != 2 or points.shape[1] < 4:
        shape = list(points.shape)
        raise ValueError(f"points: expected [P, 4 or more] float32, got {shape} {points.dtype}")
    if offsets.dtype != torch.int32 or offsets.ndim != 1 or len(offsets) < 2:
        shape = list(offsets.shape)
        raise ValueError(f"offsets: expected [B + 1] int32, got {shape} {offsets.dtype}")
    if staged is not None and (staged.dtype != torch.int32 or len(staged) != 2):
        raise ValueError(f"staged: expected [2] int32, got {list(staged.shape)} {staged.dtype}")
    for name, tensor in (("points", points), ("offsets", offsets)):
        if not tensor.is_cpu and tensor.device != workspace.device:
            raise ValueError(
                f"{name}: expected on the host or on {workspace.device}, got on {tensor.device}"
            )
    return _backend(workspace).load_points(points, offsets, workspace, staged)


def stage_points(
    clouds: Sequence[Tensor],  # [P_i, C] float32 each, on the host
    points: Tensor,  # [P, C] float32
    staged: Tensor,  # [2] int32
) -> None:
    """Copies the clouds to `points`, behind the first staged[0], piece by piece. After each piece
    staged[0] rises, so that a `load_points` which a GPU works on already goes on with it.
    """
    # whether the memory is pinned is not asked: that takes as long as to copy a piece
    backend = cuda if torch.cuda.is_initialized() else reference
    backend.stage_points(clouds, points, staged)


def load_workspace(batch_size: int, device: torch.device) -> Tensor:
    """For `load_points` of up to `batch_size` frames: zeros that it leaves as zeros."""
    return torch.zeros(3 + 4 * batch_size, dtype=torch.int32, device=device)


def _backend(workspace: Tensor) -> ModuleType:
    return cuda if workspace.is_cuda else reference
