"""Overlap of rotated boxes and non-maximum suppression in plain torch: definition and CPU path.

Area of intersection. In the frame of box A, which spans [-l/2, l/2] x [-w/2, w/2], the
intersection with a convex B has at each x the height clamp(top(x)) - clamp(bottom(x)), clamped to
+-w/2. Its area is therefore the sum, over the directed edges of B, of the integral of
clamp(y(x)) dx over the part of the edge within +-l/2. Nothing is sorted and nothing is a special
case: the result is continuous in the boxes, equal boxes included.
"""

import torch
from torch import Tensor

MATRIX_CHUNK = 1 << 22  # pairs whose distance is looked at together
PAIR_CHUNK = 1 << 15  # pairs intersected together: their temporaries stay in the cache
NMS_BLOCK = 256  # boxes tested together against those kept so far


def _reach(boxes: Tensor) -> Tensor:
    """Half of the diagonal; NaN, which is near to nothing, for a box without area."""
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
    # A vertical edge sweeps nothing and a level one crosses nothing: any divisor will do.
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
    # Boxes with a line between them share exactly nothing, not a rounding error.
    apart = (cx.abs() >= half_l + lx.abs() + wx.abs()) | (cy.abs() >= half_w + ly.abs() + wy.abs())
    along, across = (cos * cx + sin * cy).abs(), (cos * cy - sin * cx).abs()
    apart |= along >= bl / 2 + half_l * cos.abs() + half_w * sin.abs()
    apart |= across >= bw / 2 + half_l * sin.abs() + half_w * cos.abs()
    area = torch.minimum(area, torch.minimum(al * aw, bl * bw))
    return area.clamp_(min=0).masked_fill_(apart, 0)


def paired_overlap_bev(a: Tensor, b: Tensor) -> Tensor:
    """Area of intersection of row p of both, seen from above: [P, 7], [P, 7] -> [P] in m^2."""
    overlap = a.new_zeros(a.shape[0])
    for rows in _near(a, b).nonzero().squeeze(1).split(PAIR_CHUNK):
        overlap[rows] = _intersect(a[rows], b[rows])
    return overlap


def overlap_bev(a: Tensor, b: Tensor) -> Tensor:
    """Areas of intersection seen from above: [N, 7], [M, 7] -> [N, M] in m^2."""
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


def iou_bev(a: Tensor, b: Tensor) -> Tensor:
    """Intersection over union seen from above: [N, 7], [M, 7] -> [N, M]."""
    return _ratio(overlap_bev(a, b), a[:, 3] * a[:, 4], b[:, 3] * b[:, 4])


def iou_3d(a: Tensor, b: Tensor) -> Tensor:
    """Intersection over union of volumes: [N, 7], [M, 7] -> [N, M]."""
    low = torch.maximum((a[:, 2] - a[:, 5] / 2)[:, None], b[:, 2] - b[:, 5] / 2)
    high = torch.minimum((a[:, 2] + a[:, 5] / 2)[:, None], b[:, 2] + b[:, 5] / 2)
    shared = overlap_bev(a, b) * (high - low).clamp_(min=0)
    return _ratio(shared, a[:, 3:6].prod(1), b[:, 3:6].prod(1))


def _first_come(suppresses: Tensor) -> Tensor:
    """Greedy choice among boxes in order of score: [n, n] row suppresses column -> [n] kept.

    A box is kept unless a kept box before it suppresses it. Applied to all boxes at once until
    nothing changes, the rule settles one more box of every chain each time.
    """
    suppresses = suppresses.triu(1)
    kept = suppresses.new_ones(suppresses.shape[0])
    while True:
        settled = ~(suppresses & kept[:, None]).any(0)
        if torch.equal(settled, kept):
            return kept
        kept = settled


def nms(
    boxes: Tensor,
    scores: Tensor,
    iou_threshold: float,
    max_output: int,
    count: Tensor | None,
    labels: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Greedy suppression in order of score: indices [max_output], padded with -1, and count [1]."""
    if count is not None:
        scores = scores[: int(count)]  # sync: the reference is driven from the host
    order = torch.sort(scores, descending=True, stable=True).indices
    kept = order[:0]

    def suppresses(a: Tensor, b: Tensor) -> Tensor:
        over = iou_bev(boxes[a], boxes[b]) > iou_threshold
        return over if labels is None else over & (labels[a][:, None] == labels[b])

    for block in order.split(NMS_BLOCK):
        if kept.shape[0] >= max_output:
            break
        block = block[~suppresses(kept, block).any(0)]
        block = block[_first_come(suppresses(block, block))]
        kept = torch.cat((kept, block))[:max_output]
    indices = torch.full((max_output,), -1, dtype=torch.int64, device=boxes.device)
    indices[: kept.shape[0]] = kept
    return indices, torch.tensor([kept.shape[0]], dtype=torch.int32, device=boxes.device)
