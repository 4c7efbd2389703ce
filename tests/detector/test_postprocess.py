"""From predictions to boxes, against the rules applied one box after another."""

import math
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch

from millisecond.detector.config import PostprocessConfig, load_config
from millisecond.detector.inference import Detections, PostProcessor, build_postprocessor
from millisecond.detector.models.second import Predictions
from millisecond.ops import direction_bin, encode, iou_bev

CONFIG = Path(__file__).resolve().parents[2] / "configs" / "second_small.yaml"


@pytest.fixture(scope="module")
def postprocess():
    return build_postprocessor(load_config(CONFIG))


def predictions_of(postprocess, boxes, scores, classes=1):
    """What a network would say that sees these boxes {anchor: box} with these scores."""
    count = len(postprocess.anchors)
    logits = torch.full((1, count, classes), -9.0)
    residuals, directions = torch.zeros(1, count, 7), torch.zeros(1, count, 2)
    for (anchor, box), score in zip(boxes.items(), scores, strict=True):
        box = torch.tensor(box)
        logits[0, anchor, 0] = math.log(score / (1 - score))
        residuals[0, anchor] = encode(box, postprocess.anchors[anchor])
        residuals[0, anchor, 6] += math.pi  # heading lost: the direction bin has to bring it back
        directions[0, anchor, direction_bin(box[6])] = 1
    return Predictions(logits, residuals, directions)


def same_angle(a, b):
    return math.cos(a - b) == pytest.approx(1, abs=1e-6)


def test_boxes_come_back_with_their_headings(postprocess):
    boxes = {
        7: [5.0, -15.0, -1.0, 4.0, 1.7, 1.5, 0.3],
        900: [20.0, 10.0, -0.8, 3.5, 1.5, 1.4, -2.6],
        4000: [35.0, 2.0, -0.9, 4.4, 1.8, 1.6, 1.5],
    }
    (found,) = postprocess(predictions_of(postprocess, boxes, (0.3, 0.9, 0.6)))
    torch.testing.assert_close(found.scores, torch.tensor([0.9, 0.6, 0.3]))
    assert found.labels.tolist() == [1, 1, 1]
    for box, anchor in zip(found.boxes, (900, 4000, 7), strict=True):
        torch.testing.assert_close(box[:6], torch.tensor(boxes[anchor][:6]))
        assert same_angle(box[6], boxes[anchor][6])


def test_named_detections_are_on_the_host():
    boxes, scores = torch.arange(14.0).view(2, 7), torch.tensor([0.9, 0.4])
    found = Detections(boxes, scores, torch.tensor([2, 1])).named(("Car", "Cyclist"))
    assert found.names == ("Cyclist", "Car")
    np.testing.assert_array_equal(found.boxes, boxes.numpy())
    weaker = found.select(np.flatnonzero(found.scores < 0.5))
    assert weaker.names == ("Car",) and weaker.boxes.tolist() == boxes[1:].tolist()
    assert weaker.scores.tolist() == scores[1:].tolist()
    assert found.select(np.zeros(0, int)).boxes.shape == (0, 7)


def test_the_weaker_of_two_that_overlap_goes(postprocess):
    near, apart = [20.5, 0.2, -1, 4, 1.7, 1.5, 0.1], [28.0, 0.0, -1, 4, 1.7, 1.5, 0.1]
    boxes = {1: [20.0, 0.0, -1, 4, 1.7, 1.5, 0.0], 2: near, 3: apart}
    (found,) = postprocess(predictions_of(postprocess, boxes, (0.5, 0.8, 0.11)))
    np.testing.assert_allclose(found.boxes[:, 0], [20.5, 28.0], rtol=1e-5)


def test_scores_under_the_threshold_go(postprocess):
    boxes = {1: [20.0, 0.0, -1, 4, 1.7, 1.5, 0.0], 2: [10.0, 0.0, -1, 4, 1.7, 1.5, 0.0]}
    (found,) = postprocess(predictions_of(postprocess, boxes, (0.099, 0.101)))
    assert found.scores.tolist() == pytest.approx([0.101])


