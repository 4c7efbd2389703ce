import json
import tarfile
from dataclasses import replace

import numpy as np
import pytest

from millisecond.data.kitti.labels import Labels, joined, read_labels
from millisecond.data.metric import matching
from millisecond.data.metric.kitti import MIN_OVERLAP, evaluate, format_table
from millisecond.data.metric.matching import average, recall_thresholds
from tests.helpers.kitti_oracle import official

MAIN = ("bbox", "aos", "bev", "3d")
EMPTY = Labels(
    types=np.array([], dtype=str),
    truncated=np.zeros(0),
    occluded=np.zeros(0, np.int64),
    alpha=np.zeros(0),
    bbox=np.zeros((0, 4)),
    size=np.zeros((0, 3)),
    location=np.zeros((0, 3)),
    rotation_y=np.zeros(0),
    score=np.zeros(0),
)


def as_detections(labels: Labels) -> Labels:
    return replace(labels, score=np.ones(len(labels)))


def row_of_cars(count: int, **columns) -> Labels:
    """Cars far from each other, each of them easy."""
    left = 1000.0 * np.arange(count)
    box = np.stack([left, np.full(count, 100), left + 80, np.full(count, 160)], axis=1)
    defaults = dict(
        types=np.full(count, "Car"),
        truncated=np.zeros(count),
        occluded=np.zeros(count, np.int64),
        alpha=np.linspace(-1, 1, count),
        bbox=box,
        size=np.tile([3.9, 1.5, 1.6], (count, 1)),
        location=np.stack([left, np.full(count, 1.7), np.full(count, 20)], axis=1),
        rotation_y=np.linspace(-3, 3, count),
    )
    return Labels(**{**defaults, **columns})


def random_labels(rng, count, types, scored):
    """A crowd: objects overlap often, in the image, from above and in height."""
    left, top = rng.uniform(0, 60, count), rng.uniform(0, 15, count)
    return Labels(
        types=rng.choice(types, count),
        truncated=rng.choice([0, 0.2, 0.4, 0.6], count, p=[0.7, 0.1, 0.1, 0.1]),
        occluded=rng.choice(4, count, p=[0.6, 0.2, 0.1, 0.1]),
        alpha=rng.uniform(-3, 3, count),
        bbox=np.stack(
            [left, top, left + rng.uniform(30, 60, count), top + rng.uniform(22, 60, count)], axis=1
        ),
        size=rng.uniform([3, 1.4, 1.4], [4, 1.8, 1.8], (count, 3)),
        location=rng.uniform([-3, 1.5, 10], [3, 1.9, 14], (count, 3)),
        rotation_y=rng.choice([0.0, np.pi / 2, -3.0], count) + rng.normal(0, 0.1, count),
        # One decimal: ties, which the file's order decides.
        score=rng.uniform(0, 1, count).round(1) if scored else None,
    )


def rows(labels: Labels) -> list[dict]:
    names = [k for k, v in vars(labels).items() if v is not None]
    return [{k: getattr(labels, k)[i] for k in names} for i in range(len(labels))]


TYPES = ["Car"] * 4 + ["Pedestrian"] * 3 + ["Cyclist"] * 3 + ["Van", "Person_sitting", "DontCare"]


@pytest.mark.parametrize("seed", range(6))
def test_equals_the_official_rules_written_as_loops(monkeypatch, seed):
    """Also where the pairs of boxes are looked at in several parts."""
    monkeypatch.setattr(matching, "PAIRS", (10, matching.PAIRS)[seed % 2])
    rng = np.random.default_rng(seed)
    truth, found = [], []
    for _ in range(8):
        gt = random_labels(rng, rng.integers(0, 12), TYPES, scored=False)
        near = gt.select(rng.integers(0, max(len(gt), 1), min(len(gt) * 2, 14)))
        n = len(near)
        moved = replace(
            near,
            alpha=near.alpha + rng.normal(0, 0.5, n),
            bbox=near.bbox + rng.normal(0, 3, (n, 4)),
            location=near.location + rng.normal(0, [0.2, 0.05, 0.2], (n, 3)),
            score=rng.uniform(0, 1, n).round(1),
        )
        truth.append(gt)
        found.append(moved if rng.random() < 0.9 else random_labels(rng, 9, TYPES, scored=True))
    result = evaluate(found, truth)
    frames = [(rows(g), rows(d)) for g, d in zip(truth, found, strict=True)]
    compared = 0
    for name, overlaps in MIN_OVERLAP.items():
        for least in overlaps:
            suffix = "" if least == overlaps[0] else f"@{least}"
            for level in range(3):
                for metric in ("bbox", "bev", "3d"):
                    expected, oriented, count = official(frames, name, level, metric, least)
                    figures = result[name][metric + suffix]
                    assert figures["count"][level] == count
                    np.testing.assert_allclose(
                        [figures["R11"][level], figures["R40"][level]], expected, atol=1e-9
                    )
                    compared += expected[1] > 0
                    if metric == "bbox":
                        aos = result[name]["aos" + suffix]
                        np.testing.assert_allclose(
                            [aos["R11"][level], aos["R40"][level]], oriented, atol=1e-9
                        )
    assert compared > 20


