"""Rotated boxes (x, y, z, l, w, h, yaw): overlap and IoU, non-maximum suppression (NMS), and the
boxes of predictions (score threshold, decoding, NMS).

A box without a positive length and width overlaps nothing and has IoU 0 with everything. No
function here has a gradient. float32 on a GPU runs the kernels of csrc/boxes, all else the
definitions.

Area of intersection. In the frame of box A, which spans [-l/2, l/2] x [-w/2, w/2], the
intersection with a convex B has at each x the height clamp(top(x)) - clamp(bottom(x)), clamped to
+-w/2. Its area is therefore the sum, over the directed edges of B, of the integral of
clamp(y(x)) dx over the part of the edge within +-l/2. Nothing is sorted and nothing is a special
case: the result is continuous in the boxes, equal boxes included.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from millisecond.ops.anchors import (
    DIRECTION_OFFSET,
    LARGEST_LOG_SIZE,
    PREDICTIONS,
    apply_direction,
    decode,
)
from millisecond.ops.bev import CellValues, bev_spread_definition
from millisecond.ops.dispatch import on_kernels
from millisecond.ops.geometry import check_tensor, same_device, whole
from millisecond.ops.library import fake

MATRIX_CHUNK = 1 << 22  # pairs whose distance is tested together
PAIR_CHUNK = 1 << 15  # pairs intersected together: their temporaries stay in the cache
NMS_BLOCK = 256  # boxes tested together against the boxes kept so far


class Kept(NamedTuple):
    """The boxes that non-maximum suppression keeps."""

    indices: Tensor  # [max_output] int64, best score first, padded with -1
    # [1] int32: how many of them are boxes. (Hides tuple.count.)
    count: Tensor  # type: ignore[assignment]


class SelectedBoxes(NamedTuple):
    """Boxes of each frame, best first, in a fixed number of rows; zeros behind the last one."""

    boxes: Tensor  # [B, after_nms, 7] float32 (x, y, z, l, w, h, yaw); 9: and vx, vy in m/s
    scores: Tensor  # [B, after_nms] float32
    labels: Tensor  # [B, after_nms] int64, from 1
    count: Tensor  # type: ignore[assignment]  # [B] int32: boxes (hides tuple.count)


# ---- overlap ------------------------------------------------------------------------------------


@torch.no_grad()
def overlap_bev(a: Tensor, b: Tensor) -> Tensor:  # [N, 7], [M, 7] -> [N, M]
    """Area in m^2 that every box of a shares with every box of b, seen from above."""
    _check_pair(a, b)
    return _overlap(a, b, "area") if on_kernels(a) else overlap_bev_definition(a, b)


@torch.no_grad()
def iou_bev(a: Tensor, b: Tensor) -> Tensor:  # [N, 7], [M, 7] -> [N, M]
    """Intersection over union of every box of a with every box of b, seen from above."""
    _check_pair(a, b)
    return _overlap(a, b, "iou_bev") if on_kernels(a) else iou_bev_definition(a, b)


@torch.no_grad()
def iou_3d(a: Tensor, b: Tensor) -> Tensor:  # [N, 7], [M, 7] -> [N, M]
    """Intersection over union of the volumes of every box of a and every box of b."""
    _check_pair(a, b)
    return _overlap(a, b, "iou_3d") if on_kernels(a) else iou_3d_definition(a, b)


@torch.no_grad()
def paired_overlap_bev(a: Tensor, b: Tensor) -> Tensor:  # [P, 7], [P, 7] -> [P]
    """Area in m^2 that row p of a shares with row p of b, seen from above."""
    _check_pair(a, b)
    if a.shape != b.shape:
        raise ValueError(f"a has {a.shape[0]} boxes but b has {b.shape[0]}: pairs need as many")
    if not on_kernels(a):
        return paired_overlap_bev_definition(a, b)
    return torch.ops.millisecond.paired_overlap(a.contiguous(), b.contiguous())


def _overlap(a: Tensor, b: Tensor, kind: str) -> Tensor:
    return torch.ops.millisecond.overlap(a.contiguous(), b.contiguous(), kind)


@fake("overlap")
def _fake_overlap(a, b, kind) -> Tensor:
    return a.new_empty(a.shape[0], b.shape[0])


@fake("paired_overlap")
def _fake_paired_overlap(a, b) -> Tensor:
    return a.new_empty(a.shape[0])


def paired_overlap_bev_definition(a: Tensor, b: Tensor) -> Tensor:
    """`paired_overlap_bev` in plain torch."""
    overlap = a.new_zeros(a.shape[0])
    for rows in _near(a, b).nonzero().squeeze(1).split(PAIR_CHUNK):
        overlap[rows] = _intersect(a[rows], b[rows])
    return overlap


def overlap_bev_definition(a: Tensor, b: Tensor) -> Tensor:
    """`overlap_bev` in plain torch."""
    overlap = a.new_zeros(a.shape[0], b.shape[0])
    step = max(1, MATRIX_CHUNK // max(1, b.shape[0]))
    for first in range(0, a.shape[0], step):
        near = _near(a[first : first + step, None], b[None]).nonzero()
        for pairs in near.split(PAIR_CHUNK):
            rows, columns = pairs[:, 0] + first, pairs[:, 1]
            overlap[rows, columns] = _intersect(a[rows], b[columns])
    return overlap


def _ratio(shared: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """Intersection over union from the intersections [N, M] and the sizes [N], [M]."""
    union = a[:, None] + b - shared
    return torch.where(shared > 0, shared / union, 0)


def iou_bev_definition(a: Tensor, b: Tensor) -> Tensor:
    """`iou_bev` in plain torch."""
    return _ratio(overlap_bev_definition(a, b), a[:, 3] * a[:, 4], b[:, 3] * b[:, 4])


def iou_3d_definition(a: Tensor, b: Tensor) -> Tensor:
    """`iou_3d` in plain torch."""
    low = torch.maximum((a[:, 2] - a[:, 5] / 2)[:, None], b[:, 2] - b[:, 5] / 2)
    high = torch.minimum((a[:, 2] + a[:, 5] / 2)[:, None], b[:, 2] + b[:, 5] / 2)
    shared = overlap_bev_definition(a, b) * (high - low).clamp_(min=0)
    return _ratio(shared, a[:, 3:6].prod(1), b[:, 3:6].prod(1))


def _reach(boxes: Tensor) -> Tensor:
    """Half of the diagonal; NaN for a box without area: it then overlaps nothing."""
    length, width = boxes[..., 3], boxes[..., 4]
    reach = torch.sqrt(length * length + width * width) / 2
    return torch.where(torch.minimum(length, width) > 0, reach, torch.nan)


def _near(a: Tensor, b: Tensor) -> Tensor:
    """Whether the circles around two boxes overlap: [.., 7], [.., 7] -> [..] bool."""
    dx, dy = b[..., 0] - a[..., 0], b[..., 1] - a[..., 1]
    reach = _reach(a) + _reach(b)
    return dx * dx + dy * dy < reach * reach


def _swept_area(x: Tensor, y: Tensor, half_l: Tensor, half_w: Tensor) -> Tensor:
    """Area that the clamped edges of a clockwise polygon sweep above y = 0: [4, P], [P] -> [P]."""
    dx, dy = x.roll(-1, 0) - x, y.roll(-1, 0) - y
    # A vertical edge sweeps nothing and a level one crosses nothing, so any divisor is right.
    run = torch.where(dx == 0, 1, dx)
    rise = torch.where(dy == 0, 1, dy)
    ends = (-half_l - x) / run, (half_l - x) / run
    start = torch.minimum(*ends).clamp_(0, 1)
    stop = torch.maximum(*ends).clamp_(0, 1)
    crossings = (-half_w - y) / rise, (half_w - y) / rise
    enter = torch.minimum(*crossings).clamp_(start, stop)
    leave = torch.maximum(*crossings).clamp_(start, stop)

    def height(t: Tensor) -> Tensor:
        return (y + t * dy).clamp_(-half_w, half_w)

    # Level, sloped, level: each trapezoid is its width times its height in the middle.
    area = (enter - start) * height(start)
    area += (leave - enter) * height((enter + leave) / 2)
    area += (stop - leave) * height(stop)
    return (area * dx).sum(0)


def _intersect(a: Tensor, b: Tensor) -> Tensor:
    """Areas of intersection of boxes that have an area themselves: [P, 7], [P, 7] -> [P]."""
    ax, ay, _, al, aw, _, a_yaw = a.unbind(1)
    bx, by, _, bl, bw, _, b_yaw = b.unbind(1)
    dx, dy = bx - ax, by - ay
    cos, sin = torch.cos(a_yaw), torch.sin(a_yaw)
    cx, cy = cos * dx + sin * dy, cos * dy - sin * dx  # centre of B in the frame of A
    turn = b_yaw - a_yaw
    cos, sin = torch.cos(turn), torch.sin(turn)
    half_l, half_w = al / 2, aw / 2
    lx, ly = cos * bl / 2, sin * bl / 2  # half axes of B in the frame of A
    wx, wy = -sin * bw / 2, cos * bw / 2
    x = cx + torch.stack((lx + wx, lx - wx, -lx - wx, wx - lx))
    y = cy + torch.stack((ly + wy, ly - wy, -ly - wy, wy - ly))
    area = _swept_area(x, y, half_l, half_w)
    # Boxes with a line between them share exactly 0, not a rounding error.
    apart = (cx.abs() >= half_l + lx.abs() + wx.abs()) | (cy.abs() >= half_w + ly.abs() + wy.abs())
    along, across = (cos * cx + sin * cy).abs(), (cos * cy - sin * cx).abs()
    apart |= along >= bl / 2 + half_l * cos.abs() + half_w * sin.abs()
    apart |= across >= bw / 2 + half_l * sin.abs() + half_w * cos.abs()
    area = torch.minimum(area, torch.minimum(al * aw, bl * bw))
    return area.clamp_(min=0).masked_fill_(apart, 0)


def _check_pair(a: Tensor, b: Tensor) -> None:
    same_device(a=a, b=b)
    _check_boxes("a", a)
    _check_boxes("b", b)
    if a.dtype != b.dtype:
        raise ValueError(f"a is {a.dtype} but b is {b.dtype}")


def _check_boxes(name: str, boxes: Tensor) -> None:
    if boxes.dim() != 2 or boxes.shape[1] != 7:
        raise ValueError(f"{name} has shape {tuple(boxes.shape)}: boxes are [N, 7]")
    if boxes.dtype not in (torch.float32, torch.float64):
        raise ValueError(f"{name} has dtype {boxes.dtype}: boxes are float32 or float64")
    _check_finite(name, boxes)


def _check_finite(name: str, values: Tensor) -> None:
    """Checked only on the CPU: on a GPU the check would cost a synchronisation."""
    if values.is_cuda or torch.isfinite(values).all():
        return
    row = int((~torch.isfinite(values)).nonzero()[0, 0])
    raise ValueError(f"{name}[{row}] is {values[row].tolist()}: every value must be finite")


# ---- non-maximum suppression --------------------------------------------------------------------


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
    is a ValueError that names the row. On a GPU values are not checked, since the host would have
    to wait for them. The kernels never wait for the device and may be captured in a CUDA graph.
    """
    same_device(boxes=boxes, scores=scores, labels=labels)
    rows = None if count is None or boxes.is_cuda else int(count)
    _check_boxes("boxes", boxes[:rows])
    if scores.shape != boxes.shape[:1]:
        raise ValueError(f"scores has shape {tuple(scores.shape)}, boxes {tuple(boxes.shape)}")
    _check_finite("scores", scores[:rows])
    if labels is not None:
        check_tensor("labels", labels, scores.shape, torch.int64)
    _check_share("iou_threshold", iou_threshold)
    whole("max_output", max_output, 0)
    if not on_kernels(boxes):
        return nms_definition(boxes, scores, iou_threshold, max_output, count, labels)
    if count is not None:
        row = torch.arange(scores.shape[0], device=scores.device)
        scores = scores.masked_fill(row >= count, -torch.inf)
    order = torch.sort(scores, descending=True, stable=True).indices
    labels = None if labels is None else labels.contiguous()
    kept = torch.ops.millisecond.nms(
        boxes.contiguous(), order, iou_threshold, max_output, count, labels
    )
    return Kept(*kept)


