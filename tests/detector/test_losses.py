"""Losses against their formulas, one anchor at a time."""

import math
from pathlib import Path

import pytest
import torch

from millisecond.detector.config import load_config, parse_config
from millisecond.detector.models.second import Predictions
from millisecond.detector.training.losses import build_criterion, loss_names
from millisecond.ops.anchors import box_loss, focal_loss
from tests.helpers.criterion import targets_of
from tests.helpers.minute_training import CONFIG as TWO_CLASSES

CONFIG = Path(__file__).resolve().parents[2] / "configs" / "second_small.yaml"


@pytest.fixture(scope="module")
def criterion():
    return build_criterion(load_config(CONFIG))


def random_predictions(criterion, batch, seed=0):
    generator = torch.Generator().manual_seed(seed)
    count = criterion.assigner.anchors.reshape(-1, 7).shape[0]
    return Predictions(
        *(torch.randn(batch, count, width, generator=generator) for width in (1, 7, 2))
    )


SCENE = torch.tensor(
    [
        [[12, 3, -1, 4.1, 1.7, 1.5, 0.4], [30, -9, -1, 3.8, 1.6, 1.6, -2.2]],
        [[21, 0, -1, 3.6, 1.5, 1.4, 3.0], [0, 0, 0, 0, 0, 0, 0]],
    ]
)
LABELS = torch.tensor([[1, 1], [1, 0]])


def test_focal_loss_is_the_formula():
    logits = torch.linspace(-30, 30, 61, dtype=torch.float64)[:, None]
    for label in (0, 1):
        losses = focal_loss(logits, torch.full((61,), label))
        for logit, loss in zip(logits[:, 0].tolist(), losses[:, 0].tolist(), strict=True):
            p = 1 / (1 + math.exp(-logit if label else logit))  # of the right answer
            alpha = 0.25 if label else 0.75
            assert loss == pytest.approx(-alpha * (1 - p) ** 2 * math.log(p), rel=1e-9, abs=1e-12)
    assert not focal_loss(logits, torch.full((61,), -1)).any()


def test_focal_loss_of_the_other_classes_is_that_of_background():
    logits = torch.randn(5, 3, generator=torch.Generator().manual_seed(0))
    of_second, of_none = (focal_loss(logits, torch.full((5,), label)) for label in (2, 0))
    torch.testing.assert_close(of_second[:, [0, 2]], of_none[:, [0, 2]])
    assert not torch.allclose(of_second[:, 1], of_none[:, 1])


def test_box_loss_is_smooth_l1_of_sines():
    zero = torch.zeros(7)
    for difference in (0.05, 0.5, -2.0):
        size = abs(difference)
        expected = 4.5 * size**2 if size < 1 / 9 else size - 1 / 18
        assert box_loss(zero + difference, zero)[0] == pytest.approx(expected, rel=1e-5)
    turned = torch.zeros(7)
    turned[6] = math.pi  # the wrong way round costs nothing here: the direction loss tells
    assert box_loss(turned, zero)[6] == pytest.approx(0, abs=1e-6)


