"""millisecond autolabel: labels of a simulated drive, and what a user changed in them."""

import json
import shutil
import sys

import numpy as np
import pytest

from millisecond.data.boxes import points_in_boxes
from millisecond.data.datasets import open_dataset
from millisecond.data.folder.labels import read_json_labels, read_text_labels
from millisecond.data.kitti.dataset import KittiDataset
from millisecond.data.kitti.labels import read_labels
from millisecond.data.metric.matching import box_iou
from millisecond.data.simulator import write_drive
from millisecond.detector.detection_files import read_result
from millisecond.tools.autolabel import main

SCANS = 5


@pytest.fixture(scope="module")
def drive(tmp_path_factory):
    root = tmp_path_factory.mktemp("drive") / "drive"
    write_drive(root, 11, SCANS)
    return root


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


def test_a_second_run_writes_the_same_bytes(drive, first, output):
    before = contents(output)
    assert label(drive, output) == 0
    after = contents(output)
    assert objects(output) == objects(first)
    for path in (path for path in before if path.name != "objects.json"):
        assert after[path] == before[path]


def test_corrections_are_kept(drive, output, capsys):
    corrected = output / "labels" / "000002.txt"
    corrected.write_text("1 2 3 4 2 1.5 0.5 Car\n")
    content = json.loads((output / "objects.json").read_text())
    sure = sorted((o for o in content["objects"] if o["labelled"]), key=lambda o: -o["confidence"])
    refused = next(one for one in content["objects"] if not one["labelled"])
    sure[0]["verdict"], sure[1]["verdict"], refused["verdict"] = "reject", "Tram", "accept"
    lost = sure[0] | {"box": [500.0, 0, 0, 4, 2, 1.5, 0], "verdict": "accept"}
    content["objects"].append(lost)
    (output / "objects.json").write_text(json.dumps(content))
    for _ in range(2):
        assert label(drive, output) == 0
        said = capsys.readouterr()
        assert "000002 is corrected by hand and kept" in said.out
        assert "fits no object, but is kept" in said.err
        assert corrected.read_text() == "1 2 3 4 2 1.5 0.5 Car\n"
        verdicts = {one["id"]: one["verdict"] for one in objects(output) if one != lost}
        given = {sure[0]["id"]: "reject", sure[1]["id"]: "Tram", refused["id"]: "accept"}
        assert given == {key: verdict for key, verdict in verdicts.items() if verdict}
        assert lost in objects(output)
        name_of = {}
        for number in range(SCANS):
            result = read_result(output / "tracks" / f"{number:06d}.json")
            name_of |= dict(zip(result.ids.tolist(), result.found.names, strict=True))
        assert sure[0]["id"] not in name_of and name_of[sure[1]["id"]] == "Tram"
        assert refused["id"] in name_of


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
