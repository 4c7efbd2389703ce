"""Varifocal and distance-IoU losses of positive anchors against their formulas, one anchor at a
time."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from millisecond.detector.config import LossConfig
from millisecond.detector.models.second import Predictions
from millisecond.detector.training import losses
from millisecond.detector.training.losses import Criterion
from millisecond.ops.anchors import decode
from millisecond.ops.boxes import iou_3d
from tests.helpers.criterion import WEIGHTS, build, random_predictions, scenes, targets_of


def near_predictions(criterion: Criterion, boxes: Tensor, labels: Tensor) -> Predictions:
    """Random, but for boxes that overlap their own by much or little."""
    predictions = random_predictions(criterion, len(boxes), torch.float32)
    targets = targets_of(criterion.assigner, boxes, labels)
    noise = 0.3 * predictions.box_residuals * (targets.labels > 0)[..., None]
    return predictions._replace(box_residuals=targets.residuals + noise)


def quality(criterion: Criterion, **loss: float) -> Criterion:
    loss = loss or {"quality": True}
    return Criterion(criterion.assigner, LossConfig(*WEIGHTS, **loss))


LOSSES = [{"quality": True}, {"overlap": 3.0}, {"quality": True, "overlap": 1.5}]


@pytest.fixture(scope="module")
def scene():
    """Plain criterion, predictions, boxes, labels: many positives of every class."""
    criterion = build()
    boxes, labels = scenes(2, 12, seed=4)
    return criterion, near_predictions(criterion, boxes, labels), boxes, labels


def positives(criterion: Criterion, predictions: Predictions, boxes: Tensor, labels: Tensor):
    """Of each positive anchor: frame, row, class from 0, overlap, logit, share in the mean."""
    match = criterion.assigner.match(boxes, labels)
    anchors = criterion.assigner.anchors.reshape(-1, 7)
    for frame, rows in enumerate(match.rows):
        of_frame = (rows >= 0).nonzero()[:, 0].tolist()
        for row in of_frame:
            own = int(rows[row])
            found = decode(predictions.box_residuals[frame, row], anchors[row])
            overlap = iou_3d(found[None].double(), boxes[frame, own][None].double()).item()
            kind = int(labels[frame, own]) - 1
            logit = predictions.class_logits[frame, row, kind].item()
            yield frame, row, kind, overlap, logit, 1 / len(of_frame) / len(boxes)


def test_is_the_formula_anchor_by_anchor(scene):
    criterion, predictions, boxes, labels = scene
    plain = criterion(predictions, boxes, labels)
    losses = quality(criterion)(predictions, boxes, labels)
    wanted, overlaps = plain.by_class.double().clone(), []
    for _, _, kind, overlap, logit, share in positives(criterion, predictions, boxes, labels):
        score = 1 / (1 + math.exp(-logit))
        soft = -overlap * math.log(score) - (1 - overlap) * math.log(1 - score)
        hard = -0.25 * (1 - score) ** 2 * math.log(score)
        wanted[0, kind] += share * (overlap * soft - hard)
        overlaps.append(overlap)
    assert min(overlaps) < 0.2 and max(overlaps) > 0.8
    torch.testing.assert_close(losses.by_class.double(), wanted, rtol=1e-5, atol=1e-6)
    assert losses.classification.item() == pytest.approx(wanted[0].sum().item(), rel=1e-5)
    assert losses.total.item() == pytest.approx(sum(x.item() for x in losses[1:4]), rel=1e-6)
    assert (losses.box, losses.direction) == (plain.box, plain.direction)


def test_gradient_draws_the_score_to_the_overlap(scene):
    """q (score - q) at the anchor's own class; all other gradients are the focal loss's."""
    criterion, predictions, boxes, labels = scene
    match = criterion.assigner.match(boxes, labels)
    of_total = torch.tensor(3.0)
    plain = criterion.gradients(predictions, boxes, match, of_total)
    found = quality(criterion).gradients(predictions, boxes, match, of_total)
    wanted = plain.class_logits.clone()
    for frame, row, kind, overlap, logit, share in positives(criterion, predictions, boxes, labels):
        score = 1 / (1 + math.exp(-logit))
        wanted[frame, row, kind] = 3 * share * overlap * (score - overlap)
    torch.testing.assert_close(found.class_logits, wanted, rtol=1e-4, atol=1e-7)
    assert torch.equal(found.box_residuals, plain.box_residuals)
    assert torch.equal(found.direction_logits, plain.direction_logits)


def test_overlap_loss_is_the_formula_anchor_by_anchor(scene):
    """From the corners of both boxes, once the predicted one has the yaw of the true one."""
    criterion, predictions, boxes, labels = scene
    plain = criterion(predictions, boxes, labels)
    found = quality(criterion, overlap=3.0)(predictions, boxes, labels)
    match = criterion.assigner.match(boxes, labels)
    anchors, wanted = criterion.assigner.anchors.reshape(-1, 7), plain.by_class.double().clone()
    for frame, row, kind, _, _, share in positives(criterion, predictions, boxes, labels):
        own = boxes[frame, match.rows[frame, row]].double().numpy()
        box = decode(predictions.box_residuals[frame, row], anchors[row]).double().numpy()
        cos, sin = np.cos(own[6]), np.sin(own[6])
        turn = np.array([[cos, sin, 0], [-sin, cos, 0], [0, 0, 1]])
        low = np.array([turn @ b[:3] - b[3:6] / 2 for b in (box, own)])
        high = np.array([turn @ b[:3] + b[3:6] / 2 for b in (box, own)])
        shared = np.maximum(high.min(0) - low.max(0), 0).prod()
        iou = shared / ((high - low).prod(1).sum() - shared)
        away, around = turn @ (box[:3] - own[:3]), high.max(0) - low.min(0)
        wanted[1, kind] += 3 * share * (1 - iou + away @ away / (around @ around))
    torch.testing.assert_close(found.by_class.double(), wanted, rtol=1e-5, atol=1e-6)
    assert found.box.item() == pytest.approx(wanted[1].sum().item(), rel=1e-5)
    assert found.total.item() == pytest.approx(sum(x.item() for x in found[1:4]), rel=1e-6)
    assert (found.classification, found.direction) == (plain.classification, plain.direction)


def test_overlap_loss_draws_a_box_onto_its_own(scene):
    """Of turned boxes, too; also where the two do not meet at first."""
    criterion, predictions, boxes, labels = scene
    anchors, match = criterion.assigner.anchors, criterion.assigner.match(boxes, labels)
    targets = targets_of(criterion.assigner, boxes, labels).residuals
    residuals = targets + 0.8 * predictions.box_residuals.sign() * (match.rows >= 0)[..., None]
    residuals[..., 6] = targets[..., 6]
    residuals.requires_grad_()
    found = lambda: losses.positives_of(residuals, anchors, boxes, match)  # noqa: E731
    overlaps = lambda: losses.overlaps_of_anchors(found(), match)[1][match.rows >= 0]  # noqa: E731
    assert (overlaps() == 0).any()
    optimizer = torch.optim.Adam([residuals], lr=0.03)
    for _ in range(300):
        optimizer.zero_grad()
        losses.overlap_loss(anchors, found(), match).sum().backward()
        optimizer.step()
        optimizer.param_groups[0]["lr"] *= 0.99
    assert overlaps().min() > 0.95


def test_a_single_positive_has_the_loss_of_its_frame_alone(scene):
    criterion, predictions, boxes, labels = scene
    anchors, match = criterion.assigner.anchors, criterion.assigner.match(boxes, labels)
    ones = match._replace(positives=torch.ones_like(match.positives))
    equal = match._replace(positives=torch.full_like(match.positives, 8))
    first = losses.positives_of(predictions.box_residuals, anchors, boxes, match)
    logits = predictions.class_logits
    for whole, eighth in (
        [losses.varifocal_change(logits, anchors, first, of) for of in (ones, equal)],
        [losses.overlap_loss(anchors, first, of) for of in (ones, equal)],
    ):
        torch.testing.assert_close(whole, 8 * eighth)


@pytest.mark.parametrize("loss", LOSSES, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_gradients_without_losses_are_those_of_backward(scene, dtype, loss):
    criterion, predictions, boxes, labels = scene
    leaves = Predictions(*(p.detach().to(dtype).requires_grad_() for p in predictions))
    match = criterion.assigner.match(boxes, labels)
    of_total = torch.tensor(2.0)
    learning = quality(criterion, **loss)
    learning.losses(leaves, boxes, match).total.backward(of_total)
    found = learning.gradients(leaves, boxes, match, of_total)
    for leaf, gradient in zip(leaves, found, strict=True):
        torch.testing.assert_close(gradient, leaf.grad)


def test_positives_beyond_the_room_keep_the_focal_loss(scene, monkeypatch):
    criterion, predictions, boxes, labels = scene
    whole = quality(criterion)(predictions, boxes, labels).classification
    far = quality(criterion, overlap=3.0)(predictions, boxes, labels).box
    monkeypatch.setattr(losses, "MOST", 3)
    match = criterion.assigner.match(boxes, labels)
    anchors = criterion.assigner.anchors
    first = losses.positives_of(predictions.box_residuals, anchors, boxes, match)
    found, overlaps = losses.overlaps_of_anchors(first, match)
    for which, overlap, rows in zip(found, overlaps, match.rows, strict=True):
        assert which.nonzero()[:, 0].tolist() == (rows >= 0).nonzero()[:3, 0].tolist()
        assert not overlap[~which].any()
    some = quality(criterion)(predictions, boxes, labels).classification
    plain = criterion(predictions, boxes, labels)
    assert some not in (whole, plain.classification)
    assert plain.box < quality(criterion, overlap=3.0)(predictions, boxes, labels).box < far


@pytest.mark.parametrize("loss", LOSSES, ids=str)
@pytest.mark.parametrize("boxes", [0, 3])
def test_without_a_box_nothing_changes(boxes, loss):
    criterion = build()
    predictions = random_predictions(criterion, 2, torch.float32)
    none = torch.zeros(2, boxes, 7), torch.zeros(2, boxes, dtype=torch.int64)
    learning = quality(criterion, **loss)
    plain, found = (c(predictions, *none) for c in (criterion, learning))
    assert torch.equal(plain.flat(), found.flat())
    match = criterion.assigner.match(*none)
    arguments = predictions, none[0], match, torch.tensor(2.0)
    for a, b in zip(criterion.gradients(*arguments), learning.gradients(*arguments), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("loss", LOSSES, ids=str)
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_boxes_that_are_not_finite_are_seen(scene, value, loss):
    criterion, predictions, boxes, labels = scene
    frame, row, *_ = next(positives(criterion, predictions, boxes, labels))
    residuals = predictions.box_residuals.clone()
    residuals[frame, row, 0] = value
    wild = predictions._replace(box_residuals=residuals)
    losses = quality(criterion, **loss)(wild, boxes, labels)
    assert not losses.total.isfinite() and losses.classification.isfinite()


@pytest.mark.gpu
@pytest.mark.parametrize("loss", LOSSES, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_a_gpu_finds_the_same_and_never_waits(scene, dtype, loss):
    criterion, predictions, boxes, labels = scene
    predictions = Predictions(*(p.to(dtype) for p in predictions))
    match = criterion.assigner.match(boxes, labels)
    of_total = torch.tensor(64.0)
    losses = quality(criterion, **loss).losses(predictions, boxes, match)
    wanted = quality(criterion, **loss).gradients(predictions, boxes, match, of_total)
    there = quality(build(), **loss).cuda()
    arguments = Predictions(*(p.cuda() for p in predictions)), boxes.cuda()
    match = type(match)(*(part.cuda() for part in match))
    there.losses(*arguments, match)
    one = of_total.cuda()
    torch.cuda.set_sync_debug_mode("error")
    try:
        found = there.losses(*arguments, match)
        gradients = there.gradients(*arguments, match, one)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    torch.testing.assert_close(found.flat().cpu(), losses.flat(), rtol=1e-5, atol=1e-5)
    unit = 1e-4 if dtype == torch.float32 else 2e-3  # an overlap is off by 1e-5
    torch.testing.assert_close(gradients[0].cpu(), wanted[0], rtol=unit, atol=unit / 10)
    torch.testing.assert_close(gradients[1].cpu(), wanted[1], rtol=unit, atol=unit)
    plain = build().cuda().gradients(*arguments, match, one)
    boxes_alone = torch.equal(gradients.box_residuals, plain.box_residuals)
    assert boxes_alone == ("overlap" not in loss)
    assert torch.equal(gradients.direction_logits, plain.direction_logits)
