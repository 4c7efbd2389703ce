"""The box kernels against the plain-torch reference."""

import math

import pytest
import torch

from ops import iou_3d, iou_bev, nms, overlap_bev, paired_overlap_bev
from ops.cuda.library import extension
from ops.reference import boxes as reference
from tests.helpers.sparse import poison_bits

pytestmark = pytest.mark.gpu

MATRICES = {"overlap_bev": overlap_bev, "iou_bev": iou_bev, "iou_3d": iou_3d}
TOLERANCE = 1e-5  # of areas up to about 20 m^2, in float32


def random_boxes(n: int, seed: int, spread: float = 6.0) -> torch.Tensor:
    """Boxes [n, 7] float32 on the CPU; with the default spread most of 100 overlap another."""
    generator = torch.Generator().manual_seed(seed)
    low = torch.tensor([-spread, -spread, -1, 0.3, 0.3, 0.5, -7])
    high = torch.tensor([spread, spread, 1, 6.0, 3.0, 2.5, 7])
    return low + torch.rand(n, 7, generator=generator) * (high - low)


def scene(n: int, seed: int, objects: int = 300) -> torch.Tensor:
    """Boxes as a detector gives them: several around each object."""
    generator = torch.Generator().manual_seed(seed)
    objects = random_boxes(objects, seed, spread=40.0)
    chosen = objects[torch.randint(len(objects), (n,), generator=generator)]
    noise = torch.tensor([0.3, 0.2, 0.1, 0.1, 0.05, 0.05, 0.1])
    boxes = chosen + noise * torch.randn(n, 7, generator=generator)
    boxes[:, 3:6].clamp_(min=0.1)
    return boxes


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


def check_nms(boxes, scores, threshold: float, max_output: int, count=None) -> None:
    expected = reference.nms(boxes, scores, threshold, max_output, count)
    poison_bits()
    rows = None if count is None else count.cuda()
    kept = nms(boxes.cuda(), scores.cuda(), threshold, max_output, rows)
    torch.testing.assert_close(kept.indices.cpu(), expected[0], rtol=0, atol=0)
    torch.testing.assert_close(kept.count.cpu(), expected[1], rtol=0, atol=0)


@pytest.mark.parametrize("name", MATRICES)
@pytest.mark.parametrize(("n", "m"), [(1, 1), (1, 100), (100, 1), (257, 130), (0, 5), (5, 0)])
def test_matrix_matches_the_reference(name, n, m):
    a, b = random_boxes(n, 1), random_boxes(m, 2)
    expected = getattr(reference, name)(a.double(), b.double()).float()
    poison_bits()
    out = MATRICES[name](a.cuda(), b.cuda())
    torch.testing.assert_close(out.cpu(), expected, rtol=0, atol=TOLERANCE)
    assert torch.equal(out == 0, (MATRICES[name](a, b) == 0).cuda())


@pytest.mark.parametrize("name", MATRICES)
def test_matrix_of_adversarial_boxes(name):
    boxes = adversarial_boxes()
    expected = getattr(reference, name)(boxes, boxes)
    out = MATRICES[name](boxes.cuda(), boxes.cuda()).cpu()
    torch.testing.assert_close(out, expected, rtol=1e-6, atol=TOLERANCE)


def test_matrix_wider_than_the_grid():
    a, b = random_boxes(1, 3), random_boxes(1000, 4)
    many = b.repeat(2200, 1).cuda()
    out = overlap_bev(a.cuda(), many).view(2200, 1000)
    torch.testing.assert_close(out[0].cpu(), overlap_bev(a, b)[0], rtol=0, atol=TOLERANCE)
    assert (out == out[0]).all()


@pytest.mark.parametrize("pairs", [0, 1, 300, 100_003])
def test_pairs_match_the_reference(pairs):
    a, b = random_boxes(pairs, 5, spread=3.0), random_boxes(pairs, 6, spread=3.0)
    poison_bits()
    out = paired_overlap_bev(a.cuda(), b.cuda())
    torch.testing.assert_close(out.cpu(), paired_overlap_bev(a, b), rtol=0, atol=TOLERANCE)


def test_identical_boxes_have_iou_one():
    boxes = torch.cat((random_boxes(500, 7), random_boxes(500, 8) + 1e3))
    boxes[:, 3:6] = boxes[:, 3:6].fmod(4) + 0.3
    area = boxes[:, 3] * boxes[:, 4]
    overlap = paired_overlap_bev(boxes.cuda(), boxes.cuda())
    torch.testing.assert_close(overlap.cpu(), area, rtol=2e-7, atol=0)
    diagonal = iou_bev(boxes.cuda(), boxes.cuda()).diagonal()
    torch.testing.assert_close(diagonal.cpu(), torch.ones(1000), rtol=0, atol=2e-7)


