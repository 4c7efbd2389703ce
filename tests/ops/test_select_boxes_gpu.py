"""Boxes of predictions on the kernels: the same bits as the reference's torch calls on the GPU."""

import math

import pytest
import torch

from millisecond.ops import CellValues, bev_spread, nms, select_boxes, select_boxes_of_cells
from millisecond.ops.boxes import nms_definition, select_boxes_definition
from tests.helpers.sparse import poison_bits

pytestmark = pytest.mark.gpu

ANCHORS = 9000


@pytest.fixture(autouse=True)
def _suppress_on_the_kernels(monkeypatch):
    """Other roundings of an overlap must not show here: tests/ops/test_nms_gpu.py judges them."""

    def suppress(boxes, *rest):
        return (nms if boxes.is_cuda else nms_definition)(boxes, *rest)

    monkeypatch.setattr("millisecond.ops.boxes.nms_definition", suppress)


def anchors_of(count: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    spread = torch.tensor([70.0, 80, 2, 4, 2, 2, 6])
    return (torch.rand(count, 7, generator=generator) * spread + 0.1).cuda()


def predictions_of(seed, batch, classes, dtype, mean=-2.0, step=0.0, count=ANCHORS):
    """step: logits are multiples of it, so that many scores are equal."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(batch, count, classes, generator=generator) + mean
    if step:
        logits = (logits / step).round() * step
    residuals = torch.randn(batch, count, 7, generator=generator) * 0.3
    directions = torch.randn(batch, count, 2, generator=generator)
    directions[:, ::7] = 1  # neither is greater
    return [tensor.to("cuda", dtype) for tensor in (logits, residuals, directions)]


def check(predictions, *limits) -> torch.Tensor:
    """The same as the reference, twice; returns the number of boxes."""
    anchors = anchors_of(predictions[0].shape[1])
    want = select_boxes_definition(*predictions, anchors, *limits)
    for _ in range(2):
        poison_bits()
        got = select_boxes(*predictions, anchors, *limits)
        for name, a, b in zip(got._fields, got, want, strict=True):
            torch.testing.assert_close(
                a, b, rtol=0, atol=0, msg=lambda m, name=name: f"{name}: {m}"
            )
    return got.count


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("per_class", [False, True])
def test_same_bits_as_the_reference(dtype, per_class):
    for seed, (classes, mean, step, before, after) in enumerate(
        (
            (3, -4.0, 0.0, 4096, 500),  # few pass
            (3, 0.0, 0.0, 4096, 500),  # more pass than take part
            (3, 0.0, 0.5, 4096, 100),  # and many score the same
            (1, 0.0, 0.0, 33, 40),
            (10, -3.0, 0.25, 1, 1),
            (2, 30.0, 8.0, 2047, 3000),  # all scores are 1
            (2, -200.0, 1.0, 100, 10),  # none passes
        )
    ):
        predictions = predictions_of(seed, 2, classes, dtype, mean, step)
        count = check(predictions, 0.1, before, 0.01, after, per_class)
        assert (count > 0).all() == (mean > -100)


def test_all_take_part_and_the_least_score_counts():
    for score in (1e-6, 0.5, 0.999):
        check(predictions_of(3, 3, 3, torch.float32, mean=1.0), score, ANCHORS, 0.2, 300, False)
    for count in (1, 31, 257):
        check(predictions_of(4, 1, 2, torch.float16, count=count), 0.05, count, 0.1, 20, False)


def test_predictions_that_are_not_numbers():
    for value in (math.nan, math.inf, -math.inf):
        predictions = predictions_of(5, 1, 3, torch.float16, mean=-1.0)
        for tensor in predictions:
            flat = tensor.view(-1)
            flat[torch.rand(flat.shape, device="cuda") < 0.2] = value
        check(predictions, 0.1, 4096, 0.01, 500, False)


def test_a_score_is_torch_s_sigmoid_of_every_half_number():
    bits = torch.arange(-(1 << 15), 1 << 15, dtype=torch.int16).cuda()
    logits = bits.view(torch.float16)[None, :, None]
    others = [torch.zeros(1, len(bits), n, dtype=torch.float16, device="cuda") for n in (7, 2)]
    anchors = anchors_of(len(bits))
    anchors[:, 3:6] = 0  # nothing overlaps
    least = 1e-7
    found = select_boxes(logits, *others, anchors, least, len(bits), 0.5, len(bits))
    scores = torch.sigmoid(logits.float()).flatten().nan_to_num(nan=0)
    scores = scores[scores >= least].sort(descending=True).values
    assert int(found.count) == len(scores)
    assert torch.equal(found.scores[0, : len(scores)], scores)


def test_near_the_reference_on_the_host():
    predictions = predictions_of(6, 2, 3, torch.float32, mean=-4.0)
    anchors = anchors_of(ANCHORS)
    limits = 0.1, 4096, 0.01, 500, False
    found = select_boxes(*predictions, anchors, *limits)
    want = select_boxes_definition(*(tensor.cpu() for tensor in (*predictions, anchors)), *limits)
    torch.testing.assert_close(found.boxes.cpu(), want[0], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(found.scores.cpu(), want[1], rtol=1e-6, atol=0)
    assert torch.equal(found.labels.cpu(), want[2])


def test_never_waits_and_replays():
    anchors, limits = anchors_of(ANCHORS), (0.1, 4096, 0.01, 500)
    static = predictions_of(7, 2, 3, torch.float16)
    select_boxes(*static, anchors, *limits)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            found = select_boxes(*static, anchors, *limits)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    for seed in (8, 9, 10):
        fresh = predictions_of(seed, 2, 3, torch.float16, mean=-3.0 + 1.5 * (seed - 8))
        for old, new in zip(static, fresh, strict=True):
            old.copy_(new)
        graph.replay()
        for a, b in zip(found, select_boxes(*fresh, anchors, *limits), strict=True):
            assert torch.equal(a, b)


def test_what_the_operator_refuses():
    predictions, anchors = predictions_of(11, 1, 3, torch.float16), anchors_of(ANCHORS)
    select_boxes(*predictions, anchors, 0.1, 10, 0.1, 10)  # loads the operators
    rest = 0.1, 10, 0.1, 10, False, 0.78, 10.0
    torch.library.opcheck(
        torch.ops.millisecond.select_boxes.default, (*predictions, anchors, *rest)
    )
    logits, residuals, directions = predictions
    operator = torch.ops.millisecond.select_boxes
    with pytest.raises(RuntimeError, match="box_residuals must be"):
        operator(logits, residuals.float(), directions, anchors, *rest)
    with pytest.raises(RuntimeError, match="before_nms must be"):
        operator(*predictions, anchors, 0.1, ANCHORS + 1, *rest[2:])
    with pytest.raises(ValueError, match=r"iou_threshold is 1\.5"):
        select_boxes(*predictions, anchors, 0.1, 10, 1.5, 10)
    with pytest.raises(ValueError, match="direction_logits: expected"):
        select_boxes(logits, residuals, directions[:, :5], anchors, 0.1, 10, 0.1, 10)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("classes", [1, 3])
def test_boxes_of_cells_are_those_of_their_sums(dtype, classes):
    """Two maps, the second of half the resolution; rows are shared as by cells of an empty map."""
    generator = torch.Generator().manual_seed(classes)
    batch, y, x, of_cell = 3, 12, 10, 2 * classes
    channels, rows, values = [of_cell * n for n in (classes, 7, 2)], [], []
    for factor in (1, 2):
        shape = batch, y // factor, x // factor
        rows.append(torch.randint(90, shape, generator=generator, dtype=torch.int32).cuda())
        numbers = torch.randn(90 * factor**2, 128, generator=generator)
        numbers[::17, ::5] = math.nan
        values.append(numbers.to("cuda", dtype))
    cells, anchors = CellValues(values, rows, [1, 2], channels), anchors_of(y * x * of_cell)
    groups = zip(bev_spread(*cells), (classes, 7, 2), strict=True)
    predictions = [group.view(batch, -1, width) for group, width in groups]
    for score, before_nms in ((0.6, 4096), (0.5, 40), (1.0, 9)):
        limits = score, before_nms, 0.2, 50
        poison_bits()
        got = select_boxes_of_cells(cells, anchors, *limits)
        want = select_boxes(*predictions, anchors, *limits)
        assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))
    assert (select_boxes(*predictions, anchors, 0.6, 4096, 0.2, 50).count > 5).all()
    arguments = (*cells, anchors, 0.6, 40, 0.2, 50, False, 0.8, 9.0)
    torch.library.opcheck(torch.ops.millisecond.select_boxes_of_cells.default, arguments)
