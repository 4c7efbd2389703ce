"""Weights files, the Detector and the tool that runs it over files."""

import json
import os
import struct
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch

from data.kitti.labels import read_labels
from data.kitti.points import read_points
from data.scan import ScanWarning
from detector import Detector
from detector.config import load_config
from detector.models.second import build_second
from detector.weights import load_weights, save_weights
from ops.voxelize import voxelize
from tools import detect as tool

CONFIG = Path(__file__).resolve().parents[2] / "configs" / "second_small.yaml"
CALIBRATION = """P2: 700 0 600 0 0 700 180 0 0 0 1 0
R0_rect: 1 0 0 0 1 0 0 0 1
Tr_velo_to_cam: 0 -1 0 0 0 0 -1 0 1 0 0 0
"""


@pytest.fixture(scope="module")
def trained():
    """A network that says something: many scores above the threshold."""
    torch.manual_seed(0)
    config = load_config(CONFIG)
    model = build_second(config)
    torch.nn.init.normal_(model.head.classes.bias, mean=-2.0)
    torch.nn.init.normal_(model.head.classes.weight, std=0.5)
    model.head.directions.bias.data = torch.tensor([0.0, 1.0, 0.0, 1.0])  # both face backwards
    return config, model


@pytest.fixture
def weights(tmp_path, trained):
    path = tmp_path / "weights.safetensors"
    save_weights(path, trained[1], trained[0])
    return path


def cloud(count, seed=0):
    generator = np.random.default_rng(seed)
    return generator.uniform((0, -20, -2, 0), (40, 20, 0, 1), (count, 4)).astype(np.float32)


def test_weights_come_back_bit_for_bit(weights, trained):
    config, state = load_weights(weights)
    assert config == trained[0]
    assert list(weights.parent.iterdir()) == [weights]
    for name, tensor in trained[1].state_dict().items():
        assert torch.equal(state[name], tensor)


def test_the_detector_is_the_network_and_its_postprocessor(weights, trained):
    from detector.postprocess import build_postprocessor

    config, model = trained
    points = cloud(5000)
    with torch.inference_mode():
        predictions = model.eval()(
            torch.from_numpy(points), torch.tensor([0, 5000], dtype=torch.int32)
        )
    (expected,) = build_postprocessor(config)(predictions)
    for given in (points, torch.from_numpy(points), np.frombuffer(points, "f4").reshape(-1, 4)):
        found = Detector.from_weights(weights, "cpu")(given)
        assert len(found.boxes) == len(expected.boxes) > 0
        torch.testing.assert_close(found.scores, expected.scores, rtol=1e-3, atol=1e-5)
        torch.testing.assert_close(found.boxes, expected.boxes, rtol=1e-3, atol=1e-3)
    boxes, scores, labels = found
    assert boxes.shape[1:] == (7,) and set(labels.tolist()) == {1}
    assert (scores.diff() <= 0).all()


def test_low_precision_sees_nearly_the_same(weights):
    points = cloud(5000)
    exact = Detector.from_weights(weights, "cpu")(points)
    rough = Detector.from_weights(weights, "cpu", "bf16")(points)
    assert rough.boxes.dtype == torch.float32
    assert abs(rough.scores[0] - exact.scores[0]) < 0.05


def test_clouds_without_points_in_range_give_few_boxes_and_no_error(weights):
    detector = Detector.from_weights(weights, "cpu")
    far = np.full((10, 4), 200, np.float32)
    far[:, 3] = 0.5
    nan = np.full((10, 4), np.nan, np.float32)
    nothing = detector(np.zeros((0, 4), np.float32))
    with pytest.warns(ScanWarning, match="no point in the grid"):
        assert torch.equal(detector(far).boxes, nothing.boxes)
    with pytest.warns(ScanWarning, match="10 of 10 points are not finite"):
        assert torch.equal(detector(nan).boxes, nothing.boxes)


@pytest.mark.parametrize("scale", [1, 255, 65535])
def test_one_wild_intensity_changes_nothing_far_from_it(weights, scale):
    detector = Detector.from_weights(weights, "cpu")
    points = cloud(5000) * np.float32([1, 1, 1, scale])
    wild = points.copy()
    wild[17, 3] = 1e30
    points[17, 3] = scale
    for quiet, loud in zip(detector.detect(points)[0], detector.detect(wild)[0], strict=True):
        assert torch.equal(quiet, loud)


