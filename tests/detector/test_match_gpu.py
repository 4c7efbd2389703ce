"""Matching of anchors on the kernels against its plain definition."""

import copy
import math
from pathlib import Path

import pytest
import torch
from torch import Tensor

from millisecond.detector.config import load_config
from millisecond.detector.training.losses import Criterion, build_criterion
from tests.helpers.criterion import build, scenes
from tests.helpers.sparse import poison_bits

pytestmark = pytest.mark.gpu

CONFIG = Path(__file__).resolve().parents[2] / "configs" / "second_kitti.yaml"


def on_the_anchors(criterion: Criterion, seed: int) -> tuple[Tensor, Tensor]:
    """Boxes that are anchors, or lie in the middle of two, some of them twice: ties everywhere."""
    anchors = criterion.assigner.anchors
    generator = torch.Generator().manual_seed(seed)
    y, x = (torch.randint(1, n, (60,), generator=generator) for n in anchors.shape[:2])
    k, r = (torch.randint(n, (60,), generator=generator) for n in anchors.shape[2:4])
    boxes, beside = anchors[y, x, k, r], anchors[y, x - 1, k, r]
    boxes[::3] = (boxes[::3] + beside[::3]) / 2
    boxes[40:], k[40:] = boxes[:20], k[:20]
    return boxes[None], k[None] + 1


def check_match(criterion: Criterion, boxes: Tensor, labels: Tensor) -> Tensor:
    wanted = criterion.assigner.match(boxes, labels)
    assigner = copy.deepcopy(criterion.assigner).cuda()
    poison_bits()
    found = assigner.match(boxes.cuda(), labels.cuda())
    torch.testing.assert_close(found.rows.cpu(), wanted.rows, rtol=0, atol=0)
    torch.testing.assert_close(found.positives.cpu(), wanted.positives, rtol=0, atol=0)
    return wanted.rows


@pytest.mark.parametrize("boxes", [1, 7, 127, 128, 300])
@pytest.mark.parametrize("batch", [1, 3])
def test_match_equals_the_definition(batch, boxes):
    index = check_match(build(), *scenes(batch, boxes, seed=batch + boxes))
    if boxes > 1:
        assert {-2, -1} < set(index.unique().tolist())


@pytest.mark.parametrize("shape", [(1, 1), (1, 40), (40, 1), (3, 500)])
def test_match_on_grids_of_any_shape(shape):
    check_match(build(2, shape), *scenes(2, 40, seed=1))


@pytest.mark.parametrize("seed", range(4))
def test_match_of_ties(seed):
    criterion = build()
    boxes, labels = on_the_anchors(criterion, seed)
    index = check_match(criterion, boxes, labels)
    assert (index >= 0).sum() > 100
    assert index.max() < 40  # of equal boxes the first


def test_match_of_boxes_turned_by_eighths():
    boxes, labels = scenes(2, 64, seed=3)
    turns = torch.arange(64) * (math.pi / 8)
    boxes[..., 6] = turns + torch.tensor([[1e-6], [-1e-6]])
    check_match(build(), boxes, labels)


def test_match_of_empty_far_and_overlarge_boxes():
    boxes, labels = scenes(2, 50, seed=4)
    boxes[:, 10:20, :2] += 1e4
    boxes[:, 20:30, 3:5] = 0
    boxes[:, 30:40, 3:5] = 100
    boxes[:, 40:, 3:5] *= 1e-3
    check_match(build(), boxes, labels)


def test_match_without_boxes():
    boxes, labels = scenes(2, 5, seed=5)
    assert (check_match(build(), boxes, torch.zeros_like(labels)) == -1).all()
    assert (check_match(build(), boxes, torch.full_like(labels, 4)) == -1).all()  # three classes


def test_match_at_full_size():
    config = load_config(CONFIG)
    check_match(build_criterion(config), *scenes(4, 60, seed=6, area=config.grid.range))
