"""millisecond detect as a user calls it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from millisecond.data.kitti.labels import read_labels
from millisecond.detector import Detector
from millisecond.detector.config import load_config
from millisecond.detector.models.second import build_second
from millisecond.detector.weights import save_weights
from millisecond.tools import detect as tool
from tests.helpers.small_detector import CONFIG, cloud

CALIBRATION = """P2: 700 0 600 0 0 700 180 0 0 0 1 0
R0_rect: 1 0 0 0 1 0 0 0 1
Tr_velo_to_cam: 0 -1 0 0 0 0 -1 0 1 0 0 0
"""


def run(*arguments):
    return tool.main([str(argument) for argument in arguments])


def test_the_tool_writes_a_json_a_scan(tmp_path, weights):
    scans, output = tmp_path / "scans", tmp_path / "out"
    scans.mkdir()
    clouds = {"a": cloud(4000, 1), "b": cloud(0), "c": cloud(3000, 2)}
    for name, points in clouds.items():
        points.tofile(scans / f"{name}.bin")
    (scans / "c.bin").rename(tmp_path / "c.bin")
    assert run("--weights", weights, scans, tmp_path / "c.bin", "--output", output) == 0
    assert sorted(p.name for p in output.glob("[!.]*")) == ["a.json", "b.json", "c.json"]
    detector = Detector.from_weights(weights)
    for name, points in clouds.items():
        result = json.loads((output / f"{name}.json").read_text())
        found = detector(points)
        assert result["frame"] == name
        assert result["names"] == ["Car"] * len(found.boxes)
        boxes = np.array(result["boxes"]).reshape(-1, 7)
        np.testing.assert_allclose(boxes[:, :6], found.boxes.cpu()[:, :6], atol=1e-4)
        np.testing.assert_allclose(result["scores"], found.scores.cpu(), atol=1e-4)
        assert result["milliseconds"] > 0


def test_a_shift_and_a_turn_leave_boxes_in_the_frame_of_the_scan(tmp_path, weights):
    """The car's front is to the left of this sensor, and the sensor stands 1.25 m higher."""
    points = cloud(4000, 1)
    points.tofile(tmp_path / "a.bin")
    other = np.stack([points[:, 1], -points[:, 0], points[:, 2] - 1.25, points[:, 3]], axis=1)
    other.tofile(tmp_path / "b.bin")
    output, options = tmp_path / "out", ("--turn", 90, "--shift-z", 1.25)
    assert run("--weights", weights, tmp_path / "a.bin", "--output", output / "a") == 0
    assert run("--weights", weights, tmp_path / "b.bin", "--output", output / "b", *options) == 0
    a, b = (json.loads((output / f"{name}/{name}.json").read_text()) for name in "ab")
    a_boxes, b_boxes = np.array(a["boxes"])[:20], np.array(b["boxes"])[:20]
    np.testing.assert_allclose(b_boxes[:, 0], a_boxes[:, 1], atol=0.01)
    np.testing.assert_allclose(b_boxes[:, 1], -a_boxes[:, 0], atol=0.01)
    np.testing.assert_allclose(b_boxes[:, 2], a_boxes[:, 2] - 1.25, atol=0.01)
    turned = np.abs(a_boxes[:, 6] - b_boxes[:, 6] - np.pi / 2) % (2 * np.pi)
    assert (np.minimum(turned, 2 * np.pi - turned) < 0.01).all()


@pytest.mark.parametrize("value", ["nan", "inf", "1_0", "9" * 9, "up", "\uff11"])
def test_a_shift_is_a_number(tmp_path, weights, capsys, value):
    with pytest.raises(SystemExit, match="2"):
        run("--weights", weights, tmp_path, "--output", tmp_path / "out", "--shift-z", value)
    assert "is not a number from -1000 to 1000" in capsys.readouterr().err