def test_sum_over_anchors_one_by_one(criterion):
    predictions = random_predictions(criterion, 2)
    losses = criterion(predictions, SCENE, LABELS)
    targets = targets_of(criterion.assigner, SCENE, LABELS)
    classification = box = direction = 0.0
    for b in range(2):
        rows = (targets.labels[b] > 0).nonzero()[:, 0].tolist()
        assert rows
        share = 1 / len(rows) / 2
        classification += (
            focal_loss(predictions.class_logits[b], targets.labels[b]).sum().item() * share
        )
        for row in rows:
            box += (
                box_loss(predictions.box_residuals[b, row], targets.residuals[b, row]).sum().item()
                * share
            )
            turn = (targets.yaw[b, row].item() - 0.78539) % (2 * math.pi)
            logits = predictions.direction_logits[b, row].double()
            direction -= logits.log_softmax(0)[int(turn // math.pi)].item() * share
    assert losses.classification.item() == pytest.approx(classification, rel=1e-4)
    assert losses.box.item() == pytest.approx(2 * box, rel=1e-4)
    assert losses.direction.item() == pytest.approx(0.2 * direction, rel=1e-4)
    assert losses.total.item() == pytest.approx(sum(x.item() for x in losses[1:4]), rel=1e-6)


def test_shares_of_the_classes_anchor_by_anchor():
    """Each loss is the sum of its classes; an anchor counts for the class that it was made for."""
    criterion = build_criterion(parse_config(TWO_CLASSES))
    labels = torch.tensor([[1, 2], [2, 0]])
    boxes = SCENE.clone()
    boxes[labels == 2, 2:6] = torch.tensor([-0.7, 1.8, 0.6, 1.7])
    boxes[1, 0, [1, 4]] = torch.tensor([1.0, 0.05])  # thin: one anchor is matched with it
    generator = torch.Generator().manual_seed(3)
    count = criterion.assigner.anchors.numel() // 7
    predictions = Predictions(
        *(torch.randn(2, count, width, generator=generator) for width in (2, 7, 2))
    )
    losses = criterion(predictions, boxes, labels)
    targets = targets_of(criterion.assigner, boxes, labels)
    wanted = torch.zeros(3, 2)
    for b in range(2):
        rows = (targets.labels[b] > 0).nonzero()[:, 0].tolist()
        share = 1 / len(rows) / 2
        wanted[0] += focal_loss(predictions.class_logits[b], targets.labels[b]).sum(0) * share
        for row in rows:
            of_box = box_loss(predictions.box_residuals[b, row], targets.residuals[b, row]).sum()
            turned = (targets.yaw[b, row].item() - 0.78539) % (2 * math.pi) >= math.pi
            of_direction = -predictions.direction_logits[b, row].log_softmax(0)[int(turned)]
            wanted[1, row // 2 % 2] += 2 * of_box * share  # two rotations, two classes
            wanted[2, row // 2 % 2] += 0.2 * of_direction * share
    assert (wanted > 0).all() and len(rows) == 1
    torch.testing.assert_close(losses.by_class, wanted, rtol=1e-4, atol=0)
    torch.testing.assert_close(losses.by_class.sum(1), torch.stack(losses[1:4]))
    names = dict(zip(loss_names(("Car", "Cyclist")), losses.flat().tolist(), strict=True))
    assert names["direction of Cyclist"] == pytest.approx(wanted[2, 1].item(), rel=1e-4)
    assert names["box of Car"] == pytest.approx(wanted[1, 0].item(), rel=1e-4)


def test_a_batch_is_the_mean_of_its_frames(criterion):
    predictions = random_predictions(criterion, 2)
    whole = criterion(predictions, SCENE, LABELS)
    frames = [
        criterion(
            Predictions(*(p[b : b + 1] for p in predictions)), SCENE[b : b + 1], LABELS[b : b + 1]
        )
        for b in range(2)
    ]
    for loss, parts in zip(whole, zip(*frames, strict=True), strict=True):
        torch.testing.assert_close(loss, sum(parts) / 2)


def test_padding_changes_nothing(criterion):
    predictions = random_predictions(criterion, 2)
    boxes, labels = torch.zeros(2, 9, 7), torch.zeros(2, 9, dtype=torch.int64)
    boxes[:, 3:5], labels[:, 3:5] = SCENE, LABELS
    for a, b in zip(
        criterion(predictions, SCENE, LABELS), criterion(predictions, boxes, labels), strict=True
    ):
        assert torch.equal(a, b)


def test_ignored_anchors_get_no_gradient(criterion):
    predictions = Predictions(*(p.requires_grad_() for p in random_predictions(criterion, 2)))
    criterion(predictions, SCENE, LABELS).total.backward()
    labels = targets_of(criterion.assigner, SCENE, LABELS).labels
    assert (labels < 0).any()
    for prediction, reached in zip(predictions, (labels >= 0, labels > 0, labels > 0), strict=True):
        assert not prediction.grad[~reached].any()
        assert prediction.grad[reached].any(dim=1).all()


def test_a_batch_without_boxes_is_finite(criterion):
    losses = criterion(
        random_predictions(criterion, 1), torch.zeros(1, 0, 7), torch.zeros(1, 0, dtype=torch.int64)
    )
    assert losses.total.isfinite()
    assert losses.box == losses.direction == 0


@pytest.mark.gpu
def test_the_device_is_never_waited_for():
    criterion = build_criterion(load_config(CONFIG)).cuda()
    predictions = Predictions(
        *(p.cuda().requires_grad_() for p in random_predictions(criterion, 2))
    )
    boxes, labels = SCENE.cuda(), LABELS.cuda()
    criterion(predictions, boxes, labels).total.backward()
    torch.cuda.set_sync_debug_mode("error")
    try:
        criterion(predictions, boxes, labels).total.backward()
    finally:
        torch.cuda.set_sync_debug_mode("default")
