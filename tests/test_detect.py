"""Weights files, the Detector and the tool that runs it over files."""

import json
import os
import struct
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch

from data.kitti.labels import read_labels
from detector import Detector
from detector.checkpoint import load_weights, save_weights
from detector.config import load_config
from detector.models.second import build_second
from tools import detect as tool

CONFIG = Path(__file__).resolve().parents[1] / "configs" / "second_small.yaml"
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
    for given in (points, torch.from_numpy(points)):
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
    far = np.full((10, 4), 1e6, np.float32)
    nan = np.full((10, 4), np.nan, np.float32)
    results = [detector(points) for points in (np.zeros((0, 4), np.float32), far, nan)]
    for found in results[1:]:
        assert torch.equal(found.boxes, results[0].boxes)


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


def test_wrong_devices_and_precisions_are_one_line(weights):
    with pytest.raises(ValueError, match="abacus"):
        Detector.from_weights(weights, "abacus")
    with pytest.raises(ValueError, match="fp8"):
        Detector.from_weights(weights, "cpu", "fp8")
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
    assert sorted(p.name for p in output.iterdir()) == ["a.json", "b.json", "c.json"]
    detector = Detector.from_weights(weights)
    for name, points in clouds.items():
        result = json.loads((output / f"{name}.json").read_text())
        found = detector(points)
        assert result["frame"] == name
        assert result["names"] == ["Car"] * len(found.boxes)
        np.testing.assert_allclose(result["boxes"], found.boxes.cpu(), atol=1e-4)
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
