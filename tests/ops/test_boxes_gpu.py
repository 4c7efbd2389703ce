"""The box kernels against the plain-torch reference."""

import math

import pytest
import torch

from millisecond.ops import boxes, iou_3d, iou_bev, nms, overlap_bev, paired_overlap_bev
from millisecond.ops.library import extension
from tests.helpers.boxes import scene, seeded_boxes
from tests.helpers.sparse import poison_bits

pytestmark = pytest.mark.gpu

MATRICES = {"overlap_bev": overlap_bev, "iou_bev": iou_bev, "iou_3d": iou_3d}
TOLERANCE = 1e-5  # of areas up to about 20 m^2, in float32


def defined(name: str):
    return getattr(boxes, f"{name}_definition")


def adversarial_boxes() -> torch.Tensor:
    """Equal, nearly equal, touching, turned by quarters, tiny, huge, thin, far and empty boxes."""
    base = torch.tensor([1.0, 2, 0, 4, 2, 1.5, 0])
    changes = {
        0: [4, 1e-7, 2.0, -4],
        1: [2, -2, 1e-6],
        2: [1.5, -0.7, 9],
        3: [0, -4, -8, 1e-4, 96, 2],
        4: [0, -2, -2.5, 1e-4, 98],
        5: [0, -1.5, -2, 0.5],
        6: [k * math.pi / 4 for k in range(-9, 9)] + [1e-7, -1e-4, math.pi + 1e-6, 1000],
    }
    rows = [base, base]
    for column, values in changes.items():
        for value in values:
            row = base.clone()
            row[column] += value
            rows.append(row)
    near = torch.stack(rows)
    far = near.clone()
    far[:, :2] += 2.0**20
    return torch.cat((near, far))


@pytest.mark.parametrize("name", MATRICES)
@pytest.mark.parametrize(("n", "m"), [(1, 1), (1, 100), (100, 1), (257, 130), (0, 5), (5, 0)])
def test_matrix_matches_the_reference(name, n, m):
    a, b = seeded_boxes(n, 1), seeded_boxes(m, 2)
    expected = defined(name)(a.double(), b.double()).float()
    poison_bits()
    out = MATRICES[name](a.cuda(), b.cuda())
    torch.testing.assert_close(out.cpu(), expected, rtol=0, atol=TOLERANCE)
    assert torch.equal(out == 0, (MATRICES[name](a, b) == 0).cuda())


@pytest.mark.parametrize("name", MATRICES)
def test_matrix_of_adversarial_boxes(name):
    near = adversarial_boxes()
    expected = defined(name)(near, near)
    out = MATRICES[name](near.cuda(), near.cuda()).cpu()
    torch.testing.assert_close(out, expected, rtol=1e-6, atol=TOLERANCE)


def test_matrix_wider_than_the_grid():
    a, b = seeded_boxes(1, 3), seeded_boxes(1000, 4)
    many = b.repeat(2200, 1).cuda()
    out = overlap_bev(a.cuda(), many).view(2200, 1000)
    torch.testing.assert_close(out[0].cpu(), overlap_bev(a, b)[0], rtol=0, atol=TOLERANCE)
    assert (out == out[0]).all()


@pytest.mark.parametrize("pairs", [0, 1, 300, 100_003])
def test_pairs_match_the_reference(pairs):
    a, b = seeded_boxes(pairs, 5, spread=3.0), seeded_boxes(pairs, 6, spread=3.0)
    poison_bits()
    out = paired_overlap_bev(a.cuda(), b.cuda())
    torch.testing.assert_close(out.cpu(), paired_overlap_bev(a, b), rtol=0, atol=TOLERANCE)


def test_identical_boxes_have_iou_one():
    boxes = torch.cat((seeded_boxes(500, 7), seeded_boxes(500, 8) + 1e3))
    boxes[:, 3:6] = boxes[:, 3:6].fmod(4) + 0.3
    area = boxes[:, 3] * boxes[:, 4]
    overlap = paired_overlap_bev(boxes.cuda(), boxes.cuda())
    torch.testing.assert_close(overlap.cpu(), area, rtol=2e-7, atol=0)
    diagonal = iou_bev(boxes.cuda(), boxes.cuda()).diagonal()
    torch.testing.assert_close(diagonal.cpu(), torch.ones(1000), rtol=0, atol=2e-7)


def test_float64_and_views_are_taken():
    wide = torch.cat((seeded_boxes(50, 9), torch.zeros(50, 2)), 1).cuda()
    boxes = wide[:, :7]
    assert not boxes.is_contiguous()
    assert torch.equal(iou_bev(boxes, boxes), iou_bev(boxes.contiguous(), boxes.contiguous()))
    exact = iou_bev(boxes.double(), boxes.double())
    assert exact.dtype == torch.float64
    torch.testing.assert_close(iou_bev(boxes, boxes).double(), exact, rtol=0, atol=TOLERANCE)
    scores = torch.arange(50, device="cuda").float()
    kept = nms(boxes, scores, 0.1, 20)
    assert torch.equal(kept.indices, nms(boxes.contiguous(), scores, 0.1, 20).indices)


