"""The scores without a camera: against loops, against KITTI's metric, and by hand."""

import numpy as np
import pytest

from millisecond.data.kitti.labels import Labels
from millisecond.data.metric import kitti
from millisecond.data.metric.evaluation import (
    default_overlaps,
    evaluate,
    format_tables,
    matches_of,
    verdicts_of,
)
from millisecond.data.metric.matching import Objects
from millisecond.data.metric.overlap import (
    ALL,
    DISTANCES,
    FrameBoxes,
    average_precision,
    point_groups,
    rings,
)
from tests.helpers import lidar_oracle

NAMES = ("Car", "Pallet", "Person")
GROUPS = [*rings([8, 16]), *point_groups([3])]


def crowd(rng, count, scored):
    """Boxes that often overlap, up to 25 m away."""
    low, high = [-18, -18, -1, 2, 1, 1, -4], [18, 18, 0, 6, 4, 2, 4]
    scores = rng.uniform(0, 1, count).round(1) if scored else np.zeros(count)  # ties
    points = rng.choice([0, 1, 2, 3, 9], count)
    return FrameBoxes(rng.uniform(low, high, (count, 7)), rng.choice(NAMES, count), points, scores)


def near(rng, objects, scored=0.7):
    """Detections: most of the objects, displaced, some of them twice or of another class."""
    rows = rng.permutation(np.repeat(np.arange(len(objects.boxes)), 2))[: len(objects.boxes) + 4]
    names = np.where(rng.random(len(rows)) < scored, np.array(objects.names)[rows], NAMES[0])
    boxes = objects.boxes[rows] + rng.normal(0, 0.4, (len(rows), 7)) * [1, 1, 0.3, 0, 0, 0, 0.3]
    points = rng.choice([0, 2, 5], len(rows))
    return FrameBoxes(boxes, names, points, rng.uniform(0, 1, len(rows)).round(2))


def dicts(frame):
    columns = zip(frame.boxes.tolist(), frame.names, frame.points, frame.scores, strict=True)
    return [dict(zip(("box", "name", "points", "score"), row, strict=True)) for row in columns]


@pytest.mark.parametrize("seed", range(3))
def test_all_figures_agree_with_loops_over_boxes(seed):
    rng = np.random.default_rng(seed)
    objects = [crowd(rng, rng.integers(0, 16), False) for _ in range(4)]
    detections = [near(rng, frame) if seed else crowd(rng, 15, True) for frame in objects]
    overlaps = {"Car": (0.3, 0.55), "Person": (0.2,)}
    result = evaluate(detections, objects, overlaps, GROUPS)["classes"]
    frames = [(dicts(a), dicts(b)) for a, b in zip(objects, detections, strict=True)]
    for name, least in overlaps.items():
        for group in (ALL, *GROUPS):
            figures = result[name][group.title]
            for iou in least:
                for kind in ("bev", "3d"):
                    got = figures[f"{kind}@{iou:g}"]
                    count, *wanted = lidar_oracle.r40(frames, name, kind, iou, group[1:])
                    assert figures["count"] == count
                    if count:
                        found = [got["R40"], got["recall"], got["precision"]]
                        assert found == pytest.approx(wanted, abs=1e-9)
            for limit in DISTANCES:
                wanted = lidar_oracle.centre_ap(frames, name, limit, group[1:])
                assert figures["centre"][f"{limit:g}"] == pytest.approx(wanted, abs=1e-9)


def test_agrees_with_kitti_where_all_objects_are_easy():
    """KITTI's metric on labels that are all easy, and the same boxes in a frame with z up."""
    rng = np.random.default_rng(5)
    classes, sides = list(kitti.MIN_OVERLAP), []
    for scored in (False, True):
        frames = []
        for frame in range(8):
            count = 12
            place = np.random.default_rng(frame).uniform([-9, 1.5, 5], [9, 1.9, 30], (count, 3))
            labels = Labels(
                types=np.array(classes * 4),
                truncated=np.zeros(count),
                occluded=np.zeros(count, np.int64),
                alpha=np.zeros(count),
                bbox=np.tile([0.0, 0, 50, 60], (count, 1)),
                size=np.tile([3.9, 1.5, 1.6], (count, 1)) * rng.uniform(0.9, 1.1, (count, 3)),
                location=place + scored * rng.normal(0, 0.2, (count, 3)),
                rotation_y=rng.normal(0, 0.1, count),
                score=rng.uniform(0, 1, count) if scored else None,
            )
            frames.append(labels)
        sides.append(frames)
    wanted = kitti.evaluate(sides[1], sides[0])
    objects, detections = (
        [
            FrameBoxes(
                Objects.of([labels]).boxes,
                labels.types.tolist(),
                np.ones(len(labels), np.int64),
                np.zeros(len(labels)) if labels.score is None else labels.score,
            )
            for labels in frames
        ]
        for frames in sides
    )
    result = evaluate(detections, objects, {name: kitti.MIN_OVERLAP[name] for name in classes})
    partly = 0
    for name in classes:
        for kind in ("bev", "3d"):
            for suffix, iou in zip(("", "@"), kitti.MIN_OVERLAP[name], strict=True):
                official = wanted[name][f"{kind}{suffix and f'@{iou:g}'}"]
                ours = result["classes"][name]["all"]
                assert ours["count"] == official["count"][0]
                for figure in ("R40", "recall", "precision"):
                    assert ours[f"{kind}@{iou:g}"][figure] == official[figure][0]
                partly += 0 < official["R40"][0] < 70
    assert partly >= 4


