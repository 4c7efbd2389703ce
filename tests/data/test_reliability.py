"""Shares of right boxes by score, calibrated scores, and the report on what a sensor shows."""

import numpy as np
import pytest

from millisecond.data.frame import Frame
from millisecond.data.metric.evaluation import BEAMS, evaluate, matches_of, sensor_report
from millisecond.data.metric.overlap import ALL, FrameBoxes, objects_of, point_groups, rings
from millisecond.data.metric.reliability import (
    Judged,
    fit_scale_and_shift,
    format_reliability,
    reliability,
)
from millisecond.data.simulator import simulate_varied
from millisecond.data.simulator.recording import crowded
from tests.data.test_lidar_metric import crowd, dicts, near
from tests.helpers import lidar_oracle


def sigmoid(logits):
    return 1 / (1 + np.exp(-logits))


@pytest.mark.parametrize(("scale", "shift"), [(1, 0), (2.4, -1.9), (0.6, 0.9)])
def test_a_known_scale_and_shift_come_back(scale, shift):
    rng = np.random.default_rng(0)
    logits = rng.normal(0, 1.5, 20_000)
    right = rng.random(20_000) < sigmoid(scale * logits + shift)
    found = fit_scale_and_shift("Car", Judged(sigmoid(logits), right))
    np.testing.assert_allclose(found, (scale, shift), atol=0.12)  # four standard errors


def test_the_reliability_of_a_calibrated_detector_is_the_diagonal():
    rng = np.random.default_rng(0)
    scores = rng.random(50_000)
    rows = reliability(Judged(scores, rng.random(50_000) < scores))
    assert len(rows) == 10 and sum(row["boxes"] for row in rows) == 50_000
    for row in rows:
        assert row["low"] <= row["score"] <= row["high"]
        spread = np.sqrt(row["score"] * (1 - row["score"]) / row["boxes"])
        assert abs(row["right"] - row["score"]) < 4 * spread
    ends = reliability(Judged(np.array([0.1, 1.0, 0.3]), np.array([True, True, False])))
    assert [(row["low"], row["right"]) for row in ends] == [(0.1, 1), (0.3, 0), (0.9, 1)]
    table = format_reliability({"Car": ends, "Pedestrian": []})
    assert max(map(len, table.splitlines())) <= 100
    told = [" ".join(line.split()) for line in table.splitlines()[1:]]
    assert told == [
        "0-0.1 0.1-0.2 0.2-0.3 0.3-0.4 0.4-0.5 0.5-0.6 0.6-0.7 0.7-0.8 0.8-0.9 0.9-1",
        "Car boxes - 1 - 1 - - - - - 1",
        "score - 10 - 30 - - - - - 100",
        "right - 100 - 0 - - - - - 100",
        "Pedestrian boxes - - - - - - - - - -",
        "score - - - - - - - - - -",
        "right - - - - - - - - - -",
    ]


@pytest.mark.parametrize(
    ("right", "told"), [(np.arange(90) < 10, "10 of 90"), (np.arange(90) < 45, "not more often")]
)
def test_boxes_that_calibrate_nothing_are_refused(right, told):
    with pytest.raises(ValueError, match=f"Car: .*{told}"):
        fit_scale_and_shift("Car", Judged(np.linspace(0.1, 0.9, 90), right))


def test_right_boxes_are_those_of_loops_and_calibration_leaves_ap():
    rng = np.random.default_rng(1)
    objects = [crowd(rng, 12, False) for _ in range(6)]
    before = [near(rng, frame) for frame in objects]
    after = [
        frame._replace(scores=sigmoid(2.4 * np.log(s / (1 - s)) - 1.9))
        for frame in before
        for s in [frame.scores.clip(0.001, 0.999)]
    ]
    overlaps = {"Car": (0.3,), "Person": (0.2,)}
    for name, of in matches_of(before, objects, overlaps)[3].items():
        scores, right = of.judged()
        frames = zip(map(dicts, objects), map(dicts, before), strict=True)
        match = (name, "3d", overlaps[name][0], ALL[1:], None)
        of_frames = [lidar_oracle.match(frame, *match) for frame in frames]
        hits = sorted(score for scores, _ in of_frames for score in scores)
        assert sorted(scores[right]) == hits and len(hits) > 0
        assert len(scores) - len(hits) == sum(false for _, false in of_frames) > 0
    one, other = (evaluate(found, objects, overlaps)["classes"] for found in (before, after))
    for name, (least,) in overlaps.items():
        a, b = (figures[name]["all"] for figures in (one, other))
        assert a[f"3d@{least}"]["R40"] == b[f"3d@{least}"]["R40"] > 0
        assert a["centre"] == b["centre"]