def nms_definition(
    boxes: Tensor,
    scores: Tensor,
    iou_threshold: float,
    max_output: int,
    count: Tensor | None,
    labels: Tensor | None = None,
) -> Kept:
    """`nms` in plain torch."""
    if count is not None:
        scores = scores[: int(count)]  # sync: the definition is driven from the host
    order = torch.sort(scores, descending=True, stable=True).indices
    kept = order[:0]

    def suppresses(a: Tensor, b: Tensor) -> Tensor:
        over = iou_bev_definition(boxes[a], boxes[b]) > iou_threshold
        return over if labels is None else over & (labels[a][:, None] == labels[b])

    for block in order.split(NMS_BLOCK):
        if kept.shape[0] >= max_output:
            break
        block = block[~suppresses(kept, block).any(0)]
        block = block[_first_come(suppresses(block, block))]
        kept = torch.cat((kept, block))[:max_output]
    indices = torch.full((max_output,), -1, dtype=torch.int64, device=boxes.device)
    indices[: kept.shape[0]] = kept
    count = torch.tensor([kept.shape[0]], dtype=torch.int32, device=boxes.device)
    return Kept(indices, count)


def _first_come(suppresses: Tensor) -> Tensor:
    """Greedy choice among boxes in order of score: [n, n] row suppresses column -> [n] kept.

    A box is kept unless a kept box before it suppresses it. Applied to all boxes at once until
    nothing changes, the rule settles one more box of every chain each time.
    """
    over = suppresses.triu(1).float()  # a product counts much faster than bools are tested
    kept = over.new_ones(over.shape[0])
    while True:
        settled = (over.T.mv(kept) == 0).float()
        if torch.equal(settled, kept):
            return kept.bool()
        kept = settled


