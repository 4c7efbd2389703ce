"""millisecond visualize says what is missed and false, and shows the worst frames first."""

import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from millisecond.data.boxes import NamedDetections
from millisecond.data.calibration import Calibration
from millisecond.data.kitti.labels import read_labels, write_labels
from millisecond.data.kitti.results import detections_to_labels
from millisecond.data.metric.kitti import MIN_OVERLAP, OPERATING_SCORE, evaluate
from millisecond.data.simulator import write_kitti_tree
from millisecond.detector.draw.objects import object_rows
from millisecond.detector.draw.sheets import RIGHT
from millisecond.detector.draw.style import VERDICT_COLOURS, Palette, Shown
from millisecond.tools import visualize
from millisecond.tools.visualize import Browser, keys_of
from millisecond.tools.visualizing import Content
from tests.helpers.judged_results import STRANGER, write_judged_results, write_results
from tests.helpers.kitti_miniature import CAR, IDS, PEDESTRIAN, write_miniature

CROWDED = (6, 8, 22, 29, 33, 38, 65, 68, 81, 102)  # streets with objects of all classes
ALONE = ["--no-detections"]


@pytest.fixture
def judged(tmp_path, plain):
    """Arguments for a data set and results with known errors."""
    root, found = tmp_path / "kitti", tmp_path / "found"
    return ["--root", str(write_miniature(root)), "--detections", str(write_judged_results(found))]


def ranking(folder: Path) -> list[dict]:
    return json.loads((folder / "ranking.json").read_text())["worst_first"]


def painted(path: Path, verdict: str) -> int:
    """Pixels of the colour of a verdict in the plot: the legend below has them too."""
    with Image.open(path) as image:
        picture = np.asarray(image).astype(int)[:-90]
    return int((np.abs(picture - VERDICT_COLOURS[verdict]).max(axis=2) <= 2).sum())


def test_the_worst_frames_come_first(tmp_path, judged, capsys):
    arguments = [*judged, "--order", "worst", "--pictures", "contact"]
    assert visualize.main([*arguments, "--output", str(tmp_path / "out")]) == 0
    ranks = ranking(tmp_path / "out")
    assert [row["frame"] for row in ranks] == [IDS[2], IDS[3], IDS[1], IDS[0]]
    assert [row["badness"] for row in ranks] == pytest.approx([2.0, 1.9, 0.5, 0.0])
    assert [(row["matched"], row["missed"], row["false"]) for row in ranks] == [
        (0, 2, 0),
        (1, 1, 1),
        (2, 0, 1),
        (2, 0, 0),
    ]
    printed = [line.split()[0] for line in capsys.readouterr().out.splitlines()[1:5]]
    assert printed == [row["frame"] for row in ranks]
    assert (tmp_path / "out" / "contact_sheet.png").is_file()
    # A metre off: 3 of 5 metres are shared.
    loose = [*arguments, "--overlap", "0.59", "--metric", "bev"]
    assert visualize.main([*loose, "--output", str(tmp_path / "loose")]) == 0
    assert ranking(tmp_path / "loose")[2]["missed"] == 0
    tight = [*arguments, "--overlap", "0.61", "--metric", "bev"]
    assert visualize.main([*tight, "--output", str(tmp_path / "tight")]) == 0
    assert ranking(tmp_path / "tight")[1]["missed"] == 1


def test_errors_have_colours_and_crosses_where_they_are(tmp_path, judged):
    out = str(tmp_path / "error")
    assert visualize.main([*judged, "--boxes", "error", "--output", out]) == 0
    out = str(tmp_path / "class")
    assert visualize.main([*judged, "--frames", IDS[2], "--output", out]) == 0
    seen = {
        name: [painted(tmp_path / "error" / f"{name}_birds_eye.png", v) for v in VERDICT_COLOURS]
        for name in IDS
    }
    right, false, nothing, displaced = (np.array(seen[name]) for name in IDS)
    assert right[0] > 50 and not right[1:3].any()
    assert false[2] > 50 and not false[1]
    assert nothing[1] > 10 and not nothing[[0, 2]].any()
    assert (displaced[:3] > 10).all()
    assert not painted(tmp_path / "class" / f"{IDS[2]}_birds_eye.png", "missed")
    camera = [tmp_path / "error" / f"{name}_camera.png" for name in IDS]
    assert painted(camera[1], "false") > painted(camera[0], "false")


def test_a_file_that_is_no_ranking_stays(tmp_path, judged, capsys):
    (tmp_path / "ranking.json").write_text('{"precious": 1}')
    assert visualize.main([*judged, "--order", "worst", "--output", str(tmp_path)]) == 2
    assert "ranking.json" in capsys.readouterr().err
    assert (tmp_path / "ranking.json").read_text() == '{"precious": 1}'