def test_the_sensor_report_counts_as_loops_do():
    rng = np.random.default_rng(2)
    frames, features = [], ("x", "y", "z", "intensity", "time", "ring")
    for number in range(5):
        objects = crowd(rng, 14, False)
        points = np.concatenate([rng.uniform((-18, -18, -1), (18, 18, 1), (900, 3))])
        columns = np.zeros((900, 1)), rng.random((900, 1)), rng.integers(0, 12, (900, 1))
        cloud = np.hstack([points, *columns]).astype(np.float32)
        names, boxes = tuple(map(str, objects.names)), objects.boxes.astype(np.float32)
        frames.append(Frame(str(number), cloud, boxes, names, np.zeros(14, np.int8)))
    objects = [objects_of(frame, features) for frame in frames]
    detections = [near(rng, frame) for frame in objects]
    groups = [*rings([8, 16]), *point_groups([3])]
    table = sensor_report(detections, objects, {"Car": (0.3,)}, groups).splitlines()
    assert max(map(len, table)) <= 100
    told = {line[:16].strip(): line[16:].split() for line in table[3:]}

    seen = []  # of each car: distance, points, beams, found by a score of 0.5, found
    edges = [*BEAMS.values(), np.inf]
    for frame in frames:
        for box, name in zip(frame.boxes, frame.names, strict=True):
            cos, sin = np.cos(box[6]), np.sin(box[6])
            inside = [
                p
                for p in frame.points
                for dx, dy, dz in [p[:3] - box[:3]]
                if abs(dx * cos + dy * sin) <= box[3] / 2
                and abs(dy * cos - dx * sin) <= box[4] / 2
                and abs(dz) <= box[5] / 2
            ]
            beams = len({p[5] for p in inside})
            if name == "Car" and inside:
                seen.append((np.hypot(*box[:2]), len(inside), beams))
    limits = {group.title: (group.by == "points", group.low, group.high) for group in groups}
    limits |= {"all": (0, 0, np.inf)}
    limits |= {title: (2, a, b) for title, a, b in zip(BEAMS, edges, edges[1:], strict=False)}
    for title, (column, low, high) in limits.items():
        own = [row for row in seen if low <= row[column] < high]
        if own:
            middle = [f"{np.median([row[k] for row in own]):.0f}" for k in (1, 2)]
            assert told[title][:3] == [str(len(own)), *middle]
        else:
            assert title not in told
    pairs = [(dicts(a), dicts(b)) for a, b in zip(objects, detections, strict=True)]
    for column, least in ((3, 0.5), (4, 0.0)):
        match = ("Car", "3d", 0.3, ALL[1:], None)
        hits = sum(
            len(lidar_oracle.match((a, [d for d in b if d["score"] >= least]), *match)[0])
            for a, b in pairs
        )
        assert int(told["all"][column]) == round(100 * hits / len(seen))


def test_beams_are_estimated_from_elevations():
    rows = [(-2.0, 3), (-1.5, 1), (-1.4, 2), (0.5, 4)]  # degrees, points; 0.1 degrees are one beam
    heights = [20 * np.tan(np.radians(angle)) for angle, count in rows for _ in range(count)]
    points = np.array([(20, 0.1 * k, z, 0) for k, z in enumerate(heights)], np.float32)
    box = np.array([[20, 0, 0, 4, 4, 4, 0], [40, 0, 0, 4, 4, 4, 0]], np.float32)
    frame = Frame("one", points, box, ("Car", "Car"), np.zeros(2, np.int8))
    assert list(objects_of(frame).beams) == [3, 0]


def test_varied_streets_are_crowded_and_vary():
    frames = [simulate_varied(seed) for seed in range(12)]
    again = simulate_varied(5)
    assert np.array_equal(again.points, frames[5].points) and again.names == frames[5].names
    dark = [not frame.points[:, 3].any() for frame in frames]
    assert 0 < sum(dark) < len(dark)
    sizes = sorted(len(frame.points) for frame in frames)
    assert sizes[-1] > 3 * sizes[0]
    alone = close = 0
    for seed in (0, 1, 2, 3, 4, 5, 6, 7):
        street = crowded("square", np.random.default_rng(seed))
        people = np.array([p[1:3] for p in street.placed if p.thing.kind == "Pedestrian"])
        if len(people) < 2:
            continue
        apart = np.hypot(*(people[:, None] - people).transpose(2, 0, 1))
        nearest = np.sort(apart, axis=1)[:, 1]
        assert nearest.min() >= 0.5
        close += int((nearest <= 0.9).sum())
        alone += int((nearest > 0.9).sum())
    assert close > 20 and alone > 0


def test_frames_without_objects_have_a_report():
    nothing = FrameBoxes(np.zeros((0, 7)), (), np.zeros(0, np.int64), np.zeros(0))
    assert sensor_report([nothing], [nothing], {"Car": (0.7,)}, []).endswith("Car, overlap 0.7")