def test_any_array_of_points_will_do(weights):
    detector, points = Detector.from_weights(weights, "cpu"), cloud(3000)
    expected = detector(points)
    for given in (
        torch.from_numpy(points).requires_grad_(),
        points[::-1][::-1],
        np.asfortranarray(points),
    ):
        assert torch.equal(detector(given).boxes, expected.boxes)


def test_a_sparse_tensor_is_one_line(weights):
    with pytest.raises(ValueError, match="points: expected a dense tensor"):
        Detector.from_weights(weights, "cpu")(torch.from_numpy(cloud(9)).to_sparse())


@pytest.mark.parametrize("kind", [torch.float8_e4m3fn, torch.float64])
def test_weights_count_as_the_network_has_them(tmp_path, trained, kind):
    """What is finite in the file may not be so in 32 bits."""
    config, model = trained
    state = {name: tensor.contiguous() for name, tensor in model.state_dict().items()}
    name = "backbone.blocks.0.0.conv.weight"
    state[name] = state[name].to(kind)
    texts = {"format": "millisecond weights 1", "config": config.to_yaml()}
    safetensors.torch.save_file(state, tmp_path / "other", texts)
    Detector.from_weights(tmp_path / "other", "cpu")
    if kind == torch.float64:
        state[name][0] = 1e300  # too much for 32 bits
        safetensors.torch.save_file(state, tmp_path / "other", texts)
        with pytest.raises(ValueError, match=f"values of {name} are not finite"):
            Detector.from_weights(tmp_path / "other", "cpu")


@pytest.mark.parametrize("points", [cloud(3000) * np.float32(1e-40), cloud(3000) * 0])
def test_what_is_no_scan_is_warned_of(weights, points):
    detector = Detector.from_weights(weights, "cpu")
    with pytest.warns(ScanWarning, match="points: "):
        detector(points)


def test_a_warning_is_given_once(weights):
    detector = Detector.from_weights(weights, "cpu")
    points = cloud(3000) * np.float32([1, 1, 1, 255])
    with pytest.warns(ScanWarning, match="divide it by 255"):
        first = detector(points)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert torch.equal(detector(points).boxes, first.boxes)


def test_no_voxel_is_dropped_without_a_word(tmp_path, trained):
    config, model = trained
    points = cloud(20000)
    save_weights(tmp_path / "large", model, config)
    found, notes = Detector.from_weights(tmp_path / "large", "cpu").detect(points)
    assert notes == [] and len(found.boxes)
    small = load_config(CONFIG, ["grid.max_voxels_test=1000"])
    save_weights(tmp_path / "small", build_second(small), small)
    detector = Detector.from_weights(tmp_path / "small", "cpu")
    (note,) = detector.detect(points)[1]
    grid = small.grid.voxels
    offsets = torch.tensor([0, len(points)], dtype=torch.int32)
    left_out = int(voxelize(torch.from_numpy(points), offsets, grid, 5, 1000).dropped[1])
    assert left_out > 0
    assert note.text == f"{left_out} points are over grid.max_voxels_test (1000): left out"
    with pytest.warns(ScanWarning, match="over grid.max_voxels_test"):
        detector(points)


def test_a_full_sweep_keeps_its_nearest_rings(kitti, trained, tmp_path):
    """A file ends with the nearest rings: a cap in file order would take those first."""
    config = load_config(CONFIG.with_name("second_kitti.yaml"))
    for name in ("000001", "000008"):
        points = torch.from_numpy(read_points(kitti / f"training/velodyne/{name}.bin"))
        offsets = torch.tensor([0, len(points)], dtype=torch.int32)
        cap = config.grid.max_voxels_test
        assert voxelize(points, offsets, config.grid.voxels, 5, cap).dropped.tolist() == [0, 0]


@pytest.mark.parametrize(
    "points",
    [
        np.zeros((5, 3), np.float32),
        np.zeros((5, 4), np.float64),
        np.zeros(4, np.float32),
        torch.zeros(5, 4, dtype=torch.float16),
        [[0.0, 0.0, 0.0, 0.0]],
        None,
    ],
)
def test_points_of_another_shape_or_type_are_one_line(weights, points):
    with pytest.raises(ValueError, match=r"points: expected \[P, 4\] float32, got"):
        Detector.from_weights(weights, "cpu")(points)


