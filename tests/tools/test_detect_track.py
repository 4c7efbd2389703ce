"""millisecond detect --track as a user calls it."""

import json

import numpy as np
import pytest
import torch

from millisecond.data.boxes import NamedDetections
from millisecond.data.formats.pcd import write_pcd
from millisecond.data.kitti.labels import read_labels
from millisecond.detector import Detector
from millisecond.detector.detection_table import read_table
from millisecond.detector.inference import Detections
from millisecond.detector.tracking import EgoMotion, Tracker, Tracks
from millisecond.tools import detect as tool
from millisecond.tools.detecting import ScanResult, Shard, TableWriter
from tests.helpers.small_detector import cloud

CALIBRATION = """P2: 700 0 600 0 0 700 180 0 0 0 1 0
R0_rect: 1 0 0 0 1 0 0 0 1
Tr_velo_to_cam: 0 -1 0 0 0 0 -1 0 1 0 0 0
"""


def run(*arguments):
    try:
        return tool.main([str(argument) for argument in arguments])
    except SystemExit as end:
        return end.code


NAMES = ("a8", "a9", "a10", "a11", "a12")  # the order in time, not in the alphabet


@pytest.fixture
def scans(tmp_path, monkeypatch):
    """Five scans, and a detector that finds a car that drives 0.5 m per scan, and a parked one."""
    folder = tmp_path / "scans"
    folder.mkdir()
    for place, name in enumerate(NAMES):
        points = cloud(500, 1)
        points[:, 0] -= 0.2 * place
        points[0, 3] = place / 10
        points.tofile(folder / f"{name}.bin")

    def detect(points):
        place = round(10 * float(points[0, 3]))
        boxes = [[20, -5, -1, 4, 1.8, 1.5, 0], [10 + 0.5 * place, 3, -1, 4, 1.8, 1.5, 0]]
        found = Detections(torch.tensor(boxes), torch.tensor([0.9, 0.8]), torch.tensor([1, 1]))
        return found, []

    monkeypatch.setattr(Detector, "stream", lambda _, clouds: map(detect, clouds))
    return folder


def results(folder, names=NAMES):
    return [json.loads((folder / f"{name}.json").read_text()) for name in names]


def test_tracks_are_written_in_the_order_of_the_numbers(tmp_path, weights, scans, capsys):
    output = tmp_path / "out"
    assert run("--weights", weights, scans, "--track", "--rate", 5, "--output", output) == 0
    assert f"8 boxes in 5 scans, written to {output}" in capsys.readouterr().out
    first, *others = results(output)
    assert first["ids"] == first["boxes"] == first["velocities"] == first["ages"] == []
    for place, result in enumerate(others, start=1):
        assert result["ids"] == [1, 2] and result["ages"] == [place, place]
        assert result["names"] == ["Car", "Car"] and result["frame"] == NAMES[place]
        np.testing.assert_allclose(result["scores"], [0.9, 0.8], atol=1e-6)
    np.testing.assert_allclose(result["velocities"], [[0, 0], [2.5, 0]], atol=0.2)
    expected = [[20, -5, -1, 4, 1.8, 1.5, 0], [12, 3, -1, 4, 1.8, 1.5, 0]]
    np.testing.assert_allclose(result["boxes"], expected, atol=0.05)


def test_with_a_calibration_the_kitti_results_are_the_tracks(tmp_path, weights, scans):
    (tmp_path / "calib.txt").write_text(CALIBRATION)
    calib = ["--calib", tmp_path / "calib.txt", "--output", tmp_path / "out"]
    assert run("--weights", weights, scans, "--track", *calib) == 0
    for name, result in zip(NAMES, results(tmp_path / "out"), strict=True):
        assert len(read_labels(tmp_path / "out" / f"{name}.txt")) == len(result["ids"])
    # another run without tracks replaces all of it
    assert run("--weights", weights, scans, *calib) == 0
    assert all("ids" not in result for result in results(tmp_path / "out"))


def test_time_passes_over_a_scan_that_cannot_be_read(tmp_path, weights, scans, monkeypatch):
    (scans / "a9.bin").write_bytes(b"12345")
    times = []

    def update(self, found, time, pose=None, original=Tracker.update):
        times.append(time)
        return original(self, found, time, pose)

    monkeypatch.setattr(Tracker, "update", update)
    assert run("--weights", weights, scans, "--track", "--output", tmp_path / "out") == 2
    assert times == pytest.approx([0.0, 0.2, 0.3, 0.4])


def test_a_time_that_goes_back_names_its_scan(tmp_path, weights, scans, monkeypatch, capsys):
    def update(self, found, time, pose=None, original=Tracker.update):
        return original(self, found, 0.05 if time == 0.2 else time, pose)

    monkeypatch.setattr(Tracker, "update", update)
    assert run("--weights", weights, scans, "--track", "--output", tmp_path / "out") == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith("error: a10.bin: time 0.05 is not after 0.1") and "--track" in error


