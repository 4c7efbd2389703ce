"""millisecond evaluate_tracks as a user calls it."""

import json
import shutil

import numpy as np
import pytest

from millisecond.data.calibration import Calibration
from millisecond.data.formats.pcd import write_pcd
from millisecond.data.kitti.labels import read_labels
from millisecond.tools import evaluate
from millisecond.tools import evaluate_tracks as tool
from tests.helpers.kitti_miniature import CALIBRATION, write
from tests.helpers.small_detector import cloud

LINE = "{} 0.00 0 {} 500 170 600 240 1.50 1.80 4.00 {:.2f} 1.60 {:.2f} -1.57\n"


def run(*arguments):
    try:
        return tool.main([str(argument) for argument in arguments])
    except SystemExit as end:
        return end.code


@pytest.fixture
def drive(tmp_path):
    """Eight frames of a car that drives ahead and a van that stands, 1 m per frame nearer."""
    root = tmp_path / "drive"
    write(root / "calib.txt", CALIBRATION.encode())
    for number in range(8):
        text = LINE.format("Car", -1.5, 2.0, 20 + 0.5 * number)
        text += LINE.format("Van", -1.5, -4.0, 30 - 1.0 * number)
        write(root / f"label_2/{number:06}.txt", text.encode())
        write(root / f"velodyne_reduced/{number:06}.bin", cloud(200).tobytes())
    return root


def write_results(folder, drive, ids=None):
    """The labels of the drive as millisecond detect writes boxes."""
    calibration = Calibration.from_file(drive / "calib.txt")
    for path in sorted((drive / "label_2").glob("*.txt")):
        labels = read_labels(path)
        result = {
            "frame": path.stem,
            "boxes": calibration.boxes_from_camera(labels.boxes).tolist(),
            "scores": [0.9] * len(labels),
            "names": labels.types.tolist(),
        }
        if ids:
            result["ids"] = ids(int(path.stem))
        write(folder / f"{path.stem}.json", json.dumps(result).encode())
    return folder


def test_tracks_in_result_files(tmp_path, drive, capsys):
    """The car changes its track half way; the van keeps its own."""
    results = write_results(tmp_path / "out", drive, lambda n: [1 if n < 4 else 3, 2])
    assert run(results, "--root", drive, "--json", tmp_path / "out.json") == 0
    (table,) = json.loads((tmp_path / "out.json").read_text()).values()
    assert table["Car"]["switches"] == 1 and table["Van"]["switches"] == 0
    assert table["Car"]["mota"] == pytest.approx(7 / 8)
    assert table["Car"]["idf1"] == pytest.approx(0.5)
    assert table["all"]["idf1"] == pytest.approx(12 / 16) and table["all"]["objects"] == 16
    assert table["Van"]["motp"] == pytest.approx(1, abs=1e-3)
    printed = capsys.readouterr().out
    assert f"tracks of {results}" in printed and "  87.5 " in printed


def test_plain_files_are_scored_as_the_same_drive_of_kitti(tmp_path, drive):
    ids = [[1, 2], [1, 2], [1, 3], [4, 3]] * 2
    results, plain = write_results(tmp_path / "out", drive, ids.__getitem__), tmp_path / "plain"
    for path in results.glob("*.json"):
        told = json.loads(path.read_text())
        lines = zip(told["boxes"], told["names"], strict=True)
        text = "".join(f"{' '.join(map(str, box))} {name}\n" for box, name in lines)
        write(plain / f"labels/{path.stem}.txt", text.encode())
        write(plain / f"points/{path.stem}.bin", cloud(200).tobytes())
    tables = []
    for root in (drive, plain):
        assert run(results, "--root", root, "--json", tmp_path / f"{root.name}.json") == 0
        tables.append(json.loads((tmp_path / f"{root.name}.json").read_text()))
    (first,), (second,) = (table.values() for table in tables)
    assert first.keys() == second.keys() and first["all"]["switches"] > 2
    for name, row in first.items():
        assert second[name] == pytest.approx(row, abs=1e-3, nan_ok=True)


def test_detections_without_ids_are_tracked_here(tmp_path, drive, capsys):
    results = write_results(tmp_path / "out", drive)
    assert run(results, "--root", drive, "--classes", "Car") == 0
    printed = capsys.readouterr().out
    # of eight objects one is missed: the first scan confirms no track
    assert "detections that score at least 0, tracked" in printed
    name, mota, _, idf1, *counts = printed.splitlines()[2].split()
    assert (name, mota, idf1) == ("Car", "87.5", "93.3") and counts == ["0", "0", "0", "1", "8"]
    assert "not scored, as --classes does not name these classes: 8 Van" in printed
    assert run(results, "--root", drive, "--score", "0.95") == 2
    assert "no track at all" in capsys.readouterr().err


def test_without_results_the_labels_are_tracked(drive, capsys):
    assert run("--root", drive) == 0
    first = capsys.readouterr().out
    assert "labels, tracked\n" in first and "disturbed labels, tracked, mean of 10 runs" in first
    assert run("--root", drive) == 0
    assert capsys.readouterr().out == first


@pytest.fixture
def recording(tmp_path):
    """As `millisecond import` writes it: a car that is seen every 2 s and 20 m further; it stands
    in the world, the sensor's car drives. Another one is beside it."""
    root, lines = tmp_path / "plain", []
    for number in range(6):
        text = f"{50 - 20 * number} 3 -1 4 2 1.5 0 Car\n{45 - 20 * number} -3 -1 4 2 1.5 0 Car\n"
        write(root / f"labels/r_{number}.txt", text.encode())
        (root / "points").mkdir(exist_ok=True)
        write_pcd(root / f"points/r_{number}.pcd", cloud(50))
        pose = np.eye(4)
        pose[0, 3] = 20 * number
        told = {"name": f"r_{number}", "time": 100 + 0.8 * number, "pose": pose.tolist()}
        told |= {"tracks": ["a", "b"], "velocities": [[0, 0], None if number else [9, 9]]}
        lines.append(json.dumps(told))
    write(root / "sequences/r.jsonl", "\n".join(lines).encode())
    return root / "sequences/r.jsonl"