def test_one_class_found_is_one_class_judged(tmp_path, plain):
    root = write_miniature(tmp_path / "kitti")
    found = write_results(tmp_path / "found", {name: [(CAR, 0.9, "Car")] for name in IDS})
    arguments = ["--root", str(root), "--detections", str(found), "--order", "worst"]
    assert visualize.main([*arguments, "--output", str(tmp_path)]) == 0
    assert {row["missed"] for row in ranking(tmp_path)} == {0}


def test_the_ranking_agrees_with_the_evaluation_on_simulated_streets(tmp_path, plain):
    """Detections are labels with noise, in KITTI's own files."""
    root, results, rng = tmp_path / "streets", tmp_path / "results", np.random.default_rng(0)
    write_kitti_tree(root, CROWDED, "val")
    results.mkdir()
    truths, detections = [], []
    for path in sorted((root / "training" / "label_2").glob("*.txt")):
        camera = Calibration.from_file(root / "training" / "calib" / path.name)
        truth = read_labels(path)
        objects = truth.select(truth.types != "DontCare")
        boxes = camera.boxes_from_camera(objects.boxes)
        boxes = boxes + rng.normal(0, 0.15, boxes.shape) * [2, 1, 0.5, 1, 0.5, 0.5, 0.5]
        keep = (rng.uniform(0, 1, len(boxes)) < 0.8) & np.isin(objects.types, [*MIN_OVERLAP])
        named = NamedDetections(boxes, rng.uniform(0, 1, len(boxes)), objects.types.tolist())
        found = detections_to_labels(named.select(np.flatnonzero(keep)), camera, (375, 1242))
        write_labels(results / path.name, found)
        truths.append(truth)
        detections.append(read_labels(results / path.name))
    arguments = ["--root", str(root), "--detections", str(results), "--order", "worst"]
    arguments += ["--score", str(OPERATING_SCORE), "--pictures", "contact"]
    for metric in ("3d", "bev"):
        out = tmp_path / metric
        assert visualize.main([*arguments, "--metric", metric, "--output", str(out)]) == 0
        figures = evaluate(detections, truths)
        hits = false = 0.0
        for name in MIN_OVERLAP:
            hard = {key: values[2] for key, values in figures[name][metric].items()}
            own = hard["recall"] * hard["count"]
            hits += own
            false += own / hard["precision"] - own
        rows = ranking(out)
        assert sum(row["matched"] for row in rows) == pytest.approx(hits) and hits > 10
        assert sum(row["false"] for row in rows) == pytest.approx(false) and false > 5


def test_the_table_has_errors_first_and_each_object_once():
    points = np.array([[20.0, 0, -0.85, 0.5], [19.5, 0.2, -0.9, 0.5], [30, 8, -0.85, 0.1]])
    palette = Palette()
    truth = palette.paint(np.array([CAR, PEDESTRIAN]), ("Car", "Pedestrian"))
    found = palette.paint(np.array([CAR, STRANGER]), ("Car", "Car"), np.array([0.9, 0.4]))
    truth = truth.judged(("matched", "missed"), None, False)
    found = found.judged(("matched", "false"), np.array([1.0, np.nan]), False)
    rows = object_rows(Shown(points, truth, found))
    assert [(row.name, row.verdict, row.points) for row in rows] == [
        ("Pedestrian", "missed", 0),
        ("Car", "false", 1),
        ("Car", "matched", 2),
    ]
    assert rows[1].distance == pytest.approx(np.hypot(30, 8))
    unjudged = Shown(points, None, found._replace(verdicts=()))
    assert [row.verdict for row in object_rows(unjudged)] == [
        "detection",
        "detection",
    ]


def test_a_sheet_has_everything_beside_the_birds_eye_view(tmp_path, judged):
    arguments = ["--frames", IDS[1], "--pictures", "sheets", "--boxes", "error"]
    assert visualize.main([*judged, *arguments, "--output", str(tmp_path / "out")]) == 0
    (path,) = (tmp_path / "out").iterdir()
    assert path.name == f"{IDS[1]}_sheet.png"
    with Image.open(path) as image:
        picture = np.asarray(image).astype(int)
    right = picture[:, -RIGHT:]
    high = round(1280 / 1224 * 370)
    assert (np.abs(right[: high - 1, 100] - 0).max(axis=1) < 3).mean() > 0.5  # the black image
    table = right[high + 90 :]
    for verdict in ("matched", "false"):
        assert (np.abs(table - VERDICT_COLOURS[verdict]).max(axis=2) == 0).sum() >= 100, verdict