def test_ego_gives_the_tracker_the_poses_of_the_scans(tmp_path, weights, scans, monkeypatch):
    poses = []

    def update(self, found, time, pose=None, original=Tracker.update):
        poses.append(pose)
        return original(self, found, time, pose)

    monkeypatch.setattr(Tracker, "update", update)
    assert run("--weights", weights, scans, "--track", "--ego", "--output", tmp_path / "out") == 0
    ego = EgoMotion()
    for place, name in enumerate(NAMES):
        points = np.fromfile(scans / f"{name}.bin", "<f4").reshape(-1, 4)
        np.testing.assert_allclose(poses[place], ego(points, place / 10))


def test_ego_and_rate_without_track_and_odd_rates_are_refused(tmp_path, weights, scans, capsys):
    common = ["--weights", weights, scans, "--output", tmp_path / "out"]
    assert run(*common, "--ego") == 2
    assert "--ego goes with --track" in capsys.readouterr().err
    assert run(*common, "--rate", "10") == 2
    assert "--rate goes with --track" in capsys.readouterr().err
    for rate in ("0", "-1", "nan", "inf", "fast"):
        assert run(*common, "--track", "--rate", rate) == 2
        assert "not a frequency above 0" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_recording_of_an_imported_data_set_tells_times_and_poses(
    tmp_path, weights, scans, monkeypatch
):
    """The car with the sensor drives at 5 m/s; each recording has tracks of its own."""
    times, turn = [], np.array([[0, -1, 0], [1, 0, 0], [0, 0, 1]])

    def update(self, found, time, pose=None, original=Tracker.update):
        times.append(time)
        return original(self, found, time, pose)

    monkeypatch.setattr(Tracker, "update", update)
    for recording in ("r1", "r2"):
        lines = []
        for place, name in enumerate(NAMES):
            points = np.fromfile(scans / f"{name}.bin", "<f4").reshape(-1, 4)
            (tmp_path / "plain/points").mkdir(parents=True, exist_ok=True)
            write_pcd(tmp_path / f"plain/points/{recording}_{name}.pcd", points)
            pose = np.eye(4)
            pose[:3, :3], pose[:3, 3] = turn, (700, 900 + 0.5 * place, 3)
            told = {"name": f"{recording}_{name}", "time": 1.5e9 + place / 10}
            lines.append(json.dumps({**told, "pose": pose.tolist(), "tracks": None}))
        (tmp_path / "plain/sequences").mkdir(exist_ok=True)
        (tmp_path / f"plain/sequences/{recording}.jsonl").write_text("\n".join(lines))
    paths = sorted((tmp_path / "plain/sequences").iterdir())
    assert run("--weights", weights, *paths, "--track", "--output", tmp_path / "out") == 0
    for recording in ("r1", "r2"):
        found = results(tmp_path / "out", [f"{recording}_{name}" for name in NAMES])
        assert [one["ids"] for one in found] == [[], *[[1, 2]] * 4]
        # over ground, along the axes of the scan: what keeps its place there moves with the car
        np.testing.assert_allclose(found[-1]["velocities"], [[5, 0], [10, 0]], atol=0.1)
    assert np.subtract(times, 1.5e9) == pytest.approx([place / 10 for place in range(5)] * 2)


def test_a_recording_that_is_none_is_one_line(tmp_path, weights, scans, capsys):
    good = {"name": "a", "time": 1.0, "pose": None, "tracks": None}
    path = tmp_path / "plain/sequences/r.jsonl"
    path.parent.mkdir(parents=True)
    for wrong, says in (
        ({"time": 1.0}, "line 2: its time is not after"),
        ({"time": "soon"}, "line 2: not a scan as millisecond import writes it"),
        ({"time": 2.0, "pose": [[1, 2], [3, 4]]}, "line 2: not a scan"),
        ({"time": 2.0, "pose": np.eye(4).tolist()}, "line 2: poses are of all scans, or of none"),
        ({"time": 2.0, "name": "../a"}, "line 2: not a scan"),
        ({"time": 2.0, "speed": 3}, "line 2: not a scan"),
    ):
        path.write_text(f"{json.dumps(good)}\n{json.dumps(good | wrong)}\n")
        assert run("--weights", weights, path, "--output", tmp_path / "out") == 2
        assert says in capsys.readouterr().err
    path.write_text("")
    assert run("--weights", weights, path, "--output", tmp_path / "out") == 2
    assert "names no scans" in capsys.readouterr().err


def test_a_table_has_velocities_of_a_network_alone(tmp_path):
    """And boxes that score as little as --score says."""
    pytest.importorskip("pyarrow")
    boxes, scores, speeds = np.array([[10, 0, -1, 4, 2, 1.5, 0]]), np.array([0.5]), [[1.5, -2]]
    found = NamedDetections(boxes, scores, ("Car",), np.array(speeds))
    followed = Tracks(boxes, scores, ("Car",), np.array([7]), np.ones((1, 2)), np.array([1]))
    writer = TableWriter(tmp_path, 0.5)
    plain = found._replace(velocities=None)
    for one, tracks, told in ((found, None, speeds), (plain, followed, None)):
        result = ScanResult("a", (0, 0), 0.0, one, ("Car",), 1.0, tracks)
        writer.write(Shard((0, 0), [result], []), {})
        (read, _) = read_table(writer.part((0, 0)))["a"]
        assert len(read.boxes) == 1
        assert told == (None if read.velocities is None else read.velocities.tolist())
