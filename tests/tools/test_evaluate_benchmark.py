"""millisecond evaluate --benchmark: what is submitted is what was found, scored as the benchmark
scores."""

import json
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

from millisecond.data.datasets.benchmarks import NuscenesDetection
from millisecond.data.metric.nuscenes import Boxes, WorldBoxes, detection_score
from millisecond.tools import evaluate as tool
from tests.helpers.nuscenes_cases import CASES, COLUMNS, case
from tests.helpers.published_trees import (
    CALIB,
    TREES,
    about,
    heading,
    moving,
    times,
    turned,
    write_json,
)
from tests.helpers.published_trees import (
    Placed as Frame,
)

pytest.importorskip("scipy")
pytest.importorskip("pyarrow")
imported = import_module("millisecond.tools.import")
GOLDEN = Path(__file__).parents[1] / "data/nuscenes_scores.json"


def run(*arguments):
    try:
        return tool.main([str(argument) for argument in arguments])
    except SystemExit as end:
        return end.code


def write_results(root: Path, output: Path, noise: float = 0.0, tracks: bool = True) -> None:
    """The labels of an imported data set as `millisecond detect --track` writes results."""
    rng = np.random.default_rng(0)
    for path in sorted((root / "points").glob("*.pcd")):
        label = root / f"labels/{path.stem}.txt"
        lines = label.read_text().splitlines() if label.exists() else []
        rows = [line.split() for line in lines]
        boxes = np.array([row[:7] for row in rows], float).reshape(-1, 7)
        boxes += rng.normal(0, noise, boxes.shape) * (1, 1, 1, 0, 0, 0, 1)
        result = {"frame": path.stem, "boxes": boxes.tolist(), "names": [row[7] for row in rows]}
        result["scores"] = rng.uniform(0.3, 1, len(rows)).tolist()
        if tracks:
            result["ids"] = [1 + n for n in range(len(rows))]
            result["velocities"] = rng.normal(0, 3, (len(rows), 2)).tolist()
        output.mkdir(exist_ok=True)
        (output / f"{path.stem}.json").write_text(json.dumps(result))


def make(name: str, folder: Path, noise: float = 0.0) -> tuple[Path, Path]:
    """The folder of a small data set, and its labels as results."""
    if not (folder / "in").exists():
        TREES[name](folder / "in")
    assert imported.main([name, str(folder / "in"), str(folder / "out")]) == 0
    write_results(folder / "out", folder / "results", noise)
    return folder / "in", folder / "results"


def evaluate(name: str, root: Path, results: Path, *more) -> int:
    return run("--benchmark", name, "--root", root, "--detections", results, *more)


def test_the_score_is_the_development_kits():
    """Its own figures of random cases, made by tests/helpers/nuscenes_cases.py."""
    golden = np.array(json.loads(GOLDEN.read_text()))
    assert len(golden) == CASES and len(np.unique(golden[:, 0])) == CASES
    for seed, wanted in enumerate(golden):
        found, truth, frames = case(seed)
        sides = []
        for side in (found, truth):
            numbers, names, boxes, velocities, attributes, scores = (side[c] for c in COLUMNS)
            seen = np.ones(len(numbers), np.int64)
            rows = Boxes(frames, numbers, names, boxes, seen, scores)
            sides.append(WorldBoxes(rows, velocities, attributes))
        score = detection_score(*sides)
        own = [score.nds, score.ap, *score.errors.values()]
        np.testing.assert_allclose(own, wanted, atol=1e-8, err_msg=f"case {seed}")


def nuscenes_rows(root: Path, table: str) -> list[dict]:
    return json.loads((root / f"v1.0-trainval/{table}.json").read_text())