def _check_share(name: str, share: float) -> None:
    if not 0 <= share <= 1:
        raise ValueError(f"{name} is {share}: it must lie in 0..1")


@fake("nms")
def _fake_nms(boxes, order, iou_threshold, max_output, *_) -> tuple[Tensor, Tensor]:
    return order.new_empty(max_output), order.new_empty(1, dtype=torch.int32)


# ---- boxes of predictions -----------------------------------------------------------------------


@torch.no_grad()
def select_boxes(
    class_logits: Tensor,  # [B, A, K]
    box_residuals: Tensor,  # [B, A, 7]
    direction_logits: Tensor,  # [B, A, 2]
    anchors: Tensor,  # [A, 7] float32
    score: float,
    before_nms: int,
    iou_threshold: float,
    after_nms: int,
    per_class: bool = False,
    velocities: Tensor | None = None,  # [B, A, 2]
) -> SelectedBoxes:
    """The score of an anchor is the score of its best class: the greatest sigmoid of a logit, of
    equal ones the first. Anchors that score less than `score` are left out. The `before_nms` best
    of the rest become boxes, of equal scores the lower anchors: they are decoded, and turned into
    the half turn of their direction. `nms` keeps up to `after_nms` of them; per_class: among boxes
    of one class only.

    Behind each box stands the velocity of its anchor where there are velocities. A logit that is
    not a number scores 0, and a residual or velocity that is not finite is 0. The kernels never
    wait for the device and may be captured in a CUDA graph; their numbers differ from the
    reference's by rounding.
    """
    if class_logits.ndim != 3 or class_logits.shape[2] == 0:
        raise ValueError(f"class_logits: expected [B, A, K], got {list(class_logits.shape)}")
    batch, count, classes = class_logits.shape
    check_tensor("class_logits", class_logits, (batch, count, classes), "of floats")
    check_tensor("box_residuals", box_residuals, (batch, count, 7))
    check_tensor("direction_logits", direction_logits, (batch, count, 2), "of floats")
    predictions = class_logits, box_residuals, direction_logits
    named = dict(zip(PREDICTIONS, predictions, strict=True))
    if velocities is not None:
        check_tensor("velocities", velocities, (batch, count, 2), "of floats")
        named["velocities"] = velocities
    same_device(**named, anchors=anchors)
    _check_limits(anchors, count, score, before_nms, iou_threshold, after_nms)
    limits = score, min(before_nms, count), iou_threshold, after_nms, per_class
    if not on_kernels(class_logits):
        return select_boxes_definition(
            class_logits, box_residuals, direction_logits, anchors, *limits, velocities
        )
    moving = None if velocities is None else velocities.contiguous()
    dense = (tensor.contiguous() for tensor in (*predictions, anchors))
    coder = DIRECTION_OFFSET, LARGEST_LOG_SIZE
    return SelectedBoxes(*torch.ops.millisecond.select_boxes(*dense, *limits, *coder, moving))