def test_wrong_weights_files_are_one_line(tmp_path, weights, trained):
    config, state = load_weights(weights)
    whole = weights.read_bytes()
    wide = load_config(CONFIG, ["model.encoder.out_channels=96"])
    bomb = struct.pack("<Q", 1 << 62) + b"{}"
    files = {
        "none": None,
        "truncated": whole[: len(whole) // 2],
        "empty": b"",
        "noise": os.urandom(1000),
        "header": bomb,
        "foreign": safetensors.torch.save({"a": torch.zeros(2)}),
        "shape": safetensors.torch.save(
            state, {"format": "millisecond weights 1", "config": wide.to_yaml()}
        ),
        "missing": safetensors.torch.save(
            {k: t for k, t in state.items() if "head" not in k},
            {"format": "millisecond weights 1", "config": config.to_yaml()},
        ),
        "config": safetensors.torch.save(
            state, {"format": "millisecond weights 1", "config": "a: 1"}
        ),
        "no_config": safetensors.torch.save(state, {"format": "millisecond weights 1"}),
    }
    for name, content in files.items():
        path = tmp_path / name
        if content is not None:
            path.write_bytes(content)
        with pytest.raises((ValueError, FileNotFoundError), match=name) as caught:
            Detector.from_weights(path, "cpu")
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("place", ["first", "middle", "last", "texts", "key"])
def test_a_flipped_bit_is_seen(weights, place):
    content = bytearray(weights.read_bytes())
    at = {
        "first": content.index(b"}}") + 40,
        "middle": len(content) // 2,
        "last": len(content) - 1,
        "texts": content.index(b"voxel_size") + 20,
        "key": content.index(b"sha256"),
    }[place]
    content[at] ^= 4
    weights.write_bytes(content)
    with pytest.raises(ValueError, match=str(weights)) as caught:
        Detector.from_weights(weights, "cpu")
    assert "\n" not in str(caught.value)


def test_weights_without_a_checksum_still_load(tmp_path, weights):
    config, state = load_weights(weights)
    older = {"format": "millisecond weights 1", "config": config.to_yaml()}
    safetensors.torch.save_file(state, tmp_path / "older", older)
    again, tensors = load_weights(tmp_path / "older")
    assert again == config and tensors.keys() == state.keys()


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda t: t.index_fill(0, torch.tensor([1]), torch.nan), "1 of the .* are not finite"),
        (lambda t: t.index_fill(0, torch.tensor([0]), torch.inf), "not finite"),
        (lambda t: t.to(torch.int32), "is of type int32"),
        (lambda t: t.to(torch.int8), "is of type int8"),
        (lambda t: -t - 1, "negative variance"),
    ],
)
def test_values_that_no_training_leaves_are_refused(tmp_path, weights, spoil, said):
    config, state = load_weights(weights)
    name = next(name for name in state if name.endswith("running_var"))
    state[name] = spoil(state[name])
    texts = {"format": "millisecond weights 1", "config": config.to_yaml()}
    safetensors.torch.save_file(state, tmp_path / "bad", texts)
    with pytest.raises(ValueError, match=said) as caught:
        Detector.from_weights(tmp_path / "bad", "cpu")
    assert name in str(caught.value) and "\n" not in str(caught.value)


def test_wrong_devices_and_precisions_are_one_line(weights):
    with pytest.raises(ValueError, match="abacus"):
        Detector.from_weights(weights, "abacus")
    with pytest.raises(ValueError, match="fp8"):
        Detector.from_weights(weights, "cpu", "fp8")
    for other in ("mps", "meta", "xla", "hpu"):
        with pytest.raises(ValueError, match=f"{other}.*say cpu"):
            Detector.from_weights(weights, other)
    if not torch.cuda.is_available():
        with pytest.raises(ValueError, match="no GPU"):
            Detector.from_weights(weights, "cuda")


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
    monkeypatch.setattr(tool, "read_points", lambda path: points)
    found, view = tool.read(Path("/x.bin"), tmp_path / "calib.txt", crop=True)
    assert view.image_shape == (375, 1242) and len(found) + view.left_out == 100
