"""Non-maximum suppression against a loop over all pairs."""

import math

import torch

from millisecond.ops import iou_bev, nms
from tests.helpers.boxes import box, random_boxes


def brute_force_nms(boxes, scores, threshold: float, max_output: int) -> list[int]:
    iou = iou_bev(boxes, boxes)
    kept: list[int] = []
    for i in sorted(range(len(scores)), key=lambda i: (-float(scores[i]), i)):
        if len(kept) < max_output and not any(float(iou[j, i]) > threshold for j in kept):
            kept.append(i)
    return kept


def test_nms_matches_a_loop_over_all_pairs(monkeypatch):
    monkeypatch.setattr("millisecond.ops.boxes.NMS_BLOCK", 16)
    generator = torch.Generator().manual_seed(7)
    for case in range(60):
        n = int(torch.randint(1, 80, (1,), generator=generator))
        boxes = random_boxes(n, generator, spread=2.0 + case % 3 * 6)
        scores = torch.randint(0, 5 if case % 2 else 10_000, (n,), generator=generator) / 7.0
        threshold = (0.0, 0.01, 0.3, 0.7, 1.0)[case % 5]
        max_output = (n + 5, 1, 4, 20)[case % 4]
        kept = nms(boxes, scores, threshold, max_output)
        expected = brute_force_nms(boxes, scores, threshold, max_output)
        assert kept.indices.tolist() == expected + [-1] * (max_output - len(expected))
        assert kept.count.tolist() == [len(expected)]
        assert kept.indices.dtype == torch.int64
        assert kept.count.dtype == torch.int32


def test_nms_ties_keep_the_lower_index():
    boxes = torch.cat([box(x=float(i % 3) * 10) for i in range(600)])
    kept = nms(boxes, torch.full((600,), 0.5), 0.5, 10)
    assert kept.indices.tolist() == [0, 1, 2] + [-1] * 7


def test_nms_suppressed_boxes_suppress_nothing():
    boxes = torch.cat([box(x=1.5 * i) for i in range(700)])  # each overlaps its neighbours only
    kept = nms(boxes, torch.arange(700, 0, -1).float(), 0.3, 700)
    assert kept.indices[: int(kept.count)].tolist() == list(range(0, 700, 2))


def test_nms_stops_at_max_output():
    boxes = torch.cat([box(x=10.0 * i) for i in range(600)])
    scores = torch.linspace(1, 0, 600)
    kept = nms(boxes, scores, 0.1, 300)
    assert kept.indices.tolist() == list(range(300))
    assert nms(boxes, scores, 0.1, 0).indices.shape == (0,)


def test_nms_ignores_rows_beyond_the_count():
    boxes = torch.cat([box(x=10.0 * i) for i in range(6)])
    boxes[4:] = math.nan
    scores = torch.tensor([0.1, 0.2, 0.3, 0.4, math.nan, 0.9])
    kept = nms(boxes, scores, 0.1, 5, count=torch.tensor([4], dtype=torch.int32))
    assert kept.indices.tolist() == [3, 2, 1, 0, -1]
