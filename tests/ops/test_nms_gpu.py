"""Non-maximum suppression on the kernels equals the reference, tie by tie."""

import math

import pytest
import torch

from millisecond.ops import iou_bev, nms
from millisecond.ops.boxes import nms_definition
from tests.helpers.boxes import scene, seeded_boxes
from tests.helpers.sparse import poison_bits

pytestmark = pytest.mark.gpu


def check_nms(boxes, scores, threshold: float, max_output: int, count=None) -> None:
    expected = nms_definition(boxes, scores, threshold, max_output, count)
    poison_bits()
    rows = None if count is None else count.cuda()
    kept = nms(boxes.cuda(), scores.cuda(), threshold, max_output, rows)
    torch.testing.assert_close(kept.indices.cpu(), expected[0], rtol=0, atol=0)
    torch.testing.assert_close(kept.count.cpu(), expected[1], rtol=0, atol=0)


@pytest.mark.parametrize("n", [0, 1, 2, 63, 64, 65, 127, 128, 129, 200, 1000])
@pytest.mark.parametrize("max_output", [0, 1, 40, 500])
def test_nms_matches_the_reference(n, max_output):
    for seed, spread in enumerate((3.0, 10.0, 60.0)):
        boxes = seeded_boxes(n, 20 + seed, spread)
        generator = torch.Generator().manual_seed(seed)
        scores = torch.rand(n, generator=generator)
        for threshold in (0.0, 0.01, 0.5, 1.0):
            check_nms(boxes, scores, threshold, max_output)
        check_nms(boxes, (scores * 4).round(), 0.1, max_output)  # many ties


@pytest.mark.parametrize("count", [0, 1, 64, 65, 300, 999, 1000, 4000])
def test_nms_counts_on_the_device(count):
    boxes, scores = scene(1000, 30, objects=80), torch.rand(1000).sort().values
    boxes[count:], scores[count:] = math.nan, math.nan
    check_nms(boxes, scores, 0.1, 500, torch.tensor([count], dtype=torch.int32))


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("objects", [30, 300, 4000])
def test_nms_of_4096_detections(seed, objects):
    generator = torch.Generator().manual_seed(seed)
    scores = torch.rand(4096, generator=generator)
    check_nms(scene(4096, seed, objects), scores, 0.01, 500)


def test_nms_of_identical_boxes():
    check_nms(seeded_boxes(1, 40).repeat(4096, 1), torch.ones(4096), 0.01, 500)
    check_nms(seeded_boxes(1, 40).repeat(200, 1), torch.ones(200), 1.0, 150)


def test_nms_of_boxes_apart_and_in_a_chain():
    boxes = torch.zeros(4096, 7)
    boxes[:, 3:6] = torch.tensor([4.0, 2.0, 1.5])
    boxes[:, 0] = torch.arange(4096) * 10.0
    check_nms(boxes, torch.linspace(1, 0, 4096), 0.01, 4096)
    boxes[:, 0] = torch.arange(4096) * 1.5  # each overlaps its two neighbours only
    check_nms(boxes, torch.linspace(1, 0, 4096), 0.3, 4096)
    check_nms(boxes, torch.linspace(1, 0, 4096), 0.3, 1000)


@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
def test_nms_never_waits_for_the_device():
    boxes, scores = scene(500, 60).cuda(), torch.rand(500).cuda()
    count = torch.tensor([400], dtype=torch.int32, device="cuda")
    nms(boxes, scores, 0.01, 100, count)
    torch.cuda.set_sync_debug_mode("error")
    try:
        nms(boxes, scores, 0.01, 100, count)
        iou_bev(boxes, boxes)
    finally:
        torch.cuda.set_sync_debug_mode("default")
