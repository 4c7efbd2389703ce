"""The folder of a robot, where there is no GPU."""

import re
from pathlib import Path

import pytest
import torch

from tools.export import main


def test_a_folder_needs_nothing_of_the_repository(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    robot = tmp_path / "robot"
    assert main(["second_small", str(robot)]) == 0
    assert "no library and no parity report" in capsys.readouterr().out
    assert not (robot / "parity.md").exists()
    assert (robot / "weights.safetensors").stat().st_size > 1e6
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
