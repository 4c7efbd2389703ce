"""Losses of anchors on the kernels against their plain definitions."""

import copy
import math
from pathlib import Path

import pytest
import torch
from torch import Tensor

from millisecond.detector.config import load_config
from millisecond.detector.models.second import Predictions
from millisecond.detector.training.losses import Losses, build_criterion
from millisecond.ops.anchors import anchor_losses_definition
from millisecond.ops.library import extension
from tests.conftest import LOSS_GRADIENT
from tests.helpers.criterion import WEIGHTS, build, random_predictions, scenes
from tests.helpers.sparse import poison_bits

pytestmark = pytest.mark.gpu

CONFIG = Path(__file__).resolve().parents[2] / "configs" / "second_kitti.yaml"
DTYPES = [torch.float32, torch.float16, torch.bfloat16]
# of the largest: the difference of two yaws of some radians is off by 2.5e-7, and smooth-L1 takes
# it nine times
NEAR = 4e-6
# the smallest number of float16
LEAST = {torch.float32: 0.0, torch.float16: 2**-24, torch.bfloat16: 0.0}


def found_of(criterion, predictions, boxes, labels, factors) -> tuple[Losses, list[Tensor | None]]:
    """Losses on the GPU and the gradients of their sum with the factors, without factors of 0."""
    leaves = Predictions(*(p.cuda().requires_grad_() for p in predictions))
    poison_bits()
    losses = copy.deepcopy(criterion).cuda()(leaves, boxes.cuda(), labels.cuda())
    combined = sum(f * loss for f, loss in zip(factors, losses[:4], strict=True) if f)
    poison_bits()
    return losses, list(torch.autograd.grad(combined, leaves))


def wanted_of(criterion, predictions, boxes, labels, factors) -> tuple[Losses, list[Tensor]]:
    """The same in float64 by the definition."""
    leaves = Predictions(*(p.double().requires_grad_() for p in predictions))
    match = criterion.assigner.match(boxes, labels)
    losses = Losses(
        *anchor_losses_definition(*leaves, criterion.assigner.anchors, boxes, *match, WEIGHTS)
    )
    combined = sum(f * loss for f, loss in zip(factors, losses[:4], strict=True))
    gradients = torch.autograd.grad(combined, leaves, allow_unused=True, materialize_grads=True)
    return losses, list(gradients)


def check_losses(criterion, predictions, boxes, labels, factors=(1.0, 0.0, 0.0, 0.0)) -> None:
    dtype = predictions.class_logits.dtype
    found, found_gradients = found_of(criterion, predictions, boxes, labels, factors)
    wanted, wanted_gradients = wanted_of(criterion, predictions, boxes, labels, factors)
    for name, one, other in zip(Losses._fields, found, wanted, strict=True):
        torch.testing.assert_close(
            one.cpu().double(), other, rtol=1e-5, atol=1e-9, msg=lambda m, n=name: f"{n}: {m}"
        )
    for name, one, other in zip(
        Predictions._fields, found_gradients, wanted_gradients, strict=True
    ):
        assert one.dtype == dtype
        torch.testing.assert_close(
            one.cpu().double(),
            other,
            rtol=LOSS_GRADIENT[dtype] * 1.01,
            atol=LEAST[dtype] + NEAR * float(other.abs().max()),
            msg=lambda m, n=name: f"gradient of {n}: {m}",
        )


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("classes", [1, 3])
@pytest.mark.parametrize("batch", [1, 3])
def test_losses_and_gradients(batch, classes, dtype):
    criterion = build(classes)
    boxes, labels = scenes(batch, 20, seed=7)
    labels[0, 0], boxes[0, 0, :2] = 1, torch.tensor([6.0, 1.0])
    labels[0] = labels[0, 0] if batch == 1 else labels[0]
    predictions = random_predictions(criterion, batch, dtype)
    check_losses(criterion, predictions, boxes, labels, (64.0, 0.0, 0.0, 0.0))


@pytest.mark.parametrize("factors", [(0, 1, 0, 0), (0, 0, 1, 0), (0, 0, 0, 1), (2.0, 3.0, 5, 7)])
def test_gradient_of_each_loss(factors):
    criterion = build()
    predictions = random_predictions(criterion, 2, torch.float32)
    check_losses(criterion, predictions, *scenes(2, 20, seed=8), factors)


def test_losses_of_a_batch_without_boxes():
    criterion = build()
    predictions = random_predictions(criterion, 2, torch.float32)
    for boxes in (0, 3):
        none = torch.zeros(2, boxes, 7), torch.zeros(2, boxes, dtype=torch.int64)
        found, gradients = found_of(criterion, predictions, *none, (1, 0, 0, 0))
        wanted = criterion(predictions, *none)
        torch.testing.assert_close(found.total.cpu(), wanted.total, rtol=1e-5, atol=0)
        assert found.box == found.direction == 0
        assert gradients[0].any()
        assert not gradients[1].any()
        assert not gradients[2].any()


def test_sure_predictions_right_and_wrong():
    """Where exponentials vanish and squares round to one."""
    criterion = build()
    predictions = random_predictions(criterion, 2, torch.float32)
    predictions.class_logits.mul_(20)
    predictions.direction_logits.mul_(40)
    predictions.box_residuals.mul_(30)
    check_losses(criterion, predictions, *scenes(2, 20, seed=9))


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("which", [0, 2])
def test_what_is_not_finite_is_seen(which, value):
    criterion = build()
    boxes, labels = scenes(2, 20, seed=10)
    predictions = random_predictions(criterion, 2, torch.float16)
    match = criterion.assigner.match(boxes, labels).rows
    frame, anchor = (match >= 0).nonzero()[3].tolist()
    predictions[which][frame, anchor, 0] = value
    losses, gradients = found_of(criterion, predictions, boxes, labels, (1, 0, 0, 0))
    assert not losses.total.isfinite()
    assert not gradients[which].isfinite().all()