def test_the_track_ids_of_a_recording_are_the_truth(tmp_path, recording, capsys):
    """The nearest object of the scan before is another one, or none."""
    for number in range(6):
        boxes = [[50 - 20 * number, 3, -1, 4, 2, 1.5, 0], [45 - 20 * number, -3, -1, 4, 2, 1.5, 0]]
        result = {"boxes": boxes, "scores": [0.9, 0.8], "names": ["Car", "Car"]}
        result["velocities"] = [[3, 4], [9, 9]]
        ids = [7, 8] if number < 3 else [9, 8]
        write(tmp_path / f"out/r_{number}.json", json.dumps({**result, "ids": ids}).encode())
    assert run(tmp_path / "out", "--root", recording, "--json", tmp_path / "out.json") == 0
    (table,) = json.loads((tmp_path / "out.json").read_text()).values()
    assert table["Car"]["switches"] == 1 and table["Car"]["misses"] == 0
    assert table["Car"]["idf1"] == pytest.approx(0.75)
    assert table["Car"]["velocity_error"] == pytest.approx(6 * 5 / 7)
    said = capsys.readouterr().out
    assert "mean error of velocities, Car: 4.29 m/s, 7 boxes" in said
    # of detections, too
    found = "--root", recording.parents[1], "--split", "all", "--detections", tmp_path / "out"
    assert evaluate.main([*map(str, found), "--json", str(tmp_path / "ap.json")]) == 0
    said = capsys.readouterr().out
    assert "mean error of velocities, Car: 4.29 m/s, 7 boxes\nmean of the classes (mAVE)" in said
    errors = json.loads((tmp_path / "ap.json").read_text())["velocity_errors"]
    assert errors == {"Car": pytest.approx(6 * 5 / 7)}


def test_the_poses_of_a_recording_move_its_tracks(recording, capsys):
    assert run("--root", recording) == 0
    printed = capsys.readouterr().out.splitlines()
    assert printed[0] == "labels, tracked with the car's own motion"
    name, mota, _, _, switches, *_ = printed[2].split()
    assert (name, mota, switches) == ("Car", "83.3", "0")  # the first scan confirms no track
    assert printed[3] == "mean error of velocities, Car: 0.00 m/s, 5 boxes"


def test_labels_that_are_not_those_of_the_recording_are_one_line(recording, capsys):
    label = recording.parents[1] / "labels/r_2.txt"
    label.write_text(label.read_text().splitlines()[0])
    assert run("--root", recording) == 2
    assert "r_2: 1 labelled objects, but 2 tracks in the recording" in capsys.readouterr().err
    assert run("--root", recording, "--split", "val") == 2
    assert "is one recording already" in capsys.readouterr().err


def test_mistakes_are_one_line(tmp_path, drive, capsys):
    tracks = write_results(tmp_path / "tracks", drive, lambda n: [1, 2])
    twice = write_results(tmp_path / "twice", drive, lambda n: [1, 1])
    odd = write_results(tmp_path / "odd", drive, lambda n: [1, "two"])
    few = write_results(tmp_path / "few", drive, lambda n: [1])
    part = write_results(tmp_path / "part", drive, lambda n: [1, 2])
    (part / "000005.json").unlink()
    mixed = write_results(tmp_path / "mixed", drive, lambda n: [1, 2])
    shutil.copy(write_results(tmp_path / "plain", drive) / "000003.json", mixed)
    mine = tmp_path / "mine.json"
    mine.write_text('{"my": "figures"}')
    for arguments, word in (
        ([tracks, "--root", tmp_path / "none"], "none"),
        ([tmp_path / "none", "--root", drive], "000000.json"),
        ([twice, "--root", drive], "twice"),
        ([odd, "--root", drive], "000000.json: not a result of millisecond detect"),
        ([few, "--root", drive], "not equally many"),
        ([part, "--root", drive], "000005.json"),
        ([mixed, "--root", drive], "000003.json has no ids"),
        ([tracks, "--root", drive, "--ego"], "tracks already"),
        ([tracks, "--root", drive, "--json", mine], "mine.json: already exists"),
    ):
        assert run(*arguments) == 2
        out, err = capsys.readouterr()
        errors = [line for line in err.splitlines() if line.startswith("error: ")]
        assert not out and len(errors) == 1 and word in errors[0], err
    assert run("--root", drive, "--rate", "0") == 2
    assert "'0' is not a frequency" in capsys.readouterr().err
    for path in (drive / "label_2").iterdir():
        path.write_text("")
    assert run("--root", drive) == 2
    assert "no objects that could be tracked" in capsys.readouterr().err


def test_the_real_drive(kitti, tmp_path, monkeypatch):
    """Its labels: no object ever changes its track."""
    monkeypatch.setattr(tool, "SEEDS", range(1))
    drive = kitti / "sequences" / "2011_09_26_drive_0005_sync"
    assert run("--root", drive, "--json", tmp_path / "out.json") == 0
    content = json.loads((tmp_path / "out.json").read_text())
    labels, disturbed = (table["all"] for table in content.values())
    assert labels["objects"] == 711 and labels["switches"] == labels["fragmentations"] == 0
    assert labels["misses"] == 15  # each of the 15 objects in its first scan
    assert labels["idf1"] > 0.98 and labels["mota"] > 0.96
    assert disturbed["switches"] <= 1 and disturbed["idf1"] > 0.95