@pytest.mark.parametrize("folder", [True, False])
def test_with_a_calibration_it_writes_kitti_results_too(tmp_path, weights, folder):
    points = cloud(4000, 1)
    behind = points * np.float32([-1, 1, 1, 1])
    np.concatenate([behind, points]).tofile(tmp_path / "000007.bin")
    calib = tmp_path / "calib" / "000007.txt"
    calib.parent.mkdir()
    calib.write_text(CALIBRATION)
    calib = calib.parent if folder else calib
    output = tmp_path / "out"
    assert (
        run("--weights", weights, tmp_path / "000007.bin", "--calib", calib, "--output", output)
        == 0
    )
    boxes = np.array(json.loads((output / "000007.json").read_text())["boxes"])
    labels = read_labels(output / "000007.txt")
    assert len(labels) == len(boxes) > 0
    # This camera looks along the LiDAR's x axis: right is -y, down is -z.
    centre = np.stack([-boxes[:, 1], -(boxes[:, 2] - boxes[:, 5] / 2), boxes[:, 0]], axis=1)
    np.testing.assert_allclose(labels.location, centre, atol=2e-4)
    np.testing.assert_allclose(labels.size, boxes[:, [3, 5, 4]], atol=2e-4)
    turn = labels.rotation_y + boxes[:, 6] + np.pi / 2
    np.testing.assert_allclose(np.cos(turn), 1, atol=1e-6)
    assert (labels.bbox[:, 2:] <= [1241, 374]).all()


def test_the_tool_says_one_line_and_exits_with_2(tmp_path, weights, capsys):
    scan, odd, plain = tmp_path / "000001.bin", tmp_path / "odd.bin", tmp_path / "plain"
    cloud(100).tofile(scan)
    odd.write_bytes(b"12345")
    plain.write_text("")
    empty, twin = tmp_path / "empty", tmp_path / "twin"
    empty.mkdir()
    twin.mkdir()
    cloud(100).tofile(twin / scan.name)
    output = tmp_path / "out"
    for arguments, word in (
        (["--weights", weights, tmp_path / "none.bin", "--output", output], "none.bin"),
        (["--weights", weights, empty, "--output", output], "empty"),
        (["--weights", weights, odd, "--output", output], "odd.bin"),
        (["--weights", weights, scan, twin, "--output", output], "overwrite"),
        (["--weights", tmp_path / "none", scan, "--output", output], "none"),
        (["--weights", plain, scan, "--output", output], "plain"),
        (["--weights", weights, scan, "--output", plain / "out"], "plain"),
        (["--weights", weights, scan, "--output", output, "--calib", empty], "000001.txt"),
        (["--weights", weights, scan, "--output", output, "--calib", plain], "P2"),
        (["--weights", weights, scan, "--output", output, "--device", "abacus"], "abacus"),
    ):
        assert run(*arguments) == 2
        out, err = capsys.readouterr()
        assert not out
        lines = [line for line in err.splitlines() if not line.startswith("\r")]
        assert [line for line in lines if line.startswith("error: ") and word in line], err


def lines(capsys, start: str) -> list[str]:
    return [line for line in capsys.readouterr().err.splitlines() if line.startswith(start)]


def test_one_bad_scan_does_not_stop_the_others(tmp_path, weights, capsys):
    scans, output = tmp_path / "scans", tmp_path / "out"
    scans.mkdir()
    for name in ("a", "c", "e"):
        cloud(500, 1).tofile(scans / f"{name}.bin")
    (scans / "b.bin").write_bytes(b"12345")
    np.save(scans / "d.npy", np.zeros((3, 7), np.float32))
    assert run("--weights", weights, scans, "--output", output) == 2
    errors = lines(capsys, "error: ")
    assert len(errors) == 2 and "b.bin" in errors[0] and "d.npy" in errors[1]
    assert "2 of 5 scans could not be read" in errors[1]
    assert sorted(path.name for path in output.glob("[!.]*")) == ["a.json", "c.json", "e.json"]


@pytest.mark.parametrize("form", ["json", "text", "labelcloud"])
def test_a_name_that_is_not_utf8_does_not_stop_the_others(tmp_path, weights, capsys, form):
    scans, output = tmp_path / "scans", tmp_path / "out"
    scans.mkdir()
    for name in ("a", "b", os.fsdecode(b"b\xff\xfe"), "c"):
        cloud(500).tofile(scans / f"{name}.bin")
    for _ in range(2 if form == "json" else 1):  # a second run replaces the first
        options = ("--output", output, "--format", form)
        assert run("--weights", weights, scans, *options) == 2
        out, err = capsys.readouterr()
        assert [line for line in err.splitlines() if line.startswith("error:")] == [
            f"error: {scans}/b\\udcff\\udcfe.bin: its name is not UTF-8; rename it (1 of 4 scans "
            "could not be read)"
        ]
        assert "in 3 scans" in out
        assert sorted(path.stem for path in output.glob("[!.]*")) == ["a", "b", "c"]