def test_losses_of_autocast_at_full_size():
    config = load_config(CONFIG)
    criterion = build_criterion(config)
    boxes, labels = scenes(4, 30, seed=11, area=config.grid.range)
    predictions = random_predictions(criterion, 4, torch.float16)
    check_losses(criterion, predictions, boxes, labels, (1024.0, 0, 0, 0))


def test_predictions_that_are_views():
    """As heads give them whose convolution is not channels-last."""
    criterion = build()
    boxes, labels = scenes(2, 20, seed=12)
    predictions = random_predictions(criterion, 2, torch.float32)
    views = Predictions(*(p.transpose(1, 2).contiguous().transpose(1, 2) for p in predictions))
    assert not views.box_residuals.is_contiguous()
    check_losses(criterion, views, boxes, labels)


def test_without_gradient():
    criterion = build().cuda()
    predictions = Predictions(*(p.cuda() for p in random_predictions(criterion, 2, torch.float32)))
    boxes, labels = (t.cuda() for t in scenes(2, 20, seed=13))
    losses = criterion(predictions, boxes, labels)
    assert not any(loss.requires_grad for loss in losses)
    predictions.class_logits.requires_grad_()
    losses = criterion(predictions, boxes, labels)
    assert [loss.requires_grad for loss in losses] == [True] * 4 + [False]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_same_bits_every_time(dtype):
    criterion = build()
    boxes, labels = scenes(3, 200, seed=14)
    predictions = random_predictions(criterion, 3, dtype)
    first, first_gradients = found_of(criterion, predictions, boxes, labels, (1, 0, 0, 0))
    for _ in range(10):
        again, gradients = found_of(criterion, predictions, boxes, labels, (1, 0, 0, 0))
        for one, other in zip((*first, *first_gradients), (*again, *gradients), strict=True):
            assert torch.equal(one, other)


@pytest.mark.filterwarnings("ignore:The AccumulateGrad node")  # of warming up on its own stream
def test_cuda_graph():
    criterion = build().cuda()
    predictions = Predictions(*(p.cuda() for p in random_predictions(criterion, 2, torch.float32)))
    boxes, labels = torch.zeros(2, 20, 7).cuda(), torch.zeros(2, 20, dtype=torch.int64).cuda()
    leaves = [p.requires_grad_() for p in predictions]
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        torch.autograd.grad(criterion(predictions, boxes, labels).total, leaves)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        losses = criterion(predictions, boxes, labels)
        gradients = torch.autograd.grad(losses.total, leaves)
    for seed in (15, 16):
        for tensor, new in zip((boxes, labels), scenes(2, 20, seed), strict=True):
            tensor.copy_(new)
        graph.replay()
        wanted = criterion(predictions, boxes, labels)
        assert torch.equal(losses.flat(), wanted.flat())
        for one, other in zip(gradients, torch.autograd.grad(wanted.total, leaves), strict=True):
            assert torch.equal(one, other)


def operands(dtype: torch.dtype = torch.float16) -> tuple[tuple, tuple]:
    """What the operators take: of the match, of the losses."""
    criterion = build().cuda()
    assigner = criterion.assigner
    boxes, labels = (t.cuda() for t in scenes(2, 20, seed=17))
    predictions = (p.cuda() for p in random_predictions(criterion, 2, dtype))
    match = assigner.match(boxes, labels)
    of_match = assigner.columns, assigner.rows, assigner.thresholds, boxes, labels
    return of_match, (*predictions, assigner.anchors, boxes, *match, list(WEIGHTS))


def test_operators_pass_opcheck():
    extension()
    of_match, of_losses = operands()
    one = torch.ones((), device="cuda")
    operators = torch.ops.millisecond
    torch.library.opcheck(operators.match_anchors.default, of_match)
    torch.library.opcheck(operators.anchor_losses.default, of_losses)
    backward = operators.anchor_losses_backward.default
    torch.library.opcheck(backward, (one, None, None, one, *of_losses))


def test_wrong_input_is_named():
    extension()
    of_match, of_losses = operands()
    operators = torch.ops.millisecond
    columns, rows, thresholds, boxes, labels = of_match
    with pytest.raises(RuntimeError, match=r"boxes must have shape \[B, 1 or more, 7\]"):
        operators.match_anchors(columns, rows, thresholds, boxes[:, :0].contiguous(), labels)
    with pytest.raises(RuntimeError, match="labels must be Long, is Int"):
        operators.match_anchors(columns, rows, thresholds, boxes, labels.int())
    with pytest.raises(RuntimeError, match=r"thresholds must have shape \[3, 2\], has \[2, 2\]"):
        operators.match_anchors(columns, rows, thresholds[:2], boxes, labels)
    logits, residuals, *others = of_losses
    with pytest.raises(RuntimeError, match="residuals must be Half, is Float"):
        operators.anchor_losses(logits, residuals.float(), *others)
    with pytest.raises(RuntimeError, match=r"logits must be float32.*is Double"):
        doubles = (p.double() for p in of_losses[:3])
        operators.anchor_losses(*doubles, *others[1:])
    with pytest.raises(RuntimeError, match=r"residuals must have shape \[2, \d+, 7\]"):
        operators.anchor_losses(logits, residuals[:, :5].contiguous(), *others)
    with pytest.raises(RuntimeError, match="match must be Int, is Long"):
        tensors = list(of_losses)
        tensors[5] = tensors[5].long()
        operators.anchor_losses(*tensors)
