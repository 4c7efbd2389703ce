"""Anchors: their number, order and places, from the formulas of the published network."""

from pathlib import Path

import numpy as np
import pytest
import torch

from millisecond.detector.anchors import build_anchors
from millisecond.detector.config import load_config
from millisecond.detector.training.validation import anchored_boxes
from millisecond.ops.boxes import iou_bev

CONFIGS = Path(__file__).resolve().parents[2] / "configs"


@pytest.fixture(scope="module")
def anchors():
    return build_anchors(load_config(CONFIGS / "second_kitti.yaml"))


def test_number(anchors):
    assert anchors.shape == (200, 176, 3, 2, 7)
    assert anchors.reshape(-1, 7).shape[0] == 211200


def test_places_and_order(anchors):
    classes = [((3.9, 1.6, 1.56), -1.78), ((0.8, 0.6, 1.73), -0.6), ((1.76, 0.6, 1.73), -0.6)]
    flat = anchors.reshape(-1, 7).numpy()
    generator = np.random.default_rng(0)
    for _ in range(200):
        y, x, k, r = (int(generator.integers(n)) for n in (200, 176, 3, 2))
        (length, width, height), bottom = classes[k]
        expected = [
            x * 70.4 / 175,
            -40 + y * 80 / 199,
            bottom + height / 2,
            length,
            width,
            height,
            1.57 * r,
        ]
        row = ((y * 176 + x) * 3 + k) * 2 + r
        np.testing.assert_allclose(flat[row], expected, atol=1e-5)


def test_both_ends_of_the_range_carry_anchors(anchors):
    assert anchors[0, 0, 0, 0, :2].tolist() == [0, -40]
    np.testing.assert_allclose(anchors[-1, -1, 0, 0, :2], [70.4, 40], rtol=1e-6)


def test_boxes_that_anchors_match_are_those_of_all_anchors():
    """Boxes along the axes, some out of range; rows of padding count for no class."""
    config = load_config(CONFIGS / "second_kitti.yaml", ["grid.range=[0,-8,-3,16,8,1]"])
    rng = np.random.default_rng(0)
    boxes = rng.uniform((-2, -9, -2, 0.5, 0.4, 1, 0), (17, 9, 0, 5, 2, 2, 0), (300, 7))
    boxes[::2, 6] = np.pi / 2
    labels = rng.integers(0, 4, 300)
    given = torch.from_numpy(np.column_stack([boxes, labels])).float()
    low, high = np.array(config.grid.range[:3]), np.array(config.grid.range[3:])
    inside = ((boxes[:, :3] >= low) & (boxes[:, :3] < high)).all(axis=1)
    anchors = build_anchors(config)
    expected = []
    for number, kind in enumerate(config.classes):
        own = given[torch.from_numpy(inside & (labels == number + 1)), :7].double()
        best = iou_bev(own, anchors[:, :, number].reshape(-1, 7).double()).max(dim=1).values
        expected.append([int((best >= kind.matched).sum()), len(own)])
    counts = anchored_boxes(config, given).tolist()
    assert counts == expected and all(0 < few < many for few, many in counts)
    assert anchored_boxes(config, torch.zeros(0, 8)).tolist() == [[0, 0]] * 3
