"""Anchors: their number, order and places, from the formulas of the published network."""

from pathlib import Path

import numpy as np
import pytest

from millisecond.detector.anchors import build_anchors
from millisecond.detector.config import load_config

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
