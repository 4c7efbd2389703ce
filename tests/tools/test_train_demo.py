import importlib
import json

from millisecond.detector.config import load_config
from millisecond.tools import train_demo


def test_every_command_line_is_understood(tmp_path):
    """The programs take what the first run gives them, and each finds what the one before left."""
    commands = [command for _, group in train_demo.steps(tmp_path) for command in group]
    programs = [command[0] for command in commands]
    assert programs == ["simulate"] * 3 + [*("prepare", "train", "evaluate", "detect", "visualize")]
    for program, *arguments in commands:
        module = importlib.import_module(f"millisecond.tools.{program}")
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


def test_streets_of_another_version_are_not_taken_for_its_own(tmp_path):
    lists = tmp_path / "ImageSets"
    lists.mkdir()
    for split, (first, count) in train_demo.SPLITS.items():
        ids = range(first, first + count)
        (lists / f"{split}.txt").write_text("".join(f"{n:06d}\n" for n in ids))
    assert train_demo.missing(tmp_path) == []
    (lists / "unseen.txt").write_text("200003\n200004\n200005\n200006\n")
    (lists / "val.txt").unlink()
    assert train_demo.missing(tmp_path) == ["val", "unseen"]
