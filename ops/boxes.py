"""Overlap of rotated boxes (x, y, z, l, w, h, yaw) and non-maximum suppression.

A box without a positive length and width overlaps nothing and has IoU 0 with everything. No
function here has a gradient. float32 on a GPU runs the CUDA kernels, all else the reference.
"""

from types import ModuleType
from typing import NamedTuple

import torch
from torch import Tensor

from ops.cuda import boxes as cuda
from ops.dispatch import on_kernels
from ops.reference import boxes as reference


class Kept(NamedTuple):
    """What non-maximum suppression left."""

    indices: Tensor  # [max_output] int64, best score first, padded with -1
    # [1] int32: how many of them are boxes. (Hides tuple.count.)
    count: Tensor  # type: ignore[assignment]


@torch.no_grad()
def overlap_bev(a: Tensor, b: Tensor) -> Tensor:  # [N, 7], [M, 7] -> [N, M]
    """Area in m^2 that every box of a shares with every box of b, seen from above."""
    return _backend(a, b).overlap_bev(a, b)


@torch.no_grad()
def iou_bev(a: Tensor, b: Tensor) -> Tensor:  # [N, 7], [M, 7] -> [N, M]
    """Intersection over union of every box of a with every box of b, seen from above."""
    return _backend(a, b).iou_bev(a, b)


@torch.no_grad()
def iou_3d(a: Tensor, b: Tensor) -> Tensor:  # [N, 7], [M, 7] -> [N, M]
    """Intersection over union of the volumes of every box of a and every box of b."""
    return _backend(a, b).iou_3d(a, b)


@torch.no_grad()
def paired_overlap_bev(a: Tensor, b: Tensor) -> Tensor:  # [P, 7], [P, 7] -> [P]
    """Area in m^2 that row p of a shares with row p of b, seen from above."""
    backend = _backend(a, b)
    if a.shape != b.shape:
        raise ValueError(f"a has {a.shape[0]} boxes but b has {b.shape[0]}: pairs need as many")
    return backend.paired_overlap_bev(a, b)


@torch.no_grad()
def nms(
    boxes: Tensor,  # [N, 7]
    scores: Tensor,  # [N]
    iou_threshold: float,
    max_output: int,
    count: Tensor | None = None,  # [1] int32: rows of boxes and scores from here on hold nothing
    labels: Tensor | None = None,  # [N] int64
) -> Kept:
    """Greedy suppression over all boxes together, seen from above; with labels only boxes of one
    label suppress each other.

    In order of score (ties: lower index first) a box is kept unless its IoU with one kept before
    exceeds iou_threshold, until max_output are kept. On the CPU a score or box that is not finite
    is a ValueError that names the row; on a GPU nothing waits for the values, so nothing looks.
    The kernels never wait for the device and may be captured in a CUDA graph.
    """
    rows = None if count is None or boxes.is_cuda else int(count)
    _check_boxes("boxes", boxes[:rows])
    if scores.shape != boxes.shape[:1]:
        raise ValueError(f"scores has shape {tuple(scores.shape)}, boxes {tuple(boxes.shape)}")
    if scores.device != boxes.device:
        raise ValueError(f"scores is on {scores.device}, boxes on {boxes.device}")
    _check_finite("scores", scores[:rows])
    if labels is not None and (labels.shape != scores.shape or labels.dtype != torch.int64):
        raise ValueError(
            f"labels: expected {list(scores.shape)} int64, got {list(labels.shape)} {labels.dtype}"
        )
    if not 0 <= iou_threshold <= 1:
        raise ValueError(f"iou_threshold is {iou_threshold}: it must lie in 0..1")
    if max_output < 0:
        raise ValueError(f"max_output is {max_output}: it must not be negative")
    backend = cuda if on_kernels(boxes) else reference
    return Kept(*backend.nms(boxes, scores, iou_threshold, max_output, count, labels))


def _backend(a: Tensor, b: Tensor) -> ModuleType:
    _check_boxes("a", a)
    _check_boxes("b", b)
    if a.dtype != b.dtype or a.device != b.device:
        raise ValueError(f"a is {a.dtype} on {a.device} but b is {b.dtype} on {b.device}")
    return cuda if on_kernels(a) else reference


def _check_boxes(name: str, boxes: Tensor) -> None:
    if boxes.dim() != 2 or boxes.shape[1] != 7:
        raise ValueError(f"{name} has shape {tuple(boxes.shape)}: boxes are [N, 7]")
    if boxes.dtype not in (torch.float32, torch.float64):
        raise ValueError(f"{name} has dtype {boxes.dtype}: boxes are float32 or float64")
    _check_finite(name, boxes)


def _check_finite(name: str, values: Tensor) -> None:
    """Only on the CPU: on a GPU the look would cost a synchronisation."""
    if values.is_cuda or torch.isfinite(values).all():
        return
    row = int((~torch.isfinite(values)).nonzero()[0, 0])
    raise ValueError(f"{name}[{row}] is {values[row].tolist()}: every value must be finite")
