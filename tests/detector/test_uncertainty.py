"""What makes a scan worth labelling: by hand, and by symmetry."""

import math
from types import SimpleNamespace

import numpy as np
import pytest

from millisecond.data.boxes import NamedDetections, box_corners
from millisecond.data.simulator import simulate
from millisecond.detector.detector import Detector
from millisecond.detector.uncertainty import (
    Uncertainty,
    disagreement,
    doubts_of,
    examine,
    mirrored,
    score_entropy,
    values,
    view_of,
)


def detections(*rows):
    """(x, score, name) per box of 4 x 2 m."""
    boxes = np.array([[x, 3, 0, 4, 2, 1.5, 0.0] for x, *_ in rows], np.float32).reshape(-1, 7)
    _, scores, names = zip(*rows, strict=True) if rows else ((), (), ())
    return NamedDetections(boxes, np.array(scores), names)


def test_entropy_of_scores():
    assert score_entropy(np.array([0.5, 0.5])) == pytest.approx(2)
    assert score_entropy(np.array([0.0, 1.0])) == pytest.approx(0, abs=1e-9)
    quarter = 0.25 * 2 + 0.75 * math.log2(4 / 3)
    assert score_entropy(np.array([0.25, 0.75])) == pytest.approx(2 * quarter)
    assert score_entropy(np.zeros(0)) == 0


def test_disagreement_by_hand():
    view = detections((10, 0.9, "Car"), (30, 0.4, "Car"), (50, 0.6, "Person"))
    assert disagreement(view, view) == pytest.approx(0)
    # 1 m off: IoU 3 / 5; one is not found again; at the third place is something else
    other = detections((11, 0.5, "Car"), (50, 0.6, "Car"))
    wanted = (0.9 - 0.5) + 0.5 * (1 - 3 / 5) + 0.4 + (0.6 + 0.6)
    assert disagreement(view, other) == pytest.approx(wanted)
    assert disagreement(other, view) == pytest.approx(wanted)
    # the pair of larger IoU comes first, whatever the scores
    assert disagreement(
        detections((10, 0.8, "Car"), (11, 0.8, "Car")), detections((11, 0.8, "Car"))
    ) == pytest.approx(0.8)
    assert disagreement(detections(), view) == pytest.approx(0.9 + 0.4 + 0.6)
    assert disagreement(detections(), detections()) == 0


def test_doubts_say_what_the_sums_are_made_of():
    view = detections((10, 0.98, "Car"), (30, 0.4, "Car"), (50, 0.6, "Person"))
    other = detections((10, 0.97, "Car"), (50, 0.7, "Car"), (70, 0.55, "Person"))
    doubts = doubts_of(view, other)
    assert {doubt.why for doubt in doubts} == {
        "Car at 30 m: 0.40, mirrored none",
        "Person at 50 m: 0.60, mirrored none",
        "Car at 50 m: none, mirrored 0.70",
        "Person at 70 m: none, mirrored 0.55",
    }  # the car at 10 m is beyond doubt
    worths = [doubt.worth for doubt in doubts]
    assert worths == sorted(worths, reverse=True)
    clear = abs(0.98 - 0.97) + score_entropy(np.array([0.98]))
    whole = score_entropy(view.scores) + disagreement(view, other)
    assert sum(worths) == pytest.approx(whole - clear)
    scan = Uncertainty(1.0, 1.0, 3, doubts)
    assert scan.why == f"{doubts[0].why}; {doubts[1].why}; 2 more"
    assert scan._replace(doubts=doubts[1:]).why == f"{doubts[1].why}; {doubts[2].why}; 1 more"
    assert scan._replace(doubts=doubts[2:]).why == f"{doubts[2].why}; {doubts[3].why}"
    where = [
        (d.score, *(None if b is None else b[0] for b in (d.found, d.mirrored))) for d in doubts
    ]
    assert set(where) == {(0.4, 30, None), (0.6, 50, None), (None, None, 50), (None, None, 70)}
    alone = doubts_of(view)
    assert {doubt.why for doubt in alone} == {"Person at 50 m: 0.60", "Car at 30 m: 0.40"}
    worth = score_entropy(view.scores[1:])
    assert sum(doubt.worth for doubt in alone) == pytest.approx(worth)
    assert [(doubt.found[0], doubt.mirrored) for doubt in alone] == [(30, None), (50, None)]
    assert doubts_of(detections()) == () and Uncertainty(0.0, None, 0).why == ""


