"""millisecond evaluate without a camera: folders of plain files, result files, what it writes."""

import json

import numpy as np
import pytest

from millisecond.detector.draw.png import is_own
from millisecond.tools.evaluate import main
from tests.helpers.judged_results import STRANGER, write_judged_results, write_results
from tests.helpers.kitti_miniature import CAR, IDS, PEDESTRIAN


@pytest.fixture
def judged(root, tmp_path):
    """The miniature data set, results with known errors, and how to score them."""
    results = write_judged_results(tmp_path / "results")
    (root / "ImageSets" / "most.txt").write_text("\n".join(IDS))
    return ["--detections", str(results), "--root", str(root), "--split", "most"]


@pytest.fixture
def folder(tmp_path):
    """A data set of plain files: two frames, a car and a person in each, 40 points in each car."""
    root, rng = tmp_path / "mine", np.random.default_rng(0)
    for name in ("points", "labels", "ImageSets"):
        (root / name).mkdir(parents=True)
    lines = [" ".join(map(str, (*box, kind))) for box, kind in ((CAR, "Car"), (PEDESTRIAN, "Man"))]
    for frame in ("a", "b"):
        points = rng.uniform((-20, -20, -2, 0), (40, 20, 0, 1), (500, 4))
        points[:40, :3] = rng.uniform(-0.4, 0.4, (40, 3)) * CAR[3:6] + CAR[:3]
        np.save(root / "points" / f"{frame}.npy", points.astype(np.float32))
        (root / "labels" / f"{frame}.txt").write_text("\n".join(lines))
    (root / "ImageSets" / "val.txt").write_text("a\nb\n")
    return root


def test_known_errors_in_result_files(judged, tmp_path, capsys):
    ap, picture = tmp_path / "ap.json", tmp_path / "curves.png"
    asked = ("--json", str(ap), "--curves", str(picture), "--rings", "15", "--sensor-report")
    assert main([*judged, *asked]) == 0
    table = capsys.readouterr().out
    shown = table.partition("what the sensor shows")[2].splitlines()
    assert [line.split()[1] for line in shown if line.strip().startswith("all ")] == ["4", "4"]
    assert max(map(len, table.splitlines())) <= 100
    assert "Car, overlap 0.7" in table and "15+ m" in table and "worst frame" in table
    result = json.loads(ap.read_text())
    rows = {row["low"]: (row["boxes"], row["right"]) for row in result["reliability"]["Car"]}
    assert rows == {0.1: (1, 0), 0.5: (1, 0), 0.9: (3, 2 / 3)}  # the displaced one scores 0.9
    cars, people = (result["classes"][name] for name in ("Car", "Pedestrian"))
    # of four cars one is missed and one displaced: two right of four found with a score of 0.5
    assert cars["all"]["count"] == 4 and cars["0-15 m"]["count"] == 0
    assert cars["all"]["3d@0.7"]["recall"] == 2 / 4
    assert cars["all"]["3d@0.7"]["precision"] == 2 / 4
    assert cars["all"]["centre"]["0.5"] < cars["all"]["centre"]["2"]  # displaced by a metre
    assert people["0-15 m"]["3d@0.5"]["recall"] == 3 / 4
    assert people["0-15 m"]["3d@0.5"]["precision"] == 1
    frames = {row["frame"]: (row["missed"], row["false"]) for row in result["worst"]}
    assert frames == {IDS[1]: (0, 1), IDS[2]: (2, 0), IDS[3]: (1, 1)}
    assert next(iter(frames)) == IDS[2]
    assert is_own(picture)
    assert main([*judged, "--json", str(ap), "--overlap", "0.3", "Car=0.5,0.6"]) == 0
    cars = json.loads(ap.read_text())["classes"]["Car"]["all"]
    assert cars["3d@0.5"]["recall"] == 3 / 4 and cars["3d@0.6"]["recall"] == 2 / 4


def test_weights_on_plain_files_write_results_that_score_the_same(
    folder, untrained, tmp_path, capsys
):
    first, again = tmp_path / "first.json", tmp_path / "again.json"
    common = ["--root", str(folder), "--json"]
    written = ["--output", str(tmp_path / "results")]
    assert main([str(untrained), "--device", "cpu", *common, str(first), *written]) == 0
    assert "Car, overlap 0.7" in capsys.readouterr().out
    files = ["--detections", str(tmp_path / "results"), "--classes", "Car"]
    assert main([*files, *common, str(again)]) == 0
    result = json.loads(first.read_text())
    assert result == json.loads(again.read_text())
    assert result["classes"]["Car"]["all"]["count"] == 2
    assert result["confusion"]["rows"] == ["Car", "nothing"]  # no point is on a person


def test_a_class_that_nobody_names_is_told(judged, capsys):
    assert main([*judged, "--classes", "car", "Pedestrian"]) == 0
    said = capsys.readouterr().err
    assert said.count("note:") == 1
    assert "nor results name 'car'; the nearest legal name is 'Car'" in said


def test_all_classes_of_labels_and_results_are_scored(folder, tmp_path, capsys):
    results = {"a": [(CAR, 0.9, "Car"), (STRANGER, 0.4, "Lorry")], "b": []}
    write_results(tmp_path / "results", results)
    files = ["--detections", str(tmp_path / "results"), "--root", str(folder)]
    assert main([*files, "--json", str(tmp_path / "ap.json")]) == 0
    assert list(json.loads((tmp_path / "ap.json").read_text())["classes"]) == [
        *("Car", "Lorry", "Man")
    ]
    assert "note: Man: no result names it" in capsys.readouterr().err
    assert main([*files, "--classes", "Man", "Car"]) == 0
    assert capsys.readouterr().err.count("note: Man: no result names it") == 1
    (tmp_path / "results" / "b.json").unlink()
    assert main(files) == 2 and "b.txt: no such file" in capsys.readouterr().err
    write_results(tmp_path / "results", {"a": [], "b": []})
    for frame in ("a", "b"):
        (folder / "labels" / f"{frame}.txt").write_text("")
    assert main(files) == 2 and "name a class" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("more", "told"),
    [
        (["--overlap", "Cart=0.5"], "unknown class; the nearest legal name is 'Car'"),
        (["--overlap", "1.5"], "'1.5' is not between 0 and 1"),
        (["--rings", "30", "20"], "--rings 30 20: give distances in metres, ascending"),
        (["--points", "1"], "--points 1: give numbers of points over 1"),
        (["--split", "odd"], "odd.txt"),
        (["--json", __file__], "already exists"),
        (["--curves", __file__], "is not a picture of this program"),
    ],
)
def test_mistakes_are_one_line(judged, capsys, more, told):
    assert main([*judged, *more]) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert line.startswith("error: ") and told in line


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--detections", "d", "--labels", "l", "--metric", "lidar"], "give --root"),
        (["--detections", "d", "--root", "r", "--metric", "kitti"], "with --labels"),
        (["--detections", "d", "--labels", "l", "--rings", "3"], "--rings goes with"),
        (["w", "--root", "r", "--classes", "Car"], "weights know theirs"),
        (["w", "--root", "r", "--labels", "l"], "give WEIGHTS and --root"),
    ],
)
def test_arguments_that_do_not_go_together(arguments, told, capsys):
    with pytest.raises(SystemExit):
        main(arguments)
    assert told in capsys.readouterr().err