def test_boxes_of_nuscenes_are_submitted_where_the_labels_are(tmp_path):
    root, results = make("nuscenes", tmp_path)
    submission = tmp_path / "submission.json"
    assert evaluate("nuscenes", root, results, "--split", "train", "--output", submission) == 0
    content = json.loads(submission.read_text())
    assert content["meta"]["use_lidar"] and not content["meta"]["use_camera"]
    assert list(content["results"]) == ["scene-0061-0", "scene-0061-1"]
    labels = {(r["sample_token"], r["instance_token"]): r for r in nuscenes_rows(root, KEYS)}
    speeds = {path.stem: json.loads(path.read_text()) for path in results.iterdir()}
    for token, rows in content["results"].items():
        stamp = {"0": 1532402927100000, "1": 1532402927250000}[token[-1]]
        found = speeds[f"scene-0061_{stamp}"]
        assert len(rows) == 4
        for row in rows:
            kind = {"car": "vehicle.car", "pedestrian": "human.pedestrian.adult"}
            kind |= {"bicycle": "vehicle.bicycle", "trailer": "vehicle.trailer"}
            label = labels[token, f"i-{kind[row['detection_name']]}"]
            np.testing.assert_allclose(row["translation"], label["translation"], atol=1e-3)
            np.testing.assert_allclose(row["size"], label["size"], atol=1e-3)
            # upright in the tilted frame of the LiDAR
            assert abs(np.dot(row["rotation"], label["rotation"])) > 1 - 1e-4
            place = found["scores"].index(row["detection_score"])
            own = lidar_to_world(int(token[-1])).turn
            moved = turned(own, (*found["velocities"][place], 0))
            np.testing.assert_allclose(row["velocity"], moved[:2], atol=1e-6)
    attributes = {row["detection_name"]: row["attribute_name"] for row in rows}
    assert attributes["bicycle"] == "cycle.with_rider"


def test_velocities_of_a_network_go_into_the_submission_as_of_tracks(tmp_path):
    root, results = make("nuscenes", tmp_path)
    outputs = [tmp_path / "tracks.json", tmp_path / "network.json"]
    assert evaluate("nuscenes", root, results, "--split", "train", "--output", outputs[0]) == 0
    for path in results.iterdir():
        content = json.loads(path.read_text())
        del content["ids"]
        path.write_text(json.dumps(content))
    assert evaluate("nuscenes", root, results, "--split", "train", "--output", outputs[1]) == 0
    assert outputs[0].read_text() == outputs[1].read_text()


KEYS = "sample_annotation"


def lidar_to_world(sample: int) -> Frame:
    """Of the tree's LiDAR, with x forward."""
    mount = Frame(np.array([0.9, 0, 1.8]), times(heading(-1.5), about((1, 0, 0), 0.01)))
    return moving(3 * sample + 2).of(mount).of(Frame(np.zeros(3), heading(np.pi / 2)))


def crowd(root: Path) -> None:
    """What the development kit leaves out: a box without points, a cycle in a rack, and boxes that
    are far; more attributes, and labels that are too far apart in time for a velocity."""
    rows = nuscenes_rows(root, KEYS)
    by_token = {row["token"]: row for row in rows}
    by_token["b-scene-0061-0-vehicle.car"] |= {"num_lidar_pts": 0}
    by_token["b-scene-0061-1-human.pedestrian.adult"] |= {"num_lidar_pts": 0, "num_radar_pts": 2}
    bicycle = by_token["b-scene-0103-0-vehicle.bicycle"]
    rack = bicycle | {"token": "rack", "instance_token": "i-rack", "size": [3, 9, 3]}
    rows.append(rack | {"prev": "", "next": "", "attribute_tokens": []})
    by_token["b-scene-0103-1-vehicle.car"] |= {"attribute_tokens": ["p"]}
    by_token["b-scene-0103-0-vehicle.trailer"]["translation"][0] += 40
    write_json(root / f"v1.0-trainval/{KEYS}.json", rows)
    tables = {name: nuscenes_rows(root, name) for name in ("category", "instance", "attribute")}
    tables["category"].append({"token": "c-rack", "name": "static_object.bicycle_rack"})
    tables["instance"].append({"token": "i-rack", "category_token": "c-rack"})
    tables["attribute"].append({"token": "p", "name": "vehicle.parked"})
    for name, table in tables.items():
        write_json(root / f"v1.0-trainval/{name}.json", table)
    samples = nuscenes_rows(root, "sample")
    next(row for row in samples if row["token"] == "scene-0061-1")["timestamp"] += 2_000_000
    write_json(root / "v1.0-trainval/sample.json", samples)


# NDS, mAP and the mean errors of translation, scale, orientation, velocity and attribute that
# nuscenes-devkit 1.2.0 gives the same submissions (DetectionEval, detection_cvpr_2019)
OF_THE_KIT = {
    "train": (0.26924777, 0.30595679, 0.73618835, 0.60001919, 0.62609877, 1.0, 0.875),
    "val": (0.31662578, 0.38595679, 0.68036359, 0.60001671, 0.60814588, 170.62613471, 0.875),
}


