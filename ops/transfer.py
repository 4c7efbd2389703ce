"""Between the host and the device: points with intensities clamped, small results in one copy, and
streams of one's own. Kernels are in csrc/transfer.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor

from millisecond.ops.geometry import check_offsets, check_tensor, whole
from millisecond.ops.library import extension, fake

SCALES = (1.0, 255.0, 65535.0)  # of intensities, as sensors give them
FEW = 0.01  # share of intensities that may be wild
Move = Sequence[float]  # 13 numbers, see `move_points`
Moves = Sequence[Move | None]  # of each frame of a batch; empty: none moves
UNMOVED: Move = (1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0, 1)


@torch.no_grad()
def load_points(
    points: Tensor,  # [P, C] float32: x, y, z, intensity, then anything
    offsets: Tensor,  # [B + 1] int32
    workspace: Tensor,
    staged: Tensor | None = None,  # [2] int32
    moves: Tensor | None = None,  # [B, 13] float32
) -> tuple[Tensor, Tensor, Tensor]:
    """The same points and offsets on the device of the workspace, and whether the points were late
    [1] int32. Points from offsets[B] on are not read; in the result they are undefined.

    moves: the points of each frame are moved first, with the bits of `move_points`.

    The intensities of a frame are clamped to 0 .. scale: the least of 1, 255 and 65535 that at most
    one in a hundred exceeds. A single wild value would fill the whole map with boxes. Intensities
    that are not finite stay so.

    Points and offsets are on the host, or on the device of the workspace already.

    staged, on the host: how many points are staged by now, and how many were staged at the launch.
    None: all points are. A GPU waits for the other points, which `stage_points` brings. If no point
    comes for 20 ms, the rest is late and undefined in the result.

    workspace: from `load_workspace`, for calls on one stream. For a GPU, all that is on the host
    lies in pinned memory. Nothing is read back. Calls may be captured in a CUDA graph: each
    replay reads the memory anew.
    """
    if points.dtype != torch.float32 or points.ndim != 2 or points.shape[1] < 4:
        shape = list(points.shape)
        raise ValueError(f"points: expected [P, 4 or more] float32, got {shape} {points.dtype}")
    check_offsets(offsets)
    if staged is not None:
        check_tensor("staged", staged, (2,), torch.int32)
    if moves is not None:
        check_tensor("moves", moves, (len(offsets) - 1, len(UNMOVED)), torch.float32)
    for name, tensor in (("points", points), ("offsets", offsets)):
        if not tensor.is_cpu and tensor.device != workspace.device:
            raise ValueError(
                f"{name}: expected on the host or on {workspace.device}, got on {tensor.device}"
            )
    if not workspace.is_cuda:
        return load_points_definition(points, offsets, workspace, staged, moves)
    extension()
    arguments = {"points": points, "offsets": offsets, "staged": staged, "moves": moves}
    for name, given in arguments.items():
        if given is not None and given.is_cpu and not given.is_pinned():
            raise ValueError(f"{name}: not in pinned memory; call .pin_memory()")
    return torch.ops.millisecond.load_points(points, offsets, workspace, staged, moves, SCALES, FEW)


def load_points_definition(
    points: Tensor,
    offsets: Tensor,
    workspace: Tensor,
    staged: Tensor | None = None,
    moves: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """`load_points` in plain torch; the workspace is not needed here, and nothing waits."""
    points = points.clone()
    for frame, (first, last) in enumerate(pairwise(offsets.tolist())):
        cloud = points[first:last]
        if moves is not None:
            cloud = move_points(cloud, moves[frame].tolist())
        points[first:last] = clamp_intensity(cloud)
    late = offsets.new_zeros(1)
    if staged is not None:
        late[0] = staged[0] < offsets[-1]
    return points, offsets.clone(), late


def move_points(points: Tensor, move: Move) -> Tensor:  # [P, 4 or more]
    """A copy of the points: x, y, z by a 3 x 4 matrix of (x, y, z, 1), whose rows are the first 12
    numbers of the move, and the intensity times the last. Each product and each sum is rounded to
    float32 by itself, from left to right, so that all devices find the same bits."""
    moved, (x, y, z) = points.clone(), points.T[:3].contiguous()
    for axis in range(3):
        by_x, by_y, by_z, shift = move[4 * axis : 4 * axis + 4]
        moved[:, axis] = x * by_x + y * by_y + z * by_z + shift
    moved[:, 3] *= move[12]
    return moved


def clamp_intensity(points: Tensor) -> Tensor:  # [P, 4 or more]
    """The points with intensities clamped to 0 .. scale: the least of 1, 255 and 65535 that at most
    one in a hundred exceeds. A single wild value would fill the whole map with boxes."""
    if not len(points):
        return points
    intensity = points[:, 3]
    low, high = intensity.aminmax()
    if low >= 0 and high <= 1:  # sync: two numbers, on a GPU
        return points
    scale = intensity_scale(intensity)
    points = points.clone()
    # infinite values stay: points that are not finite are dropped later
    points[:, 3] = torch.where(intensity.isinf(), intensity, intensity.clamp(0, scale))
    return points


def intensity_scale(intensity: Tensor) -> float:  # [P]
    """The least scale that at most one in a hundred exceeds, or the last."""
    for scale in SCALES:
        if (intensity > scale).sum() <= FEW * len(intensity):
            return scale
    return SCALES[-1]


@fake("load_points")
def _fake_load_points(points, offsets, workspace, *_) -> tuple[Tensor, Tensor, Tensor]:
    return (
        workspace.new_empty(points.shape, dtype=torch.float32),
        workspace.new_empty(offsets.shape),
        workspace.new_empty(1),
    )


def stage_points(
    clouds: Sequence[Tensor],  # [P_i, C] float32 each, on the host
    points: Tensor,  # [P, C] float32
    staged: Tensor,  # [2] int32
    finish: bool = True,
) -> None:
    """Copies the clouds to `points`, behind the first staged[0], piece by piece. After each piece
    staged[0] rises, so that a `load_points` that already runs on a GPU can copy this piece.

    Two threads copy large clouds. finish: False returns at once, and the other thread may have
    begun by then. The next call with the same `staged` copies the rest first; until then nobody may
    change the clouds or staged[0].
    """
    # whether the memory is pinned is not asked: that takes as long as to copy a piece
    if torch.cuda.is_initialized():
        extension()
        torch.ops.millisecond.stage_points(clouds, points, staged, finish)  # it checks them
        return
    room = len(points) - sum(map(len, clouds))
    for number, cloud in enumerate(clouds):
        if not cloud.is_cpu or cloud.ndim != 2 or cloud.shape[1:] != points.shape[1:] or room < 0:
            raise ValueError(
                f"clouds[{number}]: expected [P, {points.shape[-1]}] on the host, all within the "
                f"{len(points)} rows of points, got {list(cloud.shape)} on {cloud.device}"
            )
    stage_points_definition(clouds, points, staged)


def stage_points_definition(clouds: Sequence[Tensor], points: Tensor, staged: Tensor) -> None:
    """`stage_points` in plain torch."""
    for cloud in clouds:
        first = int(staged[0])
        points[first : first + len(cloud)] = cloud
        staged[0] += len(cloud)


def load_workspace(batch_size: int, device: torch.device) -> Tensor:
    """For `load_points` of up to `batch_size` frames: zeros that it leaves as zeros."""
    return torch.zeros(3 + 4 * whole("batch_size", batch_size, 0), dtype=torch.int32, device=device)


def require_unmasked(name: str, array: object) -> None:
    """Raises ValueError for a masked array of numpy: torch, and most of numpy, would read the
    masked numbers as measured ones."""
    if hasattr(array, "mask") and hasattr(array, "filled"):
        raise ValueError(
            f"{name}: a masked array, whose mask would be ignored; give {name}.filled(...), or "
            f"numpy.ma.compress_rows({name})"
        )


@torch.no_grad()
def collect(parts: Sequence[Tensor], out: Tensor) -> None:
    """Writes the bits of all parts (up to 16 of any type of 4 or 8 bytes) one behind another to
    `out` [words] int32 on the host.

    On a GPU `out` lies in pinned memory, and nothing waits: the bits are complete when the queued
    work is done. Calls may be captured in a CUDA graph.
    """
    if out.dtype != torch.int32 or out.ndim != 1 or not out.is_cpu:
        raise ValueError(
            f"out: expected [words] int32 on the host, got {list(out.shape)} {out.dtype} on "
            f"{out.device}"
        )
    words = sum(part.numel() * part.element_size() for part in parts) // 4
    if words != len(out):
        raise ValueError(f"out: has {len(out)} words, the parts have {words}")
    if any(part.device.type not in ("cpu", "cuda") for part in parts):
        raise ValueError("parts: expected on a CPU or a GPU")
    if not any(part.is_cuda for part in parts):
        collect_definition(parts, out)
        return
    extension()
    if not out.is_pinned():
        raise ValueError("out: not in pinned memory; call .pin_memory()")
    torch.ops.millisecond.collect([part.contiguous() for part in parts], out)


def collect_definition(parts: Sequence[Tensor], out: Tensor) -> None:
    """`collect` in plain torch."""
    out.copy_(torch.cat([part.reshape(-1).view(torch.int32) for part in parts]))


@fake("collect")
@fake("stage_points")
def _fake_nothing(*arguments) -> None:
    return None


@functools.cache
def own_stream(device: int, number: int, priority: int = 0) -> torch.cuda.Stream:
    """The stream of this number on a device, the same in every call.

    torch gives the same 32 streams per device to all who ask. So a stream on which one thread
    captures a graph may belong to another thread, too. priority: less goes first.
    """
    extension()
    handle = torch.ops.millisecond.own_stream(device, priority)
    return torch.cuda.ExternalStream(handle, torch.device("cuda", device))
