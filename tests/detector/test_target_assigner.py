"""Target assignment against the rule written as loops."""

import math

import numpy as np
import pytest
import torch

from millisecond.detector.anchors import make_anchors
from millisecond.detector.training.losses import TargetAssigner
from tests.helpers.criterion import targets_of

SIZES = [(3.9, 1.6, 1.56), (0.8, 0.6, 1.73)]
MATCHED, UNMATCHED = (0.6, 0.5), (0.45, 0.35)
SHAPE = (20, 16)


@pytest.fixture(scope="module")
def anchors():
    return make_anchors((0, -4, -3, 6.4, 4, 1), SHAPE, SIZES, (-1.78, -0.6))


@pytest.fixture(scope="module")
def assigner(anchors):
    return TargetAssigner(anchors, MATCHED, UNMATCHED)


def aligned(box):
    x, y, _, length, width, _, yaw = box
    turn = abs(yaw - math.floor(yaw / math.pi + 0.5) * math.pi)
    dx, dy = (length, width) if turn < math.pi / 4 else (width, length)
    return x - dx / 2, y - dy / 2, x + dx / 2, y + dy / 2


def aligned_iou(a, b):
    ax0, ay0, ax1, ay1 = aligned(a)
    bx0, by0, bx1, by1 = aligned(b)
    inner = max(min(ax1, bx1) - max(ax0, bx0), 0) * max(min(ay1, by1) - max(ay0, by0), 0)
    return inner / ((ax1 - ax0) * (ay1 - ay0) + (bx1 - bx0) * (by1 - by0) - inner)


def by_loops(anchors, boxes, labels):
    """Labels and matched boxes of the anchors of one frame."""
    flat = anchors.reshape(-1, 7).double().tolist()
    classes = np.indices(anchors.shape[:4])[2].ravel()
    out, match = np.zeros(len(flat), int), np.full(len(flat), -1)
    for k in range(anchors.shape[2]):
        rows = np.flatnonzero(classes == k)
        truth = [i for i, label in enumerate(labels) if label == k + 1]
        if not truth:
            continue
        overlap = np.array([[aligned_iou(flat[r], boxes[i]) for i in truth] for r in rows])
        best_of_box = overlap.max(axis=0)
        for row, line in zip(rows, overlap, strict=True):
            wanted = any(o > 0 and o >= b - 1e-7 for o, b in zip(line, best_of_box, strict=True))
            if wanted or line.max() >= MATCHED[k]:
                out[row], match[row] = k + 1, truth[int(line.argmax())]
            elif line.max() >= UNMATCHED[k]:
                out[row] = -1
    return out, match


def random_scene(seed):
    generator = np.random.default_rng(seed)
    count = int(generator.integers(0, 7))
    labels = generator.integers(0, 3, count)
    boxes = np.zeros((count, 7))
    for row, label in zip(boxes, labels, strict=True):
        if label:
            row[:3] = generator.uniform((0, -4, -2), (6.4, 4, 0))
            row[3:6] = np.array(SIZES[label - 1]) * generator.uniform(0.8, 1.2, 3)
            row[6] = generator.uniform(-7, 7)
    return boxes, labels


def padded(scenes):
    most = max(len(labels) for _, labels in scenes)
    boxes, labels = (
        torch.zeros(len(scenes), most, 7),
        torch.zeros(len(scenes), most, dtype=torch.int64),
    )
    for b, (box, label) in enumerate(scenes):
        boxes[b, : len(label)] = torch.from_numpy(box)
        labels[b, : len(label)] = torch.from_numpy(label)
    return boxes, labels


def test_a_batch_of_random_scenes_equals_the_loops(anchors, assigner):
    boxes, labels = padded([random_scene(seed) for seed in range(24)])
    targets = targets_of(assigner, boxes, labels)
    seen = set()
    for b in range(len(boxes)):
        expected, match = by_loops(anchors, boxes[b].double().tolist(), labels[b].tolist())
        np.testing.assert_array_equal(targets.labels[b].numpy(), expected)
        seen |= set(expected.tolist())
        positive = torch.from_numpy(expected > 0)
        truth = boxes[b][match[expected > 0]]
        at = anchors.reshape(-1, 7)[positive]
        diagonal = at[:, 3:5].norm(dim=1)
        code = targets.residuals[b][positive]
        torch.testing.assert_close(code[:, 0] * diagonal + at[:, 0], truth[:, 0])
        torch.testing.assert_close(code[:, 1] * diagonal + at[:, 1], truth[:, 1])
        torch.testing.assert_close(code[:, 3:6].exp() * at[:, 3:6], truth[:, 3:6])
        torch.testing.assert_close(targets.yaw[b][positive], truth[:, 6])
        assert not targets.residuals[b][~positive].any()
    assert seen == {-1, 0, 1, 2}


def test_equally_good_anchors_are_all_positive(anchors, assigner):
    at = anchors[:, :, 1, 0]
    middle = (at[10, 7] + at[10, 8]) / 2  # between two anchors, too far for the threshold
    middle[3:5] = torch.tensor([0.9, 0.2])
    labels = targets_of(assigner, middle[None, None], torch.tensor([[2]])).labels.view(*SHAPE, 2, 2)
    assert labels[10, 7, 1, 0] == labels[10, 8, 1, 0] == 2


def test_a_box_that_no_anchor_touches_makes_no_positives(assigner):
    far = torch.tensor([[[500.0, 0, 0, 4, 2, 1.5, 0]]])
    assert not targets_of(assigner, far, torch.tensor([[1]])).labels.any()


def test_no_boxes_at_all(assigner):
    targets = targets_of(assigner, torch.zeros(2, 0, 7), torch.zeros(2, 0, dtype=torch.int64))
    assert targets.labels.shape == (2, 20 * 16 * 4)
    assert not targets.labels.any()
    assert not targets.residuals.any()
