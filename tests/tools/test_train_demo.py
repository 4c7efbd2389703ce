import importlib
import json

from detector.config import load_config
from tools import train_demo


def test_every_command_line_is_understood(tmp_path):
    """The programs take what the first run gives them, and each finds what the one before left."""
    commands = [command for _, group in train_demo.steps(tmp_path) for command in group]
    programs = [command[0] for command in commands]
    assert programs == ["simulate"] * 3 + [
        *("prepare_kitti", "train", "evaluate", "detect", "visualize")
    ]
    for program, *arguments in commands:
        module = importlib.import_module(f"tools.{program}")
        module.parse([str(argument) for argument in arguments])
    load_config(train_demo.CONFIG)


def test_no_street_is_in_two_splits():
    streets = [range(first, first + count) for first, count in train_demo.SPLITS.values()]
    together = [number for split in streets for number in split]
    assert len(together) == len(set(together))


def test_report(tmp_path):
    (tmp_path / "detections").mkdir()
    frame = {"boxes": [[30, 4, 0, 4, 2, 2, 0], [3, -4, 0, 4, 2, 2, 0]], "scores": [0.9, 0.8]}
    (tmp_path / "detections" / "000001.json").write_text(json.dumps(frame))
    empty = {"boxes": [], "scores": []}
    (tmp_path / "detections" / "000002.json").write_text(json.dumps(empty))
    scores = {"R40": [60.0, 54.32, 50.0], "count": [50, 60, 70]}
    (tmp_path / "ap.json").write_text(json.dumps({"Car": {"bev@0.5": scores}}))
    text = train_demo.report(tmp_path)
    assert "AP 54.3 (R40) of 60 cars" in text
    assert "street 000001: 2 cars" in text and "3 m ahead and 4 m to the right" in text
    assert "street 000002: no car" in text