def test_nuscenes_average_precision_by_hand():
    """Right, wrong, right, of four objects: recall 1/4, 1/4, 2/4 with precision 1, 1/2, 2/3.

    Precision is 1 at the 14 places 0.11 to 0.24, goes from 1/2 to 2/3 in 25 equal steps at the 26
    places 0.25 to 0.50, and is 0 at the other 50.
    """
    wanted = (14 * (1 - 0.1) + 26 * ((1 / 2 + 2 / 3) / 2 - 0.1)) / 90 / 0.9
    assert average_precision(np.array([True, False, True]), 4) == pytest.approx(wanted, abs=1e-12)
    assert average_precision(np.array([True] * 7), 7) == pytest.approx(1)
    assert average_precision(np.array([False]), 2) == 0
    assert average_precision(np.zeros(0, bool), 2) == 0


def test_agrees_with_the_nuscenes_kit():
    """Figures of `accumulate` and `calc_ap` of nuscenes-devkit 1.2.0 for the same boxes."""
    rng = np.random.default_rng(11)
    there = {"points": np.ones(12, np.int64)}
    objects = [crowd(rng, 12, False)._replace(**there) for _ in range(5)]
    detections = [near(rng, frame) for frame in objects]
    result = evaluate(detections, objects, default_overlaps(["Car", "Person"]))["classes"]
    official = {
        "Car": [18.40213, 39.257824, 50.16486, 55.418338],
        "Person": [43.677058, 70.608429, 70.608429, 70.608429],
    }
    for name, wanted in official.items():
        *found, mean = result[name]["all"]["centre"].values()
        assert found == pytest.approx(wanted, abs=1e-6)
        assert mean == pytest.approx(np.mean(wanted), abs=1e-6)


def frame(*rows):
    """(x, name, points, score) per box of 4 x 2 x 1.5 m."""
    boxes = np.array([[x, 0, 0, 4, 2, 1.5, 0] for x, *_ in rows], float).reshape(-1, 7)
    _, names, points, scores = zip(*rows, strict=True) if rows else ((), (), (), ())
    return FrameBoxes(boxes, names, np.array(points, np.int64), np.array(scores, float))


def test_a_detection_counts_where_its_object_does():
    objects = [frame((29.9, "Car", 5, 0), (50, "Car", 0, 0))]
    detections = [frame((30.1, "Car", 1, 0.9), (50, "Car", 3, 0.8), (70, "Car", 2, 0.7))]
    result = evaluate(detections, objects, {"Car": (0.5,)}, [*rings([30]), *point_groups([4])])
    figures = result["classes"]["Car"]
    near, far = figures["0-30 m"], figures["30+ m"]
    # the hit is over the edge, but counts with its object; a far one finds what holds no point
    assert near["count"] == 1 and near["3d@0.5"]["precision"] == near["3d@0.5"]["recall"] == 1
    assert near["3d@0.5"]["curve_recall"] == near["3d@0.5"]["curve_precision"] == [1]
    assert far["count"] == 0 and far["empty"] == 1 and far["3d@0.5"]["R40"] is None
    assert figures["all"]["3d@0.5"]["precision"] == pytest.approx(1 / 2)
    assert figures["4+ points"]["3d@0.5"]["precision"] == 1
    assert figures["1-3 points"]["count"] == 0
    assert near["centre"]["2"] == pytest.approx(100) and far["centre"]["2"] is None
    # nuScenes takes empty objects away: what finds one is false, so at recall 1 precision is 1 / 3
    wanted = 100 * (89 * (1 - 0.1) + (1 / 3 - 0.1)) / 90 / 0.9
    assert figures["all"]["centre"]["2"] == pytest.approx(wanted)


def test_long_boxes_are_a_pair_as_far_as_they_touch():
    """Boxes 20 m long in a row share 1 of 39 m of their length, 19 m apart."""
    objects, found = (
        FrameBoxes(np.array([[x, 0, 0, 20, 2, 3, 0]]), ["Lorry"], np.array([5]), np.array([1.0]))
        for x in (20.0, 39.0)
    )
    for least, recall in ((0.025, 1), (0.026, 0)):
        figures = evaluate([found], [objects], {"Lorry": (least,)})["classes"]["Lorry"]["all"]
        assert figures[f"3d@{least}"]["recall"] == figures[f"bev@{least}"]["recall"] == recall