@torch.no_grad()
def select_boxes_definition(
    class_logits: Tensor,
    box_residuals: Tensor,
    direction_logits: Tensor,
    anchors: Tensor,
    score: float,
    before_nms: int,
    iou_threshold: float,
    after_nms: int,
    per_class: bool,
    velocities: Tensor | None = None,
) -> SelectedBoxes:
    """`select_boxes` in plain torch."""
    frames = []
    for frame, (logits, residuals, directions) in enumerate(
        zip(class_logits, box_residuals, direction_logits, strict=True)
    ):
        best, index, labels = _candidates(logits, before_nms)
        codes = residuals[index].float().nan_to_num(nan=0, posinf=0, neginf=0)
        boxes = decode(codes, anchors[index])
        yaw = apply_direction(boxes[:, 6], directions[index].argmax(dim=-1))
        boxes = torch.cat((boxes[:, :6], yaw[:, None]), dim=1)
        count = (best >= score).sum(dtype=torch.int32).view(1)
        groups = labels if per_class else None
        _check_finite("boxes", boxes[: int(count)])  # sync: and so do the next lines
        kept = nms_definition(boxes, best, iou_threshold, after_nms, count, groups)
        rows, empty = kept.indices.clamp(min=0), kept.indices < 0
        if velocities is not None:
            speeds = velocities[frame, index].float().nan_to_num(nan=0, posinf=0, neginf=0)
            boxes = torch.cat((boxes, speeds), dim=1)
        frames.append(
            (
                boxes[rows].masked_fill(empty[:, None], 0),
                best[rows].masked_fill(empty, 0),
                labels[rows].masked_fill(empty, 0),
                kept.count[0],
            )
        )
    return SelectedBoxes(*(torch.stack(parts) for parts in zip(*frames, strict=True)))


