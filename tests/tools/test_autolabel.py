"""millisecond autolabel: labels of a simulated drive, and what a user changed in them."""

import json
import shutil
import sys
import time

import numpy as np
import pytest

from millisecond.data.boxes import NamedDetections, points_in_boxes
from millisecond.data.datasets import open_dataset
from millisecond.data.folder.labels import read_json_labels, read_text_labels
from millisecond.data.formats.pcd import write_pcd
from millisecond.data.kitti.dataset import KittiDataset
from millisecond.data.kitti.labels import read_labels
from millisecond.data.metric.matching import box_iou
from millisecond.data.simulator import write_drive
from millisecond.detector.detection_files import Result, read_result
from millisecond.detector.draw.style import CLASS_COLOURS, FAINT
from millisecond.detector.tracking import EgoMotion
from millisecond.tools import autolabel, visualize
from millisecond.tools.autolabel import main
from tests.helpers.judged_labels import CLASSES, judge, truth_of
from tests.helpers.judged_labels import main as print_judged
from tests.helpers.warm_processes import WarmProcess

SCANS = 5
HOLDER = """
import sys, time
from pathlib import Path
from millisecond.data.files import locked
with locked(Path(sys.argv[1])):
    (Path(sys.argv[1]) / "held").touch()
    time.sleep(60)
"""


@pytest.fixture(scope="module")
def drive(tmp_path_factory):
    root = tmp_path_factory.mktemp("drive") / "drive"
    write_drive(root, 29, SCANS)
    return root