@pytest.fixture(scope="module")
def real(kitti, tmp_path_factory):
    """The folder of all label files of KITTI's training frames."""
    folder = tmp_path_factory.mktemp("kitti")
    with tarfile.open(kitti / "label_2_all.tar.xz") as archive:
        archive.extractall(folder, filter="data")
    return folder / "label_2"


def test_agrees_with_the_benchmarks_evaluators(golden, real, tmp_path):
    with tarfile.open(golden / "kitti_ap" / "detections.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    files = sorted((tmp_path / "data").glob("*.txt"))
    assert len(files) == 400
    result = evaluate(
        [read_labels(path) for path in files],
        [read_labels(real / path.name) for path in files],
    )
    expected = json.loads((golden / "kitti_ap" / "expected.json").read_text())
    for name, metrics in expected.items():
        for metric, curves in metrics.items():
            for curve, values in curves.items():
                np.testing.assert_allclose(result[name][metric][curve], values, atol=1e-4)


def test_ground_truth_against_itself_is_100(kitti, real):
    ids = (kitti / "ImageSets" / "val.txt").read_text().split()[:800]
    truth = [read_labels(real / f"{frame_id}.txt") for frame_id in ids]
    result = evaluate([as_detections(labels) for labels in truth], truth)
    assert set(result) == {"Car", "Pedestrian", "Cyclist"}
    for metrics in result.values():
        for metric in MAIN:
            assert metrics[metric]["R11"] == [100, 100, 100]
            assert metrics[metric]["R40"] == [100, 100, 100]
            assert metrics[metric]["recall"] == metrics[metric]["precision"] == [1, 1, 1]


@pytest.mark.parametrize(
    ("count", "r40", "r11"), [(20, 47.5, 500 / 11), (41, 100, 100), (1, 0, 100 / 11)]
)
def test_few_ground_truths_cap_a_perfect_result(count, r40, r11):
    truth = [row_of_cars(count)]
    car = evaluate([as_detections(truth[0])], truth)["Car"]
    for metric in MAIN:
        np.testing.assert_allclose(car[metric]["R40"], [r40] * 3)
        np.testing.assert_allclose(car[metric]["R11"], [r11] * 3)
        assert car[metric]["count"] == [count] * 3
        assert car[metric]["recall"] == car[metric]["precision"] == [1, 1, 1]


def test_every_second_detection_wrong_halves_the_precision():
    truth = row_of_cars(100)
    score = np.linspace(1, 0.01, 200)
    twice = row_of_cars(200)
    shifted = twice.bbox + 1000.0 * (np.arange(200) - np.arange(200) // 2)[:, None] * [-1, 0, -1, 0]
    # Detection 2 i lies on car i, detection 2 i + 1 in empty sky above it.
    shifted[1::2] -= [0, 90, 0, 90]
    found = replace(twice, bbox=shifted, score=score, alpha=np.repeat(truth.alpha, 2))
    bbox = evaluate([found], [truth])["Car"]["bbox"]
    # At the i-th hit i of 2 i - 1 detections are right.
    hits = len(recall_thresholds(score[::2], 100))
    assert hits == 41
    np.testing.assert_allclose(bbox["precision"], 0.5, atol=0.01)
    np.testing.assert_allclose(bbox["recall"], (score[::2] >= 0.5).mean())
    assert 50 < bbox["R40"][1] < 55


def test_opposite_heading_costs_only_the_orientation():
    truth = row_of_cars(50)
    found = replace(as_detections(truth), alpha=truth.alpha + np.pi)
    car = evaluate([found], [truth])["Car"]
    np.testing.assert_allclose(car["aos"]["R40"], 0, atol=1e-9)
    np.testing.assert_allclose(car["bbox"]["R40"], 100)


def test_unknown_orientation_leaves_aos_out():
    truth = row_of_cars(50)
    found = replace(as_detections(truth), alpha=np.full(50, -10.0))
    assert not {"aos", "aos@0.5"} & set(evaluate([found], [truth])["Car"])


def test_order_of_detections_does_not_matter():
    rng = np.random.default_rng(7)
    truth = [random_labels(rng, 10, TYPES, scored=False) for _ in range(20)]
    found = [random_labels(rng, 20, TYPES, scored=True) for _ in range(20)]
    found = [replace(labels, score=rng.permutation(20) + rng.random(20)) for labels in found]
    shuffled = [labels.select(rng.permutation(20)) for labels in found]
    a, b = evaluate(found, truth), evaluate(shuffled, truth)
    assert any(value > 0 for value in a["Car"]["bbox"]["R40"])
    for name in a:
        for metric in a[name]:
            for figure in a[name][metric]:
                np.testing.assert_allclose(a[name][metric][figure], b[name][metric][figure])


def test_dont_care_region_takes_a_false_detection():
    truth = row_of_cars(50)
    first = truth.select([0])
    above = first.bbox - np.array([0, 90, 0, 80])  # clear of the car
    region = replace(
        first,
        types=np.array(["DontCare"]),
        bbox=above + np.array([-5, -5, 500, 5]),
        location=np.full((1, 3), -1000.0),
        size=np.full((1, 3), -1.0),
    )
    false = replace(first, bbox=above, location=first.location + np.array([0, 0, 30]))
    found = joined([as_detections(truth), as_detections(false)])
    car = evaluate([found], [joined([truth, region])])["Car"]
    assert car["bbox"]["precision"] == [1, 1, 1]
    np.testing.assert_allclose(car["3d"]["precision"], 50 / 51)


def test_nothing_found_and_nothing_there():
    truth = row_of_cars(5)
    nothing = evaluate([EMPTY, EMPTY], [truth, EMPTY])["Car"]["3d"]
    assert nothing["R40"] == [0, 0, 0] and nothing["count"] == [5, 5, 5]
    assert nothing["recall"] == nothing["precision"] == [0, 0, 0]
    everything = evaluate([as_detections(truth), EMPTY], [EMPTY, EMPTY])["Car"]["3d"]
    assert everything["R40"] == [0, 0, 0] and everything["count"] == [0, 0, 0]
    assert evaluate([], [])["Cyclist"]["bev"]["count"] == [0, 0, 0]


def test_thresholds_never_exceed_41():
    rng = np.random.default_rng(0)
    for count in (1, 2, 19, 20, 21, 39, 40, 41, 42, 80, 1000):
        for hits in {1, count // 2, count} - {0}:
            thresholds = recall_thresholds(rng.random(hits), count)
            assert len(thresholds) <= min(41, hits)
            assert (np.diff(thresholds) < 0).all()
    assert average(np.zeros(0)) == {"R11": 0, "R40": 0}


def test_mistakes_name_the_thing():
    car = as_detections(row_of_cars(1))
    with pytest.raises(ValueError, match="detections of 1 frames and ground truth of 2"):
        evaluate([car], [car, car])
    with pytest.raises(ValueError, match="class 'Tram' has no KITTI metric"):
        evaluate([car], [car], classes=["Tram"])
    with pytest.raises(ValueError, match="frame number 1 have no score"):
        evaluate([car, row_of_cars(1)], [car, car])


def test_table_shows_counts_and_says_where_ap_is_capped():
    truth = row_of_cars(20)
    table = format_table(evaluate([as_detections(truth)], [truth], classes=["Car", "Cyclist"]))
    assert "Car, overlap 0.7" in table and "Cyclist, overlap 0.25" in table
    assert "47.50* (20)" in table and "fewer than 41 ground truths" in table
    assert "- (0)" in table and "no ground truth of this class" in table
    many = row_of_cars(60)
    assert max(map(len, table.splitlines())) <= 100
    table = format_table(evaluate([as_detections(many)], [many], classes=["Car"]))
    assert max(map(len, table.splitlines())) <= 100
    assert "100.00  (60)" in table and "*" not in table


def test_the_table_begins_with_a_summary():
    """All 60 cars are found and all 20 pedestrians, whose AP is capped; there are no cyclists."""
    cars, walkers = row_of_cars(60), row_of_cars(20)
    walkers = replace(walkers, types=np.full(20, "Pedestrian"))
    both = [as_detections(cars), as_detections(walkers)]
    table = format_table(evaluate(both, [cars, walkers], classes=["Car", "Pedestrian", "Cyclist"]))
    summary = "AP in 3-D, R40, moderate: Car 100.00, Pedestrian 47.50*, Cyclist -; mean 73.75\n\n"
    assert table.startswith(summary)