def test_float64_and_views_are_taken():
    wide = torch.cat((random_boxes(50, 9), torch.zeros(50, 2)), 1).cuda()
    boxes = wide[:, :7]
    assert not boxes.is_contiguous()
    assert torch.equal(iou_bev(boxes, boxes), iou_bev(boxes.contiguous(), boxes.contiguous()))
    exact = iou_bev(boxes.double(), boxes.double())
    assert exact.dtype == torch.float64
    torch.testing.assert_close(iou_bev(boxes, boxes).double(), exact, rtol=0, atol=TOLERANCE)
    scores = torch.arange(50, device="cuda").float()
    kept = nms(boxes, scores, 0.1, 20)
    assert torch.equal(kept.indices, nms(boxes.contiguous(), scores, 0.1, 20).indices)


@pytest.mark.parametrize("n", [0, 1, 2, 63, 64, 65, 127, 128, 129, 200, 1000])
@pytest.mark.parametrize("max_output", [0, 1, 40, 500])
def test_nms_matches_the_reference(n, max_output):
    for seed, spread in enumerate((3.0, 10.0, 60.0)):
        boxes = random_boxes(n, 20 + seed, spread)
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
    check_nms(random_boxes(1, 40).repeat(4096, 1), torch.ones(4096), 0.01, 500)
    check_nms(random_boxes(1, 40).repeat(200, 1), torch.ones(200), 1.0, 150)


def test_nms_of_boxes_apart_and_in_a_chain():
    boxes = torch.zeros(4096, 7)
    boxes[:, 3:6] = torch.tensor([4.0, 2.0, 1.5])
    boxes[:, 0] = torch.arange(4096) * 10.0
    check_nms(boxes, torch.linspace(1, 0, 4096), 0.01, 4096)
    boxes[:, 0] = torch.arange(4096) * 1.5  # each overlaps its two neighbours only
    check_nms(boxes, torch.linspace(1, 0, 4096), 0.3, 4096)
    check_nms(boxes, torch.linspace(1, 0, 4096), 0.3, 1000)


def test_same_bits_every_time():
    boxes, scores = scene(4096, 50).cuda(), torch.rand(4096).cuda()
    first_iou, first = iou_3d(boxes, boxes), nms(boxes, scores, 0.01, 500)
    for _ in range(10):
        poison_bits()
        assert torch.equal(iou_3d(boxes, boxes), first_iou)
        again = nms(boxes, scores, 0.01, 500)
        assert torch.equal(again.indices, first.indices)
        assert torch.equal(again.count, first.count)


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
    torch.library.opcheck(torch.ops.millisecond.overlap.default, (boxes, boxes[:7], 2))
    torch.library.opcheck(torch.ops.millisecond.paired_overlap.default, (boxes, boxes))
    torch.library.opcheck(torch.ops.millisecond.nms.default, (boxes, order, 0.1, 20, count))
    torch.library.opcheck(torch.ops.millisecond.nms.default, (boxes, order, 0.1, 20, None))


def test_wrong_input_is_named():
    extension()
    operators = torch.ops.millisecond
    boxes = random_boxes(10, 91).cuda()
    order = torch.arange(10, device="cuda")
    with pytest.raises(ValueError, match=r"a is .*cuda.*cpu"):
        iou_bev(boxes, boxes.cpu())
    with pytest.raises(ValueError, match="scores is on cpu"):
        nms(boxes, torch.zeros(10), 0.1, 5)
    with pytest.raises(RuntimeError, match="a must be Float, is Double"):
        operators.overlap(boxes.double(), boxes, 0)
    with pytest.raises(RuntimeError, match=r"b must have shape \[N, 7\]"):
        operators.overlap(boxes, boxes[:, :5].contiguous(), 0)
    with pytest.raises(RuntimeError, match="b must be contiguous"):
        operators.paired_overlap(boxes, boxes.T.contiguous().T)
    with pytest.raises(RuntimeError, match=r"kind.*is 3"):
        operators.overlap(boxes, boxes, 3)
    with pytest.raises(RuntimeError, match="order must have 10 entries, has 9"):
        operators.nms(boxes, order[:9], 0.1, 5, None)
    with pytest.raises(RuntimeError, match="count must have one element, has 2"):
        operators.nms(boxes, order, 0.1, 5, torch.zeros(2, dtype=torch.int32, device="cuda"))