def test_same_bits_every_time():
    boxes, scores = scene(4096, 50).cuda(), torch.rand(4096).cuda()
    first_iou, first = iou_3d(boxes, boxes), nms(boxes, scores, 0.01, 500)
    for _ in range(10):
        poison_bits()
        assert torch.equal(iou_3d(boxes, boxes), first_iou)
        again = nms(boxes, scores, 0.01, 500)
        assert torch.equal(again.indices, first.indices)
        assert torch.equal(again.count, first.count)


def test_another_stream():
    boxes, scores = scene(2000, 70), torch.rand(2000)
    expected = nms(boxes, scores, 0.01, 500)
    stream = torch.cuda.Stream()
    device_boxes, device_scores = torch.zeros(2000, 7).cuda(), torch.zeros(2000).cuda()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        torch.cuda._sleep(20_000_000)  # a launch on the default stream would read the zeros
        device_boxes.copy_(boxes, non_blocking=True)
        device_scores.copy_(scores, non_blocking=True)
        kept = nms(device_boxes, device_scores, 0.01, 500)
        iou = iou_bev(device_boxes[:50], device_boxes)
    stream.synchronize()
    assert torch.equal(kept.indices.cpu(), expected.indices)
    torch.testing.assert_close(iou.cpu(), iou_bev(boxes[:50], boxes), rtol=0, atol=TOLERANCE)


def test_cuda_graph():
    boxes, scores = torch.zeros(1000, 7).cuda(), torch.zeros(1000).cuda()
    count = torch.zeros(1, dtype=torch.int32).cuda()
    nms(boxes, scores, 0.05, 200, count)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kept = nms(boxes, scores, 0.05, 200, count)
        overlap = paired_overlap_bev(boxes, boxes.flip(0))
    for seed, n in enumerate((1000, 0, 17, 640, 1000)):
        new, new_scores = scene(1000, seed, objects=100), torch.rand(1000)
        boxes.copy_(new)
        scores.copy_(new_scores)
        count.fill_(n)
        graph.replay()
        expected = nms(new, new_scores, 0.05, 200, torch.tensor([n], dtype=torch.int32))
        assert torch.equal(kept.indices.cpu(), expected.indices)
        assert torch.equal(kept.count.cpu(), expected.count)
        pairs = paired_overlap_bev(new, new.flip(0))
        torch.testing.assert_close(overlap.cpu(), pairs, rtol=0, atol=TOLERANCE)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_second_gpu():
    boxes, scores = scene(1000, 80), torch.rand(1000)
    kept = nms(boxes.to("cuda:1"), scores.to("cuda:1"), 0.01, 500)
    assert kept.indices.device == torch.device("cuda:1")
    assert torch.equal(kept.indices.cpu(), nms(boxes, scores, 0.01, 500).indices)
    with pytest.raises(ValueError, match=r"cuda:0.*cuda:1"):
        iou_bev(boxes.to("cuda:0"), boxes.to("cuda:1"))


def test_operators_pass_opcheck():
    extension()
    boxes = scene(100, 90).cuda()
    order = torch.arange(100, device="cuda")
    count = torch.tensor([90], dtype=torch.int32, device="cuda")
    torch.library.opcheck(torch.ops.millisecond.overlap.default, (boxes, boxes[:7], "iou_3d"))
    torch.library.opcheck(torch.ops.millisecond.paired_overlap.default, (boxes, boxes))
    torch.library.opcheck(torch.ops.millisecond.nms.default, (boxes, order, 0.1, 20, count))
    torch.library.opcheck(torch.ops.millisecond.nms.default, (boxes, order, 0.1, 20, None))


def test_wrong_input_is_named():
    extension()
    operators = torch.ops.millisecond
    boxes = seeded_boxes(10, 91).cuda()
    order = torch.arange(10, device="cuda")
    with pytest.raises(ValueError, match="b: on cpu, a on cuda"):
        iou_bev(boxes, boxes.cpu())
    with pytest.raises(ValueError, match="scores: on cpu, boxes on cuda"):
        nms(boxes, torch.zeros(10), 0.1, 5)
    with pytest.raises(RuntimeError, match="a must be Float, is Double"):
        operators.overlap(boxes.double(), boxes, "area")
    with pytest.raises(RuntimeError, match=r"b must have shape \[N, 7\]"):
        operators.overlap(boxes, boxes[:, :5].contiguous(), "area")
    with pytest.raises(RuntimeError, match="b must be contiguous"):
        operators.paired_overlap(boxes, boxes.T.contiguous().T)
    with pytest.raises(RuntimeError, match=r"kind.*is union"):
        operators.overlap(boxes, boxes, "union")
    with pytest.raises(RuntimeError, match="order must have 10 entries, has 9"):
        operators.nms(boxes, order[:9], 0.1, 5, None)
    with pytest.raises(RuntimeError, match="count must have one element, has 2"):
        operators.nms(boxes, order, 0.1, 5, torch.zeros(2, dtype=torch.int32, device="cuda"))
