import importlib.util
import io
import json
import shutil
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from millisecond.data.simulator.trees import write_kitti_tree
from millisecond.detector.config import load_config
from millisecond.detector.models.second import build_second
from millisecond.detector.weights import save_weights
from tests.helpers.warm_processes import WarmProcess

ROOT = Path(__file__).resolve().parents[2]
TOOL = ROOT / "tools" / "evaluate.py"
CAR = "Car 0.00 0 1.85 {} 173.33 {} 224.14 1.67 1.87 3.69 {} 1.91 22.45 1.57"


def run(*arguments) -> SimpleNamespace:
    """The tool's main in this process: a process of its own takes seconds to import torch."""
    spec = importlib.util.spec_from_file_location("evaluate", TOOL)
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        try:
            code = tool.main(list(map(str, arguments)))
        except SystemExit as end:
            code = end.code
    return SimpleNamespace(returncode=code, stdout=out.getvalue(), stderr=err.getvalue())


def cars(count: int, score: str = "") -> str:
    lines = (CAR.format(50 + 90 * i, 120 + 90 * i, -20 + 5 * i) + score for i in range(count))
    return "".join(line + "\n" for line in lines)


@pytest.fixture
def folders(tmp_path):
    """Three frames of 7 cars; all found but for the cars of the last frame, whose file is empty."""
    labels, detections = tmp_path / "label_2", tmp_path / "results"
    for folder in (labels, detections):
        folder.mkdir()
    for i in range(3):
        (labels / f"{i:06}.txt").write_text(cars(7))
        (detections / f"{i:06}.txt").write_text(cars(7, " 0.9") if i < 2 else "")
    return ["--labels", labels, "--detections", detections]


def refused(*arguments) -> str:
    """The one line printed for a mistake."""
    done = run(*arguments)
    assert done.returncode == 2, done.stderr
    assert done.stdout == ""
    (line,) = done.stderr.strip().splitlines()
    assert line.startswith("error: ")
    return line


def test_result_files_give_table_and_json(folders, tmp_path):
    done = run(*folders, "--json", tmp_path / "made" / "ap.json")
    assert done.returncode == 0, done.stderr
    assert "Car, overlap 0.7" in done.stdout and "fewer than 41 ground truths" in done.stdout
    result = json.loads((tmp_path / "made" / "ap.json").read_text())
    assert list(result) == ["Car", "Pedestrian", "Cyclist"]
    assert set(result["Car"]) >= {"bbox", "bev", "3d", "aos", "3d@0.5"}
    car = result["Car"]["3d"]
    assert car["count"] == [21, 21, 21]
    assert car["recall"] == pytest.approx([14 / 21] * 3)
    assert car["precision"] == [1, 1, 1]
    # 14 hits of 21 give 14 samples of the curve; R40 takes all but the first.
    assert car["R40"] == pytest.approx([100 * 13 / 40] * 3)
    assert result["Cyclist"]["bev"]["count"] == [0, 0, 0]
    assert not list((tmp_path / "made").glob(".*"))


def test_split_chooses_the_frames(folders, tmp_path):
    split = tmp_path / "val.txt"
    split.write_text("000001\n000000\n")
    done = run(*folders, "--split", split, "--json", tmp_path / "ap.json")
    assert done.returncode == 0, done.stderr
    car = json.loads((tmp_path / "ap.json").read_text())["Car"]
    assert car["3d"]["count"] == [14, 14, 14] and car["3d"]["recall"] == [1, 1, 1]
    split.write_text("000000\n000009\n")
    assert "000009.txt" in refused(*folders, "--split", split)
    assert "none.txt" in refused(*folders, "--split", tmp_path / "none.txt")


def test_mistakes_in_the_files_are_one_line(folders, tmp_path):
    result = folders[3] / "000001.txt"
    for text, told in [
        (cars(1, " 0.9").replace("Car", "Horse"), "'Horse'"),
        (cars(1), "no scores"),
        ("Car 0.0 0\n", "3 fields"),
        (cars(1, " high"), "'high'"),
        (cars(1, " nan"), "'nan'"),
    ]:
        result.write_text(text)
        line = refused(*folders)
        assert told in line and str(result) in line
    result.unlink()
    line = refused(*folders)
    assert str(result) in line and "one result file per frame" in line


def test_mistakes_in_the_command_are_told(folders, tmp_path):
    assert str(tmp_path / "none") in refused("--labels", tmp_path / "none", *folders[2:])
    assert str(tmp_path / "none") in refused(*folders[:2], "--detections", tmp_path / "none")
    (tmp_path / "empty").mkdir()
    assert "no label files" in refused("--labels", tmp_path / "empty", *folders[2:])
    for mixture in ([], folders[:2], ["w.safetensors"], [*folders, "w.safetensors"]):
        done = run(*mixture)
        assert done.returncode == 2 and "give WEIGHTS and" in done.stderr
    assert "no data set" in refused(tmp_path / "none.safetensors", "--root", tmp_path)
    (tmp_path / "training").mkdir()
    assert "none.safetensors" in refused(tmp_path / "none.safetensors", "--root", tmp_path)