def test_a_scan_and_its_mirror_image_disagree_as_much():
    detector, points = Detector.from_weights("second_small", "cpu"), simulate(3).points
    low, high = detector.config.grid.range[1], detector.config.grid.range[4]
    turned = points.copy()
    turned[:, 1] = low + high - turned[:, 1]
    one, other = examine(detector, points), examine(detector, turned)
    assert one.boxes > 0 and one.entropy > 0 and one.disagreement > 0
    assert other.disagreement == pytest.approx(one.disagreement, rel=1e-3)
    here, there = (
        detector.detect(cloud)[0].named(detector.config.class_names) for cloud in (points, turned)
    )
    differ = disagreement(here, mirrored(there, low + high))
    assert one.disagreement == pytest.approx(differ, rel=1e-3)
    assert one.disagreement < 0.9 * (here.scores.sum() + there.scores.sum())  # some are found again
    found = detections((10, 0.9, "Car"))
    twice = mirrored(mirrored(found, 3.0), 3.0)
    assert np.array_equal(twice.boxes, found.boxes)
    assert mirrored(found, 3.0).boxes[0, 1] == 0


@pytest.mark.parametrize("axis", [0, 1])
def test_mirrored_boxes_have_mirrored_corners(axis):
    found = detections((10, 0.9, "Car"))
    found.boxes[:, 6] = 0.4
    corners = box_corners(found.boxes)[0]
    corners[:, axis] = 5.0 - corners[:, axis]
    image = box_corners(mirrored(found, 5.0, axis).boxes)[0]
    apart = np.linalg.norm(corners[:, None] - image[None], axis=2)
    assert apart.min(axis=1).max() < 1e-5
    ahead = np.array([np.cos(0.4), np.sin(0.4)]) * np.where(np.arange(2) == axis, -1, 1)
    yaw = mirrored(found, 5.0, axis).boxes[0, 6]
    assert np.allclose([np.cos(yaw), np.sin(yaw)], ahead, atol=1e-6)


class TwoPoints:
    """Finds a box from the first point of a scan to the second, as high as the third is far."""

    config = SimpleNamespace(grid=SimpleNamespace(range=(-8, -40, -3, 70, 30, 1)), class_names=())
    new = False  # nothing is left of a view before

    def forget(self):
        self.new = True

    def detect(self, points):
        assert self.new
        self.new = False
        one, other, third = points[:, :3].astype(np.float64)
        length, width = np.linalg.norm(other - one), np.linalg.norm(third - one)
        yaw = math.atan2(*(other - one)[1::-1])
        boxes = np.array([[*(one + other) / 2, length, width, width, yaw]])
        found = NamedDetections(boxes, np.ones(1), ("Car",), np.ones((1, 2)))
        return [SimpleNamespace(named=lambda _: found)]


@pytest.mark.parametrize("axes", [(), (1,), (0,), (0, 1)])
@pytest.mark.parametrize(("turn", "stretch"), [(0, 1), (0.2, 0.97), (-0.3, 1.05), (2.0, 1)])
def test_a_view_finds_the_boxes_where_they_are(axes, turn, stretch):
    points = np.array([[10, 3, -1, 0.5], [13, 5, -1, 0.2], [9, 3, 0, 0.1]])
    given, detector = points.copy(), TwoPoints()
    wanted = view_of(detector, points, ()).boxes[0]
    (found,), _, _, velocities = view_of(detector, points, axes, turn, stretch)
    assert np.array_equal(points, given) and velocities is None  # else they would have to turn
    np.testing.assert_allclose(found[:6], wanted[:6], atol=1e-9)
    assert math.cos(found[6] - wanted[6]) == pytest.approx(1)


def test_values_are_shares_of_the_mean():
    scans = [Uncertainty(2, 0.5, 3), Uncertainty(6, 1.5, 9), Uncertainty(1, 4, 2)]
    assert values(scans, "entropy") == pytest.approx([2 / 3, 2, 1 / 3])
    assert values(scans, "disagreement") == pytest.approx([0.25, 0.75, 2])
    assert values(scans) == pytest.approx([(2 / 3 + 0.25) / 2, (2 + 0.75) / 2, (1 / 3 + 2) / 2])
    assert values([Uncertainty(0, 0, 0)]).tolist() == [0]
    assert values([Uncertainty(0.1, 0.2, 1), Uncertainty(0.3, 0.6, 1)]) == pytest.approx([0.5, 1.5])
    assert values([]).shape == (0,)