@pytest.mark.parametrize("split", OF_THE_KIT)
def test_a_submission_to_nuscenes_scores_as_by_the_development_kit(split, tmp_path, capsys):
    TREES["nuscenes"](tmp_path / "in")
    crowd(tmp_path / "in")
    root, results = make("nuscenes", tmp_path, noise=0.2)
    far = {
        "boxes": [[x, 0, 0, 4, 2, 1.5, 0] for x in (53, 42)],  # the limits are 50 and 40 m
        "names": ["Car", "Pedestrian"],
        "scores": [1.0] * 2,
        "ids": [101, 102],
        "velocities": [[0, 0]] * 2,
    }
    for path in results.iterdir():
        result = json.loads(path.read_text())
        path.write_text(json.dumps(result | {key: result[key] + far[key] for key in far}))
    figures = tmp_path / "figures.json"
    assert evaluate("nuscenes", root, results, "--split", split, "--json", figures) == 0
    own = [*json.loads(figures.read_text()).values()][1:8]
    np.testing.assert_allclose(own, OF_THE_KIT[split], rtol=1e-7)
    assert f"NDS {100 * own[0]:.2f}" in capsys.readouterr().out


def test_objects_of_nuscenes_count_up_to_the_range_of_their_class(tmp_path):
    """The kit's ranges: detection_cvpr_2019.json."""
    TREES["nuscenes"](tmp_path)
    benchmark = NuscenesDetection(tmp_path, "val")
    token = [*benchmark.samples.values()][-1]
    car = benchmark.tables.ego.pose(benchmark.tables.keyframe(token)["ego_pose_token"])[:3, 3]
    ranges = {
        50: ("car", "truck", "bus", "trailer", "construction_vehicle"),
        40: ("pedestrian", "motorcycle", "bicycle"),
        30: ("traffic_cone", "barrier"),
    }
    same = {"sample_token": token, "rotation": (1, 0, 0, 0), "size": (1, 1, 1)}
    same |= {"velocity": (0, 0), "attribute_name": ""}
    rows = [
        {**same, "detection_name": name, "translation": np.add(car, (0.6 * away, 0.8 * away, 9))}
        for limit, names in ranges.items()
        for name in names
        for away in (limit - 0.1, limit + 0.1)
    ]
    judged = benchmark._judged(rows, {token: 0}).boxes
    assert judged.names.tolist() == [name for names in ranges.values() for name in names]
    assert (np.linalg.norm(judged.boxes[:, :2] - car[:2], axis=1) < 50).all()


def test_detections_get_the_velocities_of_the_tracks_they_make(tmp_path):
    """A car that drives through the world at 10 m/s, a parked one, and a weak one; the sensor's car
    drives too."""
    root, results = make("nuscenes", tmp_path)
    lists = tmp_path / "scene.txt"
    scans = [path.stem for path in sorted(results.glob("scene-0061*"))]
    lists.write_text("\n".join(scans))
    for number, scan in enumerate(scans):
        lidar, boxes = lidar_to_world(number), []
        for place, way in (((10, 2, 0), 1.5), ((8, -5, 0), 0), ((-9, 5, 0), 0)):
            world = np.add(lidar_to_world(0).out(np.array(place)), (way * number, 0, 0))
            boxes.append([*lidar.back(world), 4, 2, 1.5, -0.8 - 0.3 * number])
        result = {"boxes": boxes, "scores": [0.9, 0.8, 0.2], "names": ["Car", "Car", "Bus"]}
        (results / f"{scan}.json").write_text(json.dumps(result))
    submission = tmp_path / "submission.json"
    assert evaluate("nuscenes", root, results, "--split", lists, "--output", submission) == 0
    first, second = json.loads(submission.read_text())["results"].values()
    assert len(first) == len(second) == 3  # none is lost
    assert {row["velocity"][0] for row in first} == {0.0}
    speeds = {row["detection_score"]: row["velocity"] for row in second}
    np.testing.assert_allclose(speeds[0.9], [10, 0], atol=0.7)
    np.testing.assert_allclose([speeds[0.8], speeds[0.2]], np.zeros((2, 2)), atol=0.2)
    attributes = {row["detection_score"]: row["attribute_name"] for row in second}
    assert attributes == {0.9: "vehicle.moving", 0.8: "vehicle.parked", 0.2: "vehicle.parked"}


