"""visualize.py and demo.py as a user calls them, without a display."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from kitti_miniature import CAR, write_miniature
from PIL import Image

from data.kitti.calibration import Calibration
from data.kitti.labels import write_labels
from data.kitti.results import detections_to_labels
from data.simulator import simulate
from detector.checkpoint import save_weights
from detector.config import load_config
from detector.draw.style import CLASS_COLOURS
from detector.models.second import build_second
from tools import demo, visualize

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture
def plain(monkeypatch):
    """No display, and no driver for 3-D pictures: those are judged in test_draw.py."""
    monkeypatch.delenv("DISPLAY", raising=False)
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    monkeypatch.setenv("VK_ICD_FILENAMES", "/nonexistent")
    monkeypatch.setenv("VK_DRIVER_FILES", "/nonexistent")


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    """A network that has learnt nothing but says a lot."""
    torch.manual_seed(0)
    config = load_config(ROOT / "configs" / "second_small.yaml")
    model = build_second(config)
    torch.nn.init.constant_(model.head.classes.bias, 1.0)
    path = tmp_path_factory.mktemp("weights") / "weights.safetensors"
    save_weights(path, model, config)
    return path


def opened(path: Path) -> np.ndarray:
    with Image.open(path) as image:
        return np.asarray(image).astype(int)


def drawn(picture: np.ndarray, name: str) -> int:
    """Pixels of the class's very colour."""
    return int((np.abs(picture - CLASS_COLOURS[name]).max(axis=2) <= 2).sum())


def test_pictures_of_a_data_set_come_from_the_command_line(tmp_path):
    root = write_miniature(tmp_path / "kitti")
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "VK_ICD_FILENAMES": "/nonexistent"}
    command = ["--root", root, "--frames", "000002", "--output", tmp_path / "out"]
    done = subprocess.run(
        [sys.executable, ROOT / "tools" / "visualize.py", *command],
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    written = {path.name for path in (tmp_path / "out").iterdir()}
    assert {"000002_birds_eye.png", "000002_camera.png"} <= written
    note = [line for line in done.stderr.splitlines() if line.startswith("note:")]
    assert "000002_scene.png" in written or (len(note) == 1 and "apt-get install" in note[0])
    assert opened(tmp_path / "out" / "000002_camera.png").shape[1] == 1224


def test_detections_come_from_json_and_from_kitti_results(tmp_path, plain):
    root = write_miniature(tmp_path / "kitti")
    results = tmp_path / "results"
    results.mkdir()
    box = np.array([CAR])
    camera = Calibration.from_file(root / "training" / "calib" / "000002.txt")
    found = detections_to_labels(box, np.array([0.8]), ["Car"], camera, None)
    arguments = ["--root", str(root), "--frames", "000002", "--detections", str(results)]

    pictures = []
    for kind in ("json", "txt"):
        path = results / f"000002.{kind}"
        if kind == "json":
            path.write_text(json.dumps({"boxes": box.tolist(), "scores": [0.8], "names": ["Car"]}))
        else:
            write_labels(path, found)
        assert visualize.main([*arguments, "--output", str(tmp_path / kind)]) == 0
        pictures.append(opened(tmp_path / kind / "000002_birds_eye.png"))
        path.unlink()
    assert drawn(pictures[0], "Car") > 100
    assert np.abs(pictures[0] - pictures[1]).max(axis=2).astype(bool).mean() < 1e-3

    write_labels(results / "000002.txt", found)
    low = ["--score", "0.9", "--output", str(tmp_path / "low")]
    assert visualize.main([*arguments, *low]) == 0
    assert drawn(opened(tmp_path / "low" / "000002_birds_eye.png"), "Car") < 130  # the legend


def test_scans_and_weights_alone_are_enough(tmp_path, plain, weights):
    simulate(1).points.tofile(tmp_path / "street.bin")
    arguments = [str(tmp_path / "street.bin"), "--weights", str(weights), "--output", str(tmp_path)]
    assert visualize.main(arguments) == 0
    assert (tmp_path / "street_birds_eye.png").is_file()
    assert not (tmp_path / "street_camera.png").exists()


def test_a_folder_of_scans_becomes_a_film(tmp_path, plain, weights, capsys):
    for k in range(2):
        simulate(1, 0.1 * k).points.tofile(tmp_path / f"{k}.bin")
    np.zeros((0, 4), np.float32).tofile(tmp_path / "2.bin")
    film = tmp_path / "film"
    assert demo.main([str(tmp_path), "--weights", str(weights), "--output", str(film)]) == 0
    assert sorted(path.name for path in film.iterdir()) == [f"00000{k}.png" for k in range(3)]
    assert capsys.readouterr().err.count("note:") == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "--root"),
        (["nothing.bin"], "nothing.bin"),
        (["--root", "{tmp}/none"], "none"),
        (["--root", "{root}", "--frames", "999999"], "999999"),
        (["--root", "{root}", "--detections", "{tmp}/none"], "none"),
        (["--root", "{root}", "--detections", "{tmp}"], "000002.txt"),
        (["--root", "{root}", "--detections", "{tmp}/bad"], "000002.json"),
        (["{root}/training/velodyne", "--detections", "{tmp}/kitti_results"], "calibration"),
        (["--root", "{root}", "--weights", "{tmp}/none.safetensors"], "none.safetensors"),
        (["--root", "{root}", "--output", "{tmp}/file"], "file"),
    ],
)
def test_a_mistake_gets_one_line(tmp_path, plain, capsys, monkeypatch, arguments, said):
    monkeypatch.chdir(tmp_path)
    root = write_miniature(tmp_path / "kitti")
    for folder in ("bad", "kitti_results"):
        (tmp_path / folder).mkdir()
    (tmp_path / "bad" / "000002.json").write_text('{"boxes": [[1, 2]]}')
    (tmp_path / "kitti_results" / "000002.txt").write_text("")
    (tmp_path / "file").write_text("")
    filled = [argument.format(tmp=tmp_path, root=root) for argument in arguments]
    assert visualize.main(filled) == 2
    lines = capsys.readouterr().err.strip().splitlines()
    errors = [line for line in lines if line.startswith("error:")]
    assert len(errors) == 1 and said in errors[0]


def test_a_demo_without_scans_says_so(tmp_path, weights, capsys):
    assert demo.main([str(tmp_path), "--weights", str(weights)]) == 2
    assert str(tmp_path) in capsys.readouterr().err