def test_the_name_of_an_output_that_is_not_utf8_is_printed(tmp_path, weights):
    cloud(500).tofile(tmp_path / "a.bin")
    program = str(Path(tool.__file__))
    alone = [sys.executable, program, tmp_path / "a.bin", "--weights", weights, "--output"]
    other = tmp_path / os.fsdecode(b"o\xff")
    done = subprocess.run([*alone, other], capture_output=True, text=True)
    assert done.returncode == 0 and "written to" in done.stdout and "o\\udcff" in done.stdout


def test_yaws_and_scores_of_the_json(tmp_path, weights):
    cloud(5000, 1).tofile(tmp_path / "a.bin")
    assert run("--weights", weights, tmp_path / "a.bin", "--output", tmp_path / "out") == 0
    result = json.loads((tmp_path / "out" / "a.json").read_text())
    found = Detector.from_weights(weights, "cpu")(cloud(5000, 1))
    yaw = np.array(result["boxes"])[:, 6]
    assert (np.abs(yaw) <= np.pi).all() and (found.boxes[:, 6].abs() > np.pi).any()
    np.testing.assert_allclose(np.cos(yaw - found.boxes[:, 6].numpy()), 1, atol=1e-7)
    # no two scores that differ become equal: they rank the boxes
    np.testing.assert_array_equal(np.float32(result["scores"]), found.scores.numpy())


def test_results_of_another_run_do_not_stay_beside_new_ones(tmp_path, weights, capsys):
    for name in ("a", "b"):
        cloud(500, 1).tofile(tmp_path / f"{name}.bin")
    (tmp_path / "calib.txt").write_text(CALIBRATION)
    output, both = tmp_path / "out", [tmp_path / "a.bin", tmp_path / "b.bin"]
    with_calib = ["--calib", tmp_path / "calib.txt", "--output", output]
    assert run("--weights", weights, *both, *with_calib) == 0
    before = {path.name: path.read_bytes() for path in output.iterdir()}
    assert len(before) == 5  # with the list of the frames
    capsys.readouterr()
    assert run("--weights", weights, both[0], "--output", output) == 2
    (error,) = lines(capsys, "error: ")
    assert "b.json, b.txt are there from another run" in error
    assert {path.name: path.read_bytes() for path in output.iterdir()} == before
    # of the same scans they are replaced, those that this run does not write too
    (output / ".a.json.77.tmp").touch()  # half-written when a run was killed
    assert run("--weights", weights, *both, "--output", output) == 0
    assert sorted(path.name for path in output.iterdir()) == [".results", "a.json", "b.json"]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.txt", "Car 0.00 0 -1.57 540 180 660 240 1.5 1.8 4.0 0 1.6 20 -1.57\n"),
        ("z.txt", "Car 0.00 0 -1.57 540 180 660 240 1.5 1.8 4.0 0 1.6 20 -1.57\n"),
        ("a.json", '{"mine": 1}'),
        ("a.json", "\xff"),
        ("a.txt", "my notes\n"),
        ("a.txt", ""),
        ("a.txt", "Car -1 -1 -1.57 540 180 660 240 1.5 1.8 4.0 0 1.6 20 -1.57 0.9\n"),
        ("a.json", '{"boxes": [], "scores": [], "names": []}'),
    ],
)
def test_what_is_no_result_is_not_written_over(tmp_path, weights, capsys, name, content):
    cloud(500, 1).tofile(tmp_path / "a.bin")
    output = tmp_path / "label_2"
    output.mkdir()
    (output / name).write_text(content, encoding="latin-1")
    before = (output / name).read_bytes()
    assert run("--weights", weights, tmp_path / "a.bin", "--output", output) == 2
    (error,) = lines(capsys, "error: ")
    assert str(output) in error and name in error
    assert [path.name for path in output.iterdir()] == [name]
    assert (output / name).read_bytes() == before