def test_a_list_of_scans_is_scored_alone(tmp_path, capsys):
    root, results = make("nuscenes", tmp_path)
    lists = tmp_path / "some.txt"
    lists.write_text("scene-0103_1532402927250000\n")
    submission = tmp_path / "submission.json"
    assert evaluate("nuscenes", root, results, "--split", lists, "--output", submission) == 0
    assert list(json.loads(submission.read_text())["results"]) == ["scene-0103-1"]
    other = json.loads((results / "scene-0103_1532402927250000.json").read_text())
    other["names"][0] = "Van"
    (results / "scene-0103_1532402927250000.json").write_text(json.dumps(other))
    assert evaluate("nuscenes", root, results, "--split", lists) == 0
    assert "no such class: 1 Van" in capsys.readouterr().out


def test_boxes_of_argoverse_are_submitted_as_they_are_labelled(tmp_path, capsys, monkeypatch):
    from pyarrow import feather

    root, results = make("argoverse2", tmp_path)
    submission = tmp_path / "submission.feather"
    assert evaluate("argoverse2", root, results, "--split", "test", "--output", submission) == 0
    assert len(feather.read_table(submission)) == 0 and "CDS" not in capsys.readouterr().out
    more = ("--output", tmp_path / "more.feather", "--json", tmp_path / "figures.json")
    assert evaluate("argoverse2", root, results, "--split", "test", *more) == 2
    assert "nobody has labelled test" in capsys.readouterr().err and not more[1].exists()
    submission.unlink()
    code = evaluate("argoverse2", root, results, "--split", "train", "--output", submission)
    found = feather.read_table(submission).to_pydict()
    known = feather.read_table(root / "train/adcf7d18-0510/annotations.feather").to_pydict()
    for key in ("category", "timestamp_ns"):
        assert found[key] == known[key]
    assert set(found["log_id"]) == {"adcf7d18-0510"}
    for key in ("tx_m", "ty_m", "tz_m", "length_m", "width_m", "height_m"):
        np.testing.assert_allclose(found[key], known[key], atol=1e-4)
    quaternions = [np.array([side[f"q{axis}"] for axis in "wxyz"]) for side in (found, known)]
    assert np.abs((quaternions[0] * quaternions[1]).sum(axis=0)).min() > 1 - 1e-6
    assert min(found["score"]) > 0.3
    said = capsys.readouterr()
    if code:  # the benchmark's library is not here
        assert "pip install 'millisecond[benchmarks]'" in said.err
    labels = root / "train/adcf7d18-0510/annotations.feather"
    feather.write_feather(feather.read_table(labels)[:0], labels)
    (labels.parent / "map").mkdir()
    monkeypatch.setattr(tool.BENCHMARKS["argoverse2"], "kit", staticmethod(lambda: None))
    assert evaluate("argoverse2", root, results, "--split", "train") == 2
    assert "adcf7d18-0510: av2 needs a labelled object in it" in capsys.readouterr().err


def test_argoverse_scores_by_its_own_library(tmp_path):
    pytest.importorskip("av2", reason="pip install 'millisecond[benchmarks]'")
    root, results = make("argoverse2", tmp_path)
    figures = tmp_path / "figures.json"
    assert evaluate("argoverse2", root, results, "--split", "train", "--json", figures) == 0
    rows = json.loads(figures.read_text())
    labelled = {"REGULAR_VEHICLE", "PEDESTRIAN", "BICYCLIST", "BOLLARD"}
    assert {name for name, row in rows.items() if isinstance(row, dict) and row["CDS"] > 0.99} == (
        labelled
    )
    assert rows["mean"]["AP"] == pytest.approx(len(labelled) / 26, abs=1e-3)


@pytest.fixture
def crossing(tmp_path):
    """A drive of KITTI with a car that all frames show, and results in which its track changes in
    the middle. The image box is projected here."""
    part, rows = tmp_path / "in/training", []
    for folder in ("velodyne/0000", "calib", "label_02"):
        (part / folder).mkdir(parents=True)
    (part / "calib/0000.txt").write_text(CALIB)
    (tmp_path / "results").mkdir()
    signs = np.stack(np.meshgrid(*[(-0.5, 0.5)] * 3), axis=-1).reshape(-1, 3)
    for frame in range(10):
        (part / f"velodyne/0000/{frame:06}.bin").touch()
        box = x, y, z, length, width, height, _ = [12 + frame, 3 - frame / 2, -1, 4, 2, 1.5, 0]
        corners = signs * (length, width, height) + (x, y, z)
        camera = np.column_stack([0.1 - corners[:, 1], -corners[:, 2] - 0.2, corners[:, 0] - 0.3])
        pixels = 700 * camera[:, :2] / camera[:, 2:] + (600, 180)
        ends = (*pixels.min(axis=0), *pixels.max(axis=0))
        place = (0.1 - y, -(z - height / 2) - 0.2, x - 0.3, -np.pi / 2)
        rows.append((frame, 7, "Car", 0, 0, 0, *ends, height, width, length, *place))
        behind = [-20, 0, -1, 4, 2, 1.5, 0]  # no camera sees it
        result = {"boxes": [box, behind], "scores": [0.9, 0.8], "names": ["Car", "Car"]}
        result["ids"] = [1 if frame < 5 else 3, 2]
        name = f"training_0000_{frame:06}"
        (tmp_path / f"results/{name}.json").write_text(json.dumps(result))
    (part / "label_02/0000.txt").write_text("\n".join(" ".join(map(str, row)) for row in rows))
    return tmp_path