def test_json_that_cannot_be_written_keeps_the_table(folders, tmp_path):
    (tmp_path / "file").write_text("")
    done = run(*folders, "--json", tmp_path / "file" / "ap.json")
    assert done.returncode == 2 and "Car, overlap 0.7" in done.stdout
    assert done.stderr.startswith("error: ")


def test_help_has_an_example():
    done = run("--help")
    assert done.returncode == 0 and "millisecond evaluate" in done.stdout


def test_as_a_process_it_exits_with_2_and_one_line(folders):
    (folders[3] / "000000.txt").unlink()
    process = WarmProcess([str(TOOL), *map(str, folders)], {})
    said, _ = process.communicate(timeout=60)
    assert process.returncode == 2
    assert said.count("\n") == 1 and said.startswith("error: ") and "000000.txt" in said


def test_weights_on_a_data_set_write_results_that_score_the_same(tmp_path):
    # An untrained network's scores are low: every box passes, so that the files have many.
    config = load_config(
        ROOT / "configs" / "second_small.yaml",
        ["postprocess.score=1e-6", "postprocess.after_nms=30"],
    )
    torch.manual_seed(0)
    model = build_second(config)
    for name, buffer in model.named_buffers():
        if name.endswith("running_var"):
            buffer.fill_(0.15)  # else all that a new network says is nearly the same
    torch.nn.init.normal_(model.head.classes.weight, std=0.03)
    save_weights(tmp_path / "small.safetensors", model, config)
    write_kitti_tree(tmp_path / "kitti", [1, 2], "val")
    done = run(
        *(tmp_path / "small.safetensors", "--root", tmp_path / "kitti", "--split", "val"),
        *("--output", tmp_path / "results", "--json", tmp_path / "ap.json", "--device", "cpu"),
    )
    assert done.returncode == 0, done.stderr
    assert "Car, overlap 0.7" in done.stdout
    files = sorted((tmp_path / "results").glob("*.txt"))
    assert len(files) == 2
    assert all(0 < len(path.read_text().splitlines()) <= 30 for path in files)
    scores = [float(line.split()[-1]) for line in files[0].read_text().splitlines()]
    assert len(set(scores)) > len({round(score, 4) for score in scores})  # four decimals tie
    again = run(
        *("--detections", tmp_path / "results", "--json", tmp_path / "again.json"),
        *("--labels", tmp_path / "kitti" / "training" / "label_2"),
    )
    assert again.returncode == 0, again.stderr
    first, second = (json.loads((tmp_path / n).read_text()) for n in ("ap.json", "again.json"))
    for name in first:
        for metric in first[name]:
            for figure, values in first[name][metric].items():
                assert second[name][metric][figure] == values
    gone = refused(tmp_path / "small.safetensors", "--root", tmp_path / "kitti", "--split", "odd")
    assert "odd.txt" in gone


def test_names_of_splits_beside_the_labels(tmp_path):
    labels, detections = tmp_path / "training" / "label_2", tmp_path / "results"
    for folder in (labels, detections, tmp_path / "ImageSets"):
        folder.mkdir(parents=True)
    for i in range(3):
        (labels / f"{i:06}.txt").write_text(cars(7))
        (detections / f"{i:06}.txt").write_text(cars(7, " 0.9"))
    (tmp_path / "ImageSets" / "val.txt").write_text("000001\n000002\n")
    folders = ["--labels", labels, "--detections", detections]
    counts = {}
    for split in ("val", "all"):
        done = run(*folders, "--split", split, "--json", tmp_path / "ap.json")
        assert done.returncode == 0, done.stderr
        counts[split] = json.loads((tmp_path / "ap.json").read_text())["Car"]["3d"]["count"][1]
    assert counts == {"val": 14, "all": 21}
    assert "test.txt: no such split" in refused(*folders, "--split", "test")
    assert "split '../val'" in refused(*folders, "--split", "../val")


def test_files_of_others_are_not_written_over(folders, tmp_path):
    (tmp_path / "mine.json").write_text('{"weights": [1, 2]}')
    assert "mine.json: already exists" in refused(*folders, "--json", tmp_path / "mine.json")
    assert (tmp_path / "mine.json").read_text() == '{"weights": [1, 2]}'
    config = load_config(ROOT / "configs" / "second_small.yaml")
    save_weights(tmp_path / "small.safetensors", build_second(config), config)
    write_kitti_tree(tmp_path / "kitti", [1], "val")
    labels = tmp_path / "kitti" / "training" / "label_2"
    before = {path.name: path.read_bytes() for path in labels.iterdir()}
    network = tmp_path / "small.safetensors", "--root", tmp_path / "kitti", "--device", "cpu"
    assert "is among the files of the data set" in refused(*network, "--output", labels)
    copied = shutil.copytree(labels, tmp_path / "copied")
    assert "000001.txt is labels, not results" in refused(*network, "--output", copied)
    assert {path.name: path.read_bytes() for path in labels.iterdir()} == before