def _candidates(logits: Tensor, before_nms: int) -> tuple[Tensor, Tensor, Tensor]:
    """Scores, indices and labels of the best anchors; of equal scores the lower index first."""
    scores, labels = torch.sigmoid(logits.float()).nan_to_num(nan=0).max(dim=-1)
    # Positive floats have the order of their bits. The index in the low bits makes keys unique.
    count = len(scores)
    order = torch.arange(count, device=scores.device)
    keys = (scores.view(torch.int32).long() << 32) | (count - 1 - order)
    index = count - 1 - (keys.topk(before_nms).values & 0xFFFFFFFF)
    return scores[index], index, labels[index] + 1


@torch.no_grad()
def select_boxes_of_cells(
    cells: CellValues,
    anchors: Tensor,  # [A, 7] float32
    score: float,
    before_nms: int,
    iou_threshold: float,
    after_nms: int,
    per_class: bool = False,
) -> SelectedBoxes:
    """As `select_boxes`, to the bit, of the predictions that `bev_spread` would write: groups of
    class logits, residuals, directions and perhaps velocities, the anchors of a cell side by side.
    Only the predictions that are needed are computed."""
    _, y, x = cells.rows[0].shape
    count = y * x * cells.factors[0] ** 2 * (cells.channels[2] // 2)
    _check_limits(anchors, count, score, before_nms, iou_threshold, after_nms)
    limits = score, min(before_nms, count), iou_threshold, after_nms, per_class
    if not on_kernels(anchors):
        return select_boxes_of_cells_definition(cells, anchors, *limits)
    coder = DIRECTION_OFFSET, LARGEST_LOG_SIZE
    found = torch.ops.millisecond.select_boxes_of_cells(
        *cells, anchors.contiguous(), *limits, *coder
    )
    return SelectedBoxes(*found)


def select_boxes_of_cells_definition(
    cells: CellValues,
    anchors: Tensor,
    score: float,
    before_nms: int,
    iou_threshold: float,
    after_nms: int,
    per_class: bool,
) -> SelectedBoxes:
    """`select_boxes_of_cells` in plain torch."""
    of_cell = cells.channels[2] // 2
    logits, residuals, directions, *moving = (
        group.reshape(len(group), -1, group.shape[-1] // of_cell)
        for group in bev_spread_definition(*cells)
    )
    limits = score, before_nms, iou_threshold, after_nms, per_class
    return select_boxes_definition(logits, residuals, directions, anchors, *limits, *moving)


def _check_limits(
    anchors: Tensor, count: int, score: float, before_nms: int, iou_threshold: float, after_nms: int
) -> None:
    check_tensor("anchors", anchors, (count, 7), torch.float32)
    for name, value in (("before_nms", before_nms), ("after_nms", after_nms)):
        whole(name, value, 1)
    _check_share("score", score)
    _check_share("iou_threshold", iou_threshold)


@fake("select_boxes")
def _fake_select_boxes(
    logits, residuals, directions, anchors, score, before_nms, iou_threshold, after_nms, *others
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    velocities = others[3] if len(others) > 3 else None
    return _empty(len(logits), after_nms, anchors, 7 if velocities is None else 9)


@fake("select_boxes_of_cells")
def _fake_select_boxes_of_cells(
    values, rows, factors, channels, anchors, score, before_nms, iou_threshold, after_nms, *_
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return _empty(len(rows[0]), after_nms, anchors, 7 if len(channels) == 3 else 9)


def _empty(
    batch: int, after_nms: int, anchors: Tensor, width: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return (
        anchors.new_empty(batch, after_nms, width),
        anchors.new_empty(batch, after_nms),
        anchors.new_empty(batch, after_nms, dtype=torch.int64),
        anchors.new_empty(batch, dtype=torch.int32),
    )