def test_confusion_and_worst_frames():
    objects = [
        frame((10, "Car", 5, 0), (20, "Person", 5, 0), (30, "Car", 5, 0)),
        frame((10, "Pallet", 5, 0)),
        frame((10, "Car", 0, 0), (50, "Car", 0, 0)),
    ]
    detections = [
        frame((10.5, "Car", 5, 0.6), (21, "Car", 5, 0.9), (30, "Car", 5, 0.4)),
        frame((10, "Car", 5, 0.7), (11, "Person", 5, 0.8), (40, "Person", 5, 0.9)),
        frame((10, "Car", 0, 0.9)),
    ]
    result = evaluate(detections, objects, default_overlaps(["Car", "Person"]), [], ["a", "b", "c"])
    confused = result["confusion"]
    assert confused["rows"] == ("Car", "Person", "Pallet", "nothing")
    assert confused["columns"] == ("Car", "Person", "missed")
    # the pallet is nearest to the car; what finds an object without points is nobody's, thus false
    assert confused["counts"] == [[1, 0, 1], [1, 0, 0], [1, 0, 0], [1, 2, 0]]
    worst = {row["frame"]: row for row in result["worst"]}
    # 0.5 m off is 0.78 in 3-D; two are missed, and the person taken for a car is false
    assert worst["a"] == {"frame": "a", "missed": 2, "false": 1, "badness": 2.9}
    assert worst["b"]["false"] == 3 and worst["b"]["badness"] == pytest.approx(2.4)
    assert [row["frame"] for row in result["worst"]] == ["a", "b"]
    table = format_tables(result, default_overlaps(["Car", "Person"]))
    assert max(map(len, table.splitlines())) <= 100
    assert (
        "Car, overlap 0.7" in table and "left out, for they hold no point of the scan: 2" in table
    )
    assert "Pallet" in table and "worst frame" in table and "capped" not in table
    aps = [result["classes"][name]["all"] for name in ("Car", "Person")]
    car, person = aps[0]["3d@0.7"]["R40"], aps[1]["3d@0.5"]["R40"]
    summary = f"AP in 3-D, R40: Car {car:.1f}*, Person {person:.1f}*; mean {(car + person) / 2:.1f}"
    assert table.splitlines()[:2] == [summary, ""]


def test_verdicts_by_hand():
    """Found, found with a low score, without points, of another class."""
    objects = frame((10, "Car", 5, 0), (20, "Car", 5, 0), (30, "Car", 0, 0), (40, "Pallet", 5, 0))
    found = frame(
        (11, "Car", 5, 0.9), (20, "Car", 5, 0.4), (30, "Car", 0, 0.8), (60, "Car", 5, 0.7)
    )
    overlaps = {"Car": (0.5,)}
    truth, detections, pairs, matches = matches_of([found], [objects], overlaps)
    verdicts = verdicts_of(matches, truth, detections, pairs, overlaps)
    assert verdicts.truth.tolist() == ["matched", "missed", "ignored", "ignored"]
    assert verdicts.detections.tolist() == ["matched", "ignored", "ignored", "false"]
    assert verdicts.partner.tolist() == [0, -1, -1, -1]
    np.testing.assert_allclose(verdicts.overlap, [3 / 5, np.nan, np.nan, np.nan])
    own = ["", "its detection scores 0.40 < 0.50", "no point on it", "class not scored"]
    assert verdicts.truth_reasons.tolist() == own
    low, empty = "scores less than 0.5", "on an object, no point on it"
    assert verdicts.reasons.tolist() == ["", low, empty, "no object there"]


def test_tables_of_many_classes_with_long_names_fit_100_columns():
    names = [f"construction_vehicle_{number}" for number in range(10)]
    objects = [frame(*((4 + 4 * n, name, 5, 0) for n, name in enumerate(names)))]
    found = [frame(*((4 + 4 * n, name, 5, 0.9) for n, name in enumerate(names)))]
    result = evaluate(found, objects, default_overlaps(names), rings([30]), ["a"])
    lines = format_tables(result, default_overlaps(names)).splitlines()
    assert max(map(len, lines)) <= 100
    begin = next(n for n, line in enumerate(lines) if line.startswith("confusion"))
    assert lines[begin + 1].split() == ["found:", *map(str, range(1, 11)), "missed"]
    for number, (name, line) in enumerate(zip(names, lines[begin + 2 :], strict=False), 1):
        cells = ["1" if number == column else "0" for column in range(1, 11)]
        assert line.split() == [str(number), name, *cells, "0"]


def test_nothing_found_and_nothing_there():
    for objects, detections in [
        ([frame()], [frame()]),
        ([frame((9, "Car", 1, 0))], [frame()]),
        ([frame()], [frame((9, "Car", 1, 0.9))]),
    ]:
        result = evaluate(detections, objects, {"Car": (0.7,)}, rings([30]))
        ap = result["classes"]["Car"]["all"]["3d@0.7"]["R40"]
        assert ap == (0 if len(objects[0].boxes) else None) and result["mean"]["3d"] == ap
        assert format_tables(result, {"Car": (0.7,)})
    with pytest.raises(ValueError, match="2 frames, objects of 1"):
        evaluate([frame(), frame()], [frame()], {"Car": (0.7,)})
    for edges in ([30, 20], [0], [5, 5]):
        with pytest.raises(ValueError, match=r"--rings .*ascending"):
            rings(edges)
    with pytest.raises(ValueError, match="--points 1: "):
        point_groups([1])