def test_pictures_start_where_they_are_told(tmp_path, judged):
    assert visualize.main([*judged, "--start", IDS[2], "--output", str(tmp_path / "out")]) == 0
    written = {path.name[:6] for path in (tmp_path / "out").iterdir()}
    assert written == set(IDS[2:])


def test_a_frame_that_cannot_be_judged_is_told_and_comes_last(tmp_path, judged, capsys):
    (tmp_path / "found" / f"{IDS[3]}.json").write_text("{")
    arguments = [*judged, "--order", "worst", "--output", str(tmp_path / "out")]
    assert visualize.main(arguments) == 2
    assert IDS[3] in capsys.readouterr().err
    assert [row["frame"] for row in ranking(tmp_path / "out")] == [IDS[2], IDS[1], IDS[0]]


def test_keys_that_judge_are_there_only_where_it_can_be_judged():
    def keys(judged):
        source = SimpleNamespace(names=("a", "b"), judged=judged, classes=("Car",))
        return set(keys_of(SimpleNamespace(source=source)))

    assert keys(True) - keys(False) == {"n, b", "e"}  # the first asked is not kept for the second


def test_numbers_hide_classes_and_between_two_times_enter_lead_to_a_scan():
    shown, keys = [], ["2", "enter", "1", "0", "backspace", "enter", "2", "0", "q"]
    boxes = Palette(("Car", "Pedestrian")).paint(np.zeros((2, 7)), ("Car", "Pedestrian"))

    def content(place, _):
        return Content(None, Shown(ground_truth=boxes, detections=boxes, title=f"at {place}"))

    source = SimpleNamespace(classes=("Car", "Pedestrian"), names="abc")
    studio = SimpleNamespace(
        source=source, content_or_reason=content, account=SimpleNamespace(close=lambda _: 0)
    )
    window = SimpleNamespace(open=True, show=shown.append)

    def wait():
        window.open = len(keys) > 1
        return [keys.pop(0)]

    window.wait = wait
    Browser(studio, window, None, Path(), [0, 1, 2], None).browse(2, False)
    titles = [one.title.split("     ") for one in shown]
    assert [title[0] for title in titles] == ["at 2"] * 6 + ["at 0"] * 2
    assert [title[2:] for title in titles[2:6]] == [
        [f"go to {typed}"] for typed in ("...", "1", "10", "1")
    ]
    hidden = [one.figures.get("hidden") for one in shown]
    assert hidden == [None, *["Pedestrian"] * 6, None]
    for one, without in zip(shown, hidden, strict=True):
        names = ("Car", "Pedestrian") if without is None else ("Car",)
        assert one.detections.names == one.ground_truth.names == names
        assert len(one.detections.boxes) == len(one.detections.colours) == len(names)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([*ALONE, "{root}/training/velodyne/000002.bin", "--boxes", "error"], "--root"),
        ([*ALONE, "--root", "{root}", "--colour", "error"], "leave out --no-detections"),
        ([*ALONE, "--root", "{root}", "--order", "worst"], "leave out --no-detections"),
        ([*ALONE, "--root", "{root}", "--overlap", "0.5"], "needs detections"),
        (["--root", "{bare}", "--detections", "{tmp}/found", "--metric", "bev"], "no labels"),
        ([*ALONE, "--root", "{root}", "--start", "000003"], "000002 to 000011"),
        (["--root", "{root}", "--detections", "{tmp}/others", "--order", "worst"], "000002.json"),
    ],
)
def test_errors_that_cannot_be_known_get_one_line(tmp_path, judged, capsys, arguments, said):
    bare = write_miniature(tmp_path / "bare") / "training"
    for path in sorted((bare / "label_2").iterdir()):
        path.unlink()
    (bare / "label_2").rmdir()
    drive = tmp_path / "drive"
    drive.mkdir()
    (bare / "velodyne").rename(drive / "velodyne_reduced")
    (bare / "calib" / "000002.txt").rename(drive / "calib.txt")
    write_results(tmp_path / "others", {"999999": []})
    filled = [a.format(tmp=tmp_path, root=tmp_path / "kitti", bare=drive) for a in arguments]
    assert visualize.main([*filled, "--output", str(tmp_path / "out")]) == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1 and said in lines[0] and lines[0].startswith("error:")


@pytest.mark.parametrize("value", ["0", "1", "nan", "x"])
def test_an_overlap_is_between_0_and_1(value, capsys):
    with pytest.raises(SystemExit) as end:
        visualize.main(["scan.bin", "--overlap", value])
    assert end.value.code == 2 and f"'{value}'" in capsys.readouterr().err