def test_results_stay_until_there_are_new_ones(tmp_path, weights, capsys):
    cloud(500, 1).tofile(tmp_path / "a.bin")
    output = tmp_path / "out"
    assert run("--weights", weights, tmp_path / "a.bin", "--output", output) == 0
    before = {path.name: path.read_bytes() for path in output.iterdir()}
    wrong = ["--weights", weights, tmp_path / "a.bin", "--output", output, "--calib"]
    assert run(*wrong, tmp_path / "none.txt") == 2
    (tmp_path / "empty").mkdir()
    assert run(*wrong, tmp_path / "empty") == 2
    assert {path.name: path.read_bytes() for path in output.iterdir()} == before


def test_two_runs_do_not_write_to_one_folder(tmp_path, weights, capsys):
    cloud(500, 1).tofile(tmp_path / "a.bin")
    output = tmp_path / "out"
    program = "import sys; from pathlib import Path; from data.files import locked\n"
    program += "with locked(Path(sys.argv[1])): print('held', flush=True); sys.stdin.read()"
    command = [sys.executable, "-c", program, str(output)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout.readline() == b"held\n"
        assert run("--weights", weights, tmp_path / "a.bin", "--output", output) == 2
        (error,) = lines(capsys, "error: ")
        assert f"process {other.pid} is writing there" in error
    assert run("--weights", weights, tmp_path / "a.bin", "--output", output) == 0


def test_an_image_is_found_beside_a_linked_folder(tmp_path, weights):
    from PIL import Image

    points = cloud(4000, 1)
    for part in ("kitti/velodyne", "kitti/image_2", "elsewhere"):
        (tmp_path / part).mkdir(parents=True)
    points.tofile(tmp_path / "elsewhere" / "a.bin")
    points.tofile(tmp_path / "kitti" / "velodyne" / "b.bin")
    for name in "ab":
        Image.new("RGB", (640, 400)).save(tmp_path / "kitti" / "image_2" / f"{name}.png")
    (tmp_path / "kitti" / "linked").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "link").symlink_to(tmp_path / "kitti" / "velodyne")
    (tmp_path / "calib.txt").write_text(CALIBRATION)
    for scan in ("kitti/linked/a.bin", "link/b.bin"):
        _, view = tool.read(tmp_path / scan, tmp_path / "calib.txt", crop=True)
        assert view.image_shape == (400, 640)


def test_the_crop_to_the_image_is_a_choice_and_is_said(tmp_path, trained, capsys):
    points = cloud(4000, 1)
    behind = points * np.float32([-1, 1, 1, 1])
    np.concatenate([behind, points]).tofile(tmp_path / "a.bin")
    (tmp_path / "calib.txt").write_text(CALIBRATION)
    for crop in (True, False):
        config = load_config(CONFIG, [f"grid.crop_to_image={str(crop).lower()}"])
        path = tmp_path / f"{crop}.safetensors"
        save_weights(path, build_second(config), config)
        where = ["--calib", tmp_path / "calib.txt", "--output", tmp_path / f"out{crop}"]
        assert run("--weights", path, tmp_path / "a.bin", *where) == 0
        assert (
            "points out of the camera's picture were left out" in capsys.readouterr().out
        ) is crop


def test_a_camera_that_sees_nothing_is_told(tmp_path, weights, capsys):
    cloud(4000, 1).tofile(tmp_path / "a.bin")
    turned = CALIBRATION.replace("0 -1 0 0 0 0 -1 0 1 0 0 0", "0 1 0 0 0 0 -1 0 -1 0 0 0")
    (tmp_path / "calib.txt").write_text(turned)
    where = ["--calib", tmp_path / "calib.txt", "--output", tmp_path / "out"]
    assert run("--weights", weights, tmp_path / "a.bin", *where) == 0
    (warning,) = lines(capsys, "warning: ")
    assert "a.bin: no point is in the camera's picture" in warning


def test_a_scan_at_the_root_of_the_file_system_has_no_image_beside_it(tmp_path, monkeypatch):
    points = cloud(100)
    (tmp_path / "calib.txt").write_text(CALIBRATION)
    monkeypatch.setattr(tool, "read_scan", lambda path, columns: points)
    found, view = tool.read(Path("/x.bin"), tmp_path / "calib.txt", crop=True)
    assert view.image_shape == (375, 1242) and len(found) + view.left_out == 100