@pytest.fixture(scope="module", autouse=True)
def views_of():
    """A scan that was looked at shows the same again, unless a test takes the function itself."""
    real, known = autolabel.views_of, {}

    def remembered(detector, points):
        key = points.tobytes()
        if key not in known:
            known[key] = real(detector, points)
        return known[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(autolabel, "views_of", remembered)
        yield real


@pytest.fixture(scope="module")
def first(drive, tmp_path_factory):
    """The output of a run."""
    output = tmp_path_factory.mktemp("first") / "output"
    assert label(drive, output) == 0
    return output


@pytest.fixture
def output(first, tmp_path):
    return shutil.copytree(first, tmp_path / "output")


def label(drive, output, *more):
    options = ["--weights", "second_small", "--device", "cpu", "--output", str(output), *more]
    return main([str(drive), *options])


def contents(output):
    return {p.relative_to(output): p.read_bytes() for p in output.rglob("*") if p.is_file()}


def objects(output):
    return json.loads((output / "objects.json").read_text())["objects"]


def test_finds_the_cars_of_a_simulated_drive(drive, first):
    """Against the simulator's truth: cars of 50 points and more, vans among them."""
    found = wanted = 0
    for frame in KittiDataset(drive, "all"):
        labels = read_text_labels(first / "labels" / f"{frame.frame_id}.txt")
        boxes = labels.boxes[np.array(labels.names) == "Car"].astype(np.float64)
        cars = frame.boxes[np.isin(frame.names, ("Car", "Van"))].astype(np.float64)
        for car in cars[points_in_boxes(frame.points, cars).sum(axis=1) >= 50]:
            wanted += 1
            found += (box_iou(np.tile(car, (len(boxes), 1)), boxes)[1] > 0.5).any()
    assert wanted > SCANS and found >= 0.9 * wanted


@pytest.mark.parametrize("away", [0.0, 30.0])
def test_judged_labels_take_the_truth_for_right_and_the_same_boxes_elsewhere_for_wrong(drive, away):
    truth, results = truth_of(drive), []
    for frame, _ in truth:
        boxes = frame.boxes.astype(float)
        boxes[:, 2] += away
        names = [CLASSES.get(name, name) for name in frame.names]
        results.append(Result(NamedDetections(boxes, np.ones(len(boxes)), names), None))
    judged = judge(truth, results)
    right, wrong = (judged.matched, judged.missed) if away == 0 else (judged.missed, judged.matched)
    assert len(right) > SCANS and not wrong and not judged.false  # there are no points at 30 m


def test_judged_labels_print_what_a_run_found(drive, first, capsys):
    print_judged(str(drive), str(first / "tracks"))
    assert "switches 0, overlap 0." in capsys.readouterr().out


def test_labels_tracks_and_list_are_of_the_same_objects(drive, first):
    listed = {one["id"]: one for one in objects(first)}
    doubts = [one["doubt"] for one in objects(first)]
    assert doubts == sorted(doubts, reverse=True)
    seen = set()
    for name in (f"{number:06d}" for number in range(SCANS)):
        result = read_result(first / "tracks" / f"{name}.json")
        labels = read_text_labels(first / "labels" / f"{name}.txt")
        assert np.allclose(labels.boxes, result.found.boxes, atol=1e-3)
        assert labels.names == tuple(result.found.names)
        for track, kind in zip(result.ids.tolist(), labels.names, strict=True):
            assert listed[track]["labelled"] and listed[track]["class"] == kind
            seen.add(track)
    assert seen == {track for track, one in listed.items() if one["labelled"]} and seen


def test_a_recording_of_an_imported_data_set_tells_the_poses(drive, first, tmp_path, monkeypatch):
    """The same drive from a sensor that stands otherwise: the same objects."""
    lines, turn = [], np.radians(30)
    to_network = np.eye(4)
    to_network[:2, :2] = [[np.cos(turn), -np.sin(turn)], [np.sin(turn), np.cos(turn)]]
    to_network[2, 3] = 0.4
    (tmp_path / "plain/points").mkdir(parents=True)
    (tmp_path / "plain/sequences").mkdir()
    dataset = KittiDataset(drive, "all", crop=False)
    ego = EgoMotion.of_recording((dataset[n].points, n / 10) for n in range(SCANS))
    for number, frame in enumerate(dataset):
        pose, points = ego(frame.points, number / 10) @ to_network, frame.points.copy()
        points[:, :3] = (points[:, :3] - to_network[:3, 3]) @ to_network[:3, :3]
        write_pcd(tmp_path / f"plain/points/{frame.frame_id}.pcd", points)
        told = {"name": frame.frame_id, "time": 1.5e9 + number / 10, "pose": pose.tolist()}
        lines.append(json.dumps({**told, "tracks": None}))
    recording = tmp_path / "plain/sequences/r.jsonl"
    recording.write_text("\n".join(lines))
    monkeypatch.setattr(autolabel, "EgoMotion", None)  # nobody needs it: the poses are known
    more = ("--turn", "30", "--shift-z", "0.4")
    assert label(recording, tmp_path / "output", *more) == 0
    for name in (f"{number:06d}" for number in range(SCANS)):
        found = read_text_labels(tmp_path / f"output/labels/{name}.txt")
        wanted = read_text_labels(first / f"labels/{name}.txt")
        assert sorted(found.names) == sorted(wanted.names)
        centres = found.boxes[:, :3] @ to_network[:3, :3].T + to_network[:3, 3]
        apart = np.linalg.norm(centres[:, None] - wanted.boxes[None, :, :3], axis=2)
        assert apart.min(axis=1).max() < 0.05


def test_a_second_run_writes_the_same_bytes(drive, first, output, views_of, monkeypatch):
    monkeypatch.setattr(autolabel, "views_of", views_of)
    before = contents(output)
    assert label(drive, output) == 0
    after = contents(output)
    assert objects(output) == objects(first)
    for path in (path for path in before if path.name != "objects.json"):
        assert after[path] == before[path]


def test_corrections_by_hand_are_kept(drive, output, capsys):
    """Of label files, and verdicts in the list; also of an object that is not found again."""
    corrected = output / "labels" / "000002.txt"
    corrected.write_text("1 2 3 4 2 1.5 0.5 Car\n")
    content = json.loads((output / "objects.json").read_text())
    sure = sorted((o for o in content["objects"] if o["labelled"]), key=lambda o: -o["confidence"])
    refused = next(one for one in content["objects"] if not one["labelled"])
    sure[0]["verdict"], sure[1]["verdict"], refused["verdict"] = "reject", "Tram", "accept"
    own = {"frame": "000001", "boxes": {"000001": "90.0 0 0 4 2 1.5 0"}, "verdict": "accept"}
    content["objects"].append(sure[0] | own)
    (output / "objects.json").write_text(json.dumps(content))
    for _ in range(2):
        assert label(drive, output) == 0
        assert "000002 is corrected by hand and kept" in capsys.readouterr().out
        assert corrected.read_text() == "1 2 3 4 2 1.5 0.5 Car\n"
        decided = [one for one in objects(output) if one["verdict"]]
        expected = [sure[0], sure[1], refused, sure[0] | own]
        kept = ("verdict", "class", "frame", "boxes")
        assert sorted(str([one[key] for key in kept]) for one in decided) == sorted(
            str([one[key] for key in kept]) for one in expected
        )
        found = {path.stem: read_result(path) for path in (output / "tracks").glob("*.json")}
        for one, name in ((sure[1], "Tram"), (refused, refused["class"]), (own, "Car")):
            for scan, line in one["boxes"].items():
                labels = found[scan].found
                at = np.flatnonzero(np.abs(labels.boxes - numbers(line)).max(axis=1) < 1e-4)
                assert [(labels.names[i], labels.scores[i]) for i in at] == [(name, 1.0)]
        assert not any(labels_at(sure[0], scan, output) for scan in sure[0]["boxes"])


def numbers(line):
    return np.array(line.split(), float)


def labels_at(one, scan, output):
    """Boxes, classes and scores of the labels that overlap an object by half from above."""
    found = read_result(output / "tracks" / f"{scan}.json").found
    box = np.tile(numbers(one["boxes"][scan]), (len(found.boxes), 1))
    rows = np.flatnonzero(box_iou(box, found.boxes)[0] > 0.5)
    return [(found.boxes[i], found.names[i], found.scores[i]) for i in rows]


@pytest.fixture
def typed(monkeypatch):
    """Windows take these keys, one after another, and close."""
    keys, seen = [], []

    class Typist:
        open = True

        def __init__(self, *_):
            pass

        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

        def show(self, shown):
            seen.append(shown)

        def wait(self):
            self.open = len(keys) > 1
            return [keys.pop(0)] if keys else []

    monkeypatch.setattr(visualize, "Window", Typist)
    return keys, seen


def review(drive, output, *more):
    return visualize.main(["--root", str(drive), "--review", str(output), *more])


def turned(line):
    yaw = numbers(line)[6] + np.pi
    return [*numbers(line)[:6], np.arctan2(np.sin(yaw), np.cos(yaw))]


def test_decisions_in_the_window_outlive_other_weights(drive, output, typed, monkeypatch):
    """The other network finds all boxes elsewhere, and as another class."""
    keys, _ = typed
    before = objects(output)
    keys += ["v", "a", "x", "k", "n", "a", "x", "u", "b", "q"]
    assert review(drive, output) == 0
    after = objects(output)[:5]
    *verdicts, other = (one["verdict"] for one in after)
    corrected = verdicts[2]
    assert (verdicts, other) == (["accept", "reject", corrected, "accept"], "reject")
    assert corrected not in (None, "accept", "reject", before[2]["class"])
    for scan, line in after[0]["boxes"].items():
        wanted = turned(before[0]["boxes"][scan])
        np.testing.assert_allclose(numbers(line), wanted, atol=2e-4)
    merge = autolabel.merge_views

    def other_network(views):
        found = merge(views)
        return found._replace(boxes=found.boxes + 0.1, names=("Van",) * len(found.names))

    monkeypatch.setattr(autolabel, "merge_views", other_network)
    for _ in range(2):
        assert label(drive, output) == 0
        for one in after:
            name = corrected if one is after[2] else one["class"]
            for scan, line in one["boxes"].items():
                found = labels_at(one, scan, output)
                if one["verdict"] == "reject":
                    assert not found
                    continue
                [(box, kind, score)] = found
                assert (kind, score) == (name, 1.0)
                np.testing.assert_allclose(box, numbers(line), atol=1e-4)
        names = {one["class"] for one in objects(output) if one["verdict"] is None}
        assert names == {"Van"}


def test_every_key_is_saved_at_once_and_can_be_taken_back(drive, output, typed):
    keys, seen = typed
    before = objects(output)
    review_of = []
    for key in ("a", "x", "k", "v", "q"):
        keys[:] = [key, "q"]
        assert review(drive, output) == 0
        review_of.append([one["verdict"] for one in objects(output)])
    assert [sum(v is not None for v in verdicts) for verdicts in review_of] == [1, 2, 3, 4, 4]
    seen.clear()
    first = before[4]
    keys[:] = ["k", "v", "right", "right", "left", "u", "q"]
    assert review(drive, output) == 0
    assert objects(output)[4] == first
    assert "object 5 of" in seen[0].title and seen[0].figures["decided"].startswith("4 of")
    assert [bool(shown.follow) for shown in seen[:3]] == [True, False, False]
    scans = list(first["boxes"])
    at = scans.index(first["frame"])
    ends = [min(at + 1, len(scans) - 1), min(at + 2, len(scans) - 1)]
    expected = [scans[i] for i in (at, at, at, *ends, max(ends[1] - 1, 0))]
    assert [shown.title.split()[0] for shown in seen[:6]] == expected
    for shown, scan in zip(seen[:1], expected, strict=False):
        row = shown.detections.ids.tolist().index(first["id"])
        np.testing.assert_allclose(shown.detections.boxes[row], numbers(first["boxes"][scan]), 1e-4)
        other = [c for i, c in enumerate(shown.detections.colours) if i != row]
        assert shown.detections.colours[row] == CLASS_COLOURS[first["class"]]
        assert set(other) == {FAINT}


def test_reviews_that_are_refused(drive, output, typed, tmp_path, capsys, monkeypatch):
    def told(*arguments):
        assert review(drive, *arguments) == 2
        (line,) = capsys.readouterr().err.splitlines()
        return line

    assert "no such file" in told(tmp_path / "none")
    assert "not to be shown" in told(output, "--frames", "000001")
    with pytest.raises(SystemExit):
        review(drive, output, "--output", str(tmp_path))
    assert "does not go with --output" in capsys.readouterr().err
    holder = WarmProcess(["-c", HOLDER, str(output)], {})
    while not (output / "held").exists():
        time.sleep(0.01)
    assert "is writing there" in told(output)
    holder.kill()
    holder.communicate()

    def refuse(*_):
        raise visualize.WindowUnavailable("no display")

    monkeypatch.setattr(visualize, "Window", refuse)
    assert told(output) == "error: --review needs a window: no display"
    content = json.loads((output / "objects.json").read_text())
    verdicts = [{"verdict": word} for word in ("two words", "", "Accept", "acccept", "rejected")]
    for change in (*verdicts, {"frame": "7"}, {"boxes": {"000001": "1 2"}}, {"labelled": None}):
        broken = content | {"objects": [content["objects"][0] | change]}
        (output / "objects.json").write_text(json.dumps(broken))
        assert "mend it" in told(output)


def test_formats(drive, first, tmp_path):
    text = read_text_labels(first / "labels" / "000003.txt")
    assert label(drive, tmp_path / "cloud", "--format", "labelcloud") == 0
    cloud = read_json_labels(tmp_path / "cloud" / "labels" / "000003.json")
    assert cloud.names == text.names and np.allclose(
        cloud.boxes[:, :6], text.boxes[:, :6], atol=1e-3
    )
    assert label(drive, tmp_path / "kitti", "--format", "kitti") == 0
    camera = read_labels(tmp_path / "kitti" / "label_2" / "000003.txt")
    boxes = KittiDataset(drive, "all").calibration(3).boxes_from_camera(camera.boxes)
    assert tuple(camera.types) == text.names and np.allclose(
        boxes[:, :6], text.boxes[:, :6], atol=2e-3
    )
    confidence = {round(one["confidence"], 4) for one in objects(tmp_path / "kitti")}
    assert set(camera.score.round(4)) <= confidence


def test_the_labels_are_those_of_a_data_set(drive, first, tmp_path):
    root = tmp_path / "mine"
    shutil.copytree(drive / "velodyne_reduced", root / "points")
    shutil.copytree(first / "labels", root / "labels")
    dataset = open_dataset(root, "all", ["Car", "Pedestrian", "Cyclist"])
    assert len(dataset) == SCANS and sum(len(frame.boxes) for frame in dataset) > 0


def refuse(drive, output, capsys, *more):
    before = contents(output) if output.exists() else {}
    assert label(drive, output, *more) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ")
    assert {path: data for path, data in contents(output).items() if path in before} == before
    return line


def test_one_line_for_what_cannot_be_done(drive, output, tmp_path, capsys, monkeypatch):
    shorter = tmp_path / "shorter"
    shutil.copytree(drive, shorter)
    (shorter / "velodyne_reduced" / "000004.bin").write_bytes(bytes(16))
    assert "another drive" in refuse(shorter, output, capsys)
    assert "--format text" in refuse(drive, output, capsys, "--format", "labelcloud")
    (output / "objects.json").write_text('{"objects": 3}')
    assert "mend it" in refuse(drive, output, capsys)
    (output / "objects.json").unlink()
    assert "not written by this program" in refuse(drive, output, capsys)
    assert "no such folder" in refuse(tmp_path / "none", tmp_path / "a", capsys)
    plain = tmp_path / "plain" / "points"
    plain.mkdir(parents=True)
    assert "no clouds" in refuse(plain.parent, tmp_path / "b", capsys)
    np.save(plain / "1.npy", np.zeros((0, 4), np.float32))
    assert "has a point" in refuse(plain.parent, tmp_path / "c", capsys)
    assert "no calibrations" in refuse(plain.parent, tmp_path / "d", capsys, "--format", "kitti")
    assert "among the files" in refuse(drive, drive / "label_2", capsys)
    monkeypatch.setitem(sys.modules, "kiss_icp.kiss_icp", None)
    assert "kiss-icp" in refuse(drive, tmp_path / "e", capsys)
