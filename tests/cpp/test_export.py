"""The folder of a robot, where there is no GPU."""

import re
import shutil
import subprocess
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import torch

from millisecond.detector.weights import load_weights
from millisecond.tools.benchmarks.timing import load_scans
from millisecond.tools.export import main
from tests.cpp import network_arrays
from tests.helpers.small_detector import cloud

ROOT = Path(__file__).resolve().parents[2]


def test_a_folder_needs_nothing_of_the_repository(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    robot = tmp_path / "robot"
    assert main(["second_small", str(robot)]) == 0
    assert "no library and no parity report" in capsys.readouterr().out
    assert not (robot / "parity.md").exists()
    network = network_arrays.read(robot / "detector.network")
    assert bytes(network["classes"]) == b"Car Pedestrian Cyclist"
    assert not list(robot.glob("*.safetensors"))  # one file is all that the robot needs
    files = [path for path in robot.rglob("*") if path.suffix in (".h", ".cpp", ".cu", ".cuh")]
    roots = [robot / "include", robot / "src", robot / "csrc"]
    for path in files:
        text = path.read_text()
        for name in re.findall(r'#include "(.*)"', text):
            places = [path.parent, *roots]
            assert any((place / name).is_file() for place in places), f"{path.name} includes {name}"
        assert not re.search(r"#include <(torch|ATen|c10|Python)", text)
    sources = {path.name for path in files}
    assert {
        "detect.cpp",
        "millisecond.h",
        "general.cu",
        "voxelize.cu",
        "encoder_plugin.cpp",
    } <= sources


@pytest.mark.parametrize("folder", [".", "a robot/of ours"])
def test_a_folder_may_be_the_present_one_or_need_quotes(tmp_path, monkeypatch, capsys, folder):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    (present := tmp_path / "the present").mkdir()
    monkeypatch.chdir(present)
    assert main(["second_small", folder]) == 0
    name = "of ours" if " " in folder else "the present"
    assert f"cmake -S '{name}' -B build" in capsys.readouterr().out
    assert (present / folder / "detector.network").is_file()
    assert {path.name for path in (present / folder).glob(".*")} == set()


def test_scans_have_the_columns_that_the_network_takes(tmp_path, monkeypatch, small):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    (scans := tmp_path / "scans").mkdir()
    cloud(3)[:, [0, 1, 2, 3, 0]].tofile(scans / "a.bin")  # 5 columns, 60 bytes
    assert main([str(small), str(tmp_path / "robot"), "--frames", str(scans)]) == 0
    points = load_weights(small)[0].points
    (read,) = load_scans(scans, 1, points).points
    np.testing.assert_array_equal(read, np.fromfile(scans / "a.bin", np.float32).reshape(3, 5))
    (simulated,) = load_scans(None, 1, points).points
    assert simulated.shape[1] == points.width == 5 and not simulated[:, 4].any()


@pytest.mark.skipif(shutil.which("cmake") is None, reason="no cmake")
@pytest.mark.parametrize(
    ("asked", "built"),
    [
        ("native", "90a-real"),
        ("90", "90a-real;90-virtual"),  # as CMake: code and PTX
        ("90-real;87", "90a-real;87"),
        ("80;90a", "80;90a-real"),
        ("87;90-virtual", "87;90-virtual"),
        ("all-major", "80-real;90a-real;120"),
        ("none", "80-real;87-real;90a-real;100-real;121"),  # native, where there is no GPU
    ],
)
def test_the_code_for_hopper_has_products_of_warpgroups(tmp_path, asked, built):
    nvcc, native = tmp_path / "nvcc", "" if asked == "none" else "90-real"
    nvcc.write_text("#!/bin/sh\nprintf 'sm_%s\\n' 75 80 87 90 100 121\n")
    nvcc.chmod(0o755)
    lists = (ROOT / "detector" / "cpp" / "CMakeLists.txt").read_text()
    part = re.search(r"^if\(CMAKE_CUDA_ARCHITECTURES MATCHES.*?^$", lists, re.M | re.S)
    script = tmp_path / "targets.cmake"
    script.write_text(
        f"set(CMAKE_CUDA_COMPILER {nvcc})\n"
        f"set(CMAKE_CUDA_ARCHITECTURES {asked.replace('none', 'native')})\n"
        f"set(CMAKE_CUDA_ARCHITECTURES_NATIVE {native})\n"
        f"set(CMAKE_CUDA_ARCHITECTURES_ALL_MAJOR 80-real 90-real 120)\n{part[0]}\n"
        'message("${CMAKE_CUDA_ARCHITECTURES}")\n'
    )
    done = subprocess.run(["cmake", "-P", script], capture_output=True, text=True, check=True)
    assert done.stderr.strip() == built


@pytest.mark.parametrize(
    ("weights", "folder", "frames", "fault"),
    [
        ("none.safetensors", "robot", None, "no such weights file"),
        ("second_small", "full", None, "full: is there already"),
        ("second_small", "robot", "none", "none: no such folder"),
    ],
)
def test_mistakes_write_nothing(tmp_path, capsys, weights, folder, frames, fault):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    extra = [] if frames is None else ["--frames", str(tmp_path / frames)]
    assert main([weights, str(tmp_path / folder), *extra]) == 2
    assert fault in capsys.readouterr().err
    assert sorted(Path(path).name for path in tmp_path.iterdir()) == ["full"]


def test_a_broken_disk_leaves_nothing(tmp_path, capsys, monkeypatch):
    broken = mock.Mock(side_effect=OSError(5, "Input/output error", "robot"))
    monkeypatch.setattr("millisecond.tools.export.network_file.write", broken)
    (tmp_path / "there").mkdir()
    for folder in ("new", "there"):
        assert main(["second_small", str(tmp_path / folder)]) == 2
        assert "Input/output error" in capsys.readouterr().err
    assert [path.name for path in tmp_path.rglob("*")] == ["there"]