def test_nothing_found(postprocess):
    (found,) = postprocess(predictions_of(postprocess, {}, ()))
    assert found.boxes.shape == (0, 7)
    assert found.scores.shape == found.labels.shape == (0,)


def test_predictions_that_are_not_numbers_are_no_boxes(postprocess):
    nothing = predictions_of(postprocess, {}, ())
    wild = Predictions(*(torch.full_like(p, torch.nan) for p in nothing))
    assert len(postprocess(wild)[0].boxes) == 0
    for value in (1e4, torch.inf, torch.nan):
        wild = Predictions(torch.ones_like(wild[0]), torch.full_like(wild[1], value), nothing[2])
        assert postprocess(wild)[0].boxes.isfinite().all()


def random_predictions(count, classes, seed):
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(2, count, classes, generator=generator) - 1
    logits = (logits * 4).round() / 4  # many equal scores
    residuals = torch.randn(2, count, 7, generator=generator) * 0.2
    return Predictions(logits, residuals, torch.randn(2, count, 2, generator=generator))


def by_loops(postprocess, frame):
    """Kept anchors, best first."""
    scores = frame.class_logits.sigmoid().amax(dim=1).tolist()
    ranked = sorted(range(len(scores)), key=lambda a: (-scores[a], a))
    limits = postprocess.limits
    ranked = [a for a in ranked if scores[a] >= limits.score][: limits.before_nms]
    code, at = frame.box_residuals, postprocess.anchors
    diagonal = at[:, 3:5].norm(dim=1, keepdim=True)
    xyz = code[:, :3] * torch.cat((diagonal, diagonal, at[:, 5:6]), 1) + at[:, :3]
    boxes = torch.cat((xyz, code[:, 3:6].exp() * at[:, 3:6], code[:, 6:] + at[:, 6:]), 1)
    overlap = iou_bev(boxes[ranked], boxes[ranked])
    labels = frame.class_logits.argmax(dim=1)[ranked].tolist()
    kept = []
    for i in range(len(ranked)):
        rivals = [j for j in kept if not limits.per_class or labels[i] == labels[j]]
        if all(overlap[i, j] <= limits.iou for j in rivals):
            kept.append(i)
    return [ranked[i] for i in kept][: limits.after_nms], boxes


def test_random_predictions_equal_the_loops():
    generator = torch.Generator().manual_seed(3)
    anchors = torch.rand(6, 5, 3, 2, 7, generator=generator) * 3 + 0.5
    anchors[..., :2] *= 6
    cases = ((1000, 1000, 0), (20, 1000, 1), (1000, 5, 2))
    for (before, after, seed), per_class in product(cases, (False, True)):
        postprocess = PostProcessor(anchors, PostprocessConfig(0.3, before, 0.2, after, per_class))
        predictions = random_predictions(180, 3, seed)
        for b, found in enumerate(postprocess(predictions)):
            frame = Predictions(*(p[b] for p in predictions))
            rows, boxes = by_loops(postprocess, frame)
            assert len(rows) > 3
            torch.testing.assert_close(found.boxes[:, :6], boxes[rows, :6])
            logits = frame.class_logits[rows]
            torch.testing.assert_close(found.scores, logits.amax(dim=1).sigmoid())
            assert found.labels.tolist() == (logits.argmax(dim=1) + 1).tolist()
            axis = torch.remainder(found.boxes[:, 6] - boxes[rows, 6], math.pi)
            assert torch.minimum(axis, math.pi - axis).max() < 1e-5


def test_the_inner_result_has_a_fixed_shape(postprocess):
    boxes = {1: [20.0, 0.0, -1, 4, 1.7, 1.5, 0.0]}
    selected = postprocess.select(predictions_of(postprocess, boxes, (0.5,)))
    assert selected.boxes.shape == (1, postprocess.limits.after_nms, 7)
    assert selected.count.tolist() == [1]
    assert selected.labels.tolist() == [[1] + [0] * (postprocess.limits.after_nms - 1)]
    assert not selected.scores[0, 1:].any()