def test_tracks_are_submitted_to_kitti_as_it_labels_them(crossing):
    submission = crossing / "submission"
    arguments = (crossing / "in", crossing / "results", "--output", submission)
    evaluate("kitti-tracking", *arguments)  # scored where TrackEval is installed
    words = [line.split() for line in (submission / "0000.txt").read_text().splitlines()]
    known = [line.split() for line in (crossing / "in/training/label_02/0000.txt").open()]
    assert [row[:3] for row in words] == [[str(n), "1" if n < 5 else "3", "Car"] for n in range(10)]
    numbers = [np.array([row[6:17] for row in side], float) for side in (words, known)]
    np.testing.assert_allclose(*numbers, atol=2e-4)
    assert {row[17] for row in words} == {"0.9"}


def test_hota_is_that_of_trackeval(crossing):
    """Half of the car's frames are in each of its two tracks: AssA is 1/2, HOTA its root."""
    pytest.importorskip("trackeval", reason="pip install 'millisecond[benchmarks]'")
    figures = crossing / "figures.json"
    arguments = (crossing / "in", crossing / "results", "--json", figures)
    assert evaluate("kitti-tracking", *arguments) == 0
    car = json.loads(figures.read_text())["car"]
    assert car["DetA"] == pytest.approx(1) and car["AssA"] == pytest.approx(0.5)
    assert car["HOTA"] == pytest.approx(np.sqrt(0.5)) and car["MOTA"] == pytest.approx(0.9)


def test_mistakes_are_one_line(tmp_path, crossing, capsys):
    root, results = make("nuscenes", tmp_path / "nuscenes")
    first = min(results.iterdir())
    submission = tmp_path / "there.json"
    submission.write_text("mine")
    for name, arguments, says in (
        ("nuscenes", (root, results, "--output", submission), "there already"),
        ("nuscenes", (root, results, "--split", "tset"), "no scans of the split tset"),
        ("nuscenes", (root, results, "--metric", "lidar"), "--benchmark goes with --root and"),
        ("argoverse2", (root, results), "no scans of the split val"),
        ("kitti-tracking", (root, results), "no scans of the split train"),
    ):
        capsys.readouterr()
        assert evaluate(name, *arguments) == 2
        assert says in capsys.readouterr().err
    lists = tmp_path / "typo.txt"
    lists.write_text(f"{first.stem}\nscene-0061_7\n")
    assert evaluate("nuscenes", root, results, "--split", lists) == 2
    assert f"{lists}: scene-0061_7 is not in {root}" in capsys.readouterr().err
    first.unlink()
    assert evaluate("nuscenes", root, results, "--split", "train") == 2
    said = capsys.readouterr().err.splitlines()[-1]
    assert str(first) in said and "all 2 scans of the split" in said
    (crossing / "in/testing/velodyne/0000").mkdir(parents=True)
    (crossing / "in/testing/velodyne/0000/000001.bin").touch()
    lists.write_text("training_0000_000001\ntesting_0000_000001\n")
    arguments = (crossing / "in", crossing / "results", "--output", crossing / "submission")
    assert evaluate("kitti-tracking", *arguments, "--split", lists) == 2
    assert "drives of one number in training and testing" in capsys.readouterr().err
    other = crossing / "results/training_0000_000003.json"
    other.write_text(json.dumps({"boxes": [], "scores": [], "names": []}))
    assert evaluate("kitti-tracking", *arguments) == 2
    assert "training_0000_000003: has no tracks" in capsys.readouterr().err
    assert not (crossing / "submission").exists()
    assert submission.read_text() == "mine"
