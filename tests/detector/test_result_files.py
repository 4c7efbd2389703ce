"""Results in .json files: what is not a result is named in one line."""

import json

import numpy as np
import pytest

from millisecond.data.calibration import Calibration
from millisecond.data.kitti.results import MARK
from millisecond.detector.detection_files import (
    find_detections,
    read_detections,
    read_result,
    run_of,
    scans_in,
)
from millisecond.detector.detection_table import (
    TableRows,
    join_tables,
    read_table,
    told_by,
    write_table,
)
from tests.helpers.kitti_miniature import CALIBRATION

GOOD = {"boxes": [[10, 0, -1, 4, 2, 1.5, 0]], "scores": [0.5], "names": ["Car"]}
READERS = (
    lambda path: read_detections(path.parent, path.stem, None),
    lambda path: read_result(path)[0],
)


@pytest.mark.parametrize("read", READERS)
def test_wrong_values_are_a_mistake(tmp_path, read):
    path = tmp_path / "a.json"
    path.write_text(json.dumps(GOOD))
    np.testing.assert_allclose(read(path).boxes, GOOD["boxes"])
    for wrong in (
        {"scores": [[0.5]]},
        {"scores": 0.5},
        {"scores": ["0_0"]},
        {"boxes": [["1_0", 0, -1, 4, 2, 1.5, 0]]},
        {"scores": [0.5, 0.5]},
        {"scores": [float("nan")]},
        {"names": 1},
        {"boxes": [[10**400, 0, -1, 4, 2, 1.5, 0]]},
        *({"boxes": [[10, 0, -1, *size, 0]]} for size in ((0, 2, 1), (4, 0, 1), (4, 2, 0))),
        {"boxes": [[10, 0, -1, 4]]},
        {"velocities": [[1, 2], [3, 4]]},
        {"velocities": [[1, float("inf")]]},
    ):
        path.write_text(json.dumps(GOOD | wrong))
        with pytest.raises(ValueError, match=r"\A[^\n]*a.json: not a result of millisecond detect"):
            read(path)


@pytest.mark.parametrize("ids", [[1, 2, 3], [0, 1], [1.0, 2.0], [[1], [2]], [7, 7], 1])
def test_wrong_ids_are_a_mistake(tmp_path, ids):
    path = tmp_path / "a.json"
    two = {key: value * 2 for key, value in GOOD.items()}
    path.write_text(json.dumps(two | {"ids": [7, 1]}))
    assert read_result(path).ids.tolist() == [7, 1]
    path.write_text(json.dumps(two | {"ids": ids}))
    with pytest.raises(ValueError, match=r"a.json: not a result of millisecond detect"):
        read_result(path)


def test_labels_are_no_results(tmp_path):
    """A line of KITTI's without a score."""
    (tmp_path / "a.txt").write_text("Car 0 0 0 0 0 1 1 1.5 2 4 1 1.6 10 0\n")
    (tmp_path / "calib.txt").write_text(CALIBRATION)
    calibration = Calibration.from_file(tmp_path / "calib.txt")
    with pytest.raises(ValueError, match=r"a.txt: its lines have no score"):
        read_detections(tmp_path, "a", calibration)
    (tmp_path / "a.txt").write_text("")
    nothing = read_detections(tmp_path, "a", calibration)
    assert nothing.boxes.shape == (0, 7) and nothing.scores.shape == (0,) and not nothing.names


def test_a_folder_and_a_table_tell_of_their_run(tmp_path):
    pytest.importorskip("pyarrow")
    run, table = {"weights": "0123"}, tmp_path / "all.parquet"
    assert run_of(tmp_path) == {}
    for text in ("", "no JSON", "[1]"):
        (tmp_path / MARK).write_text(text)
        assert run_of(tmp_path) == {}
    (tmp_path / MARK).write_text(json.dumps(run) + "\na.json\n")
    write_table(tmp_path / "1.parquet", [], [])
    assert run_of(tmp_path) == run and run_of(tmp_path / "1.parquet") == {}
    join_tables([tmp_path / "1.parquet"], table, run)
    assert run_of(table) == run
    with pytest.raises(FileNotFoundError, match=r"all.parquet: no results of"):
        scans_in(table)
    with pytest.raises(FileNotFoundError, match=r"all.parquet: no detections of any of the frames"):
        find_detections(table, ["a"])


def test_a_table_with_a_wrong_number_is_a_mistake(tmp_path):
    pytest.importorskip("pyarrow")
    (tmp_path / "a.json").write_text(json.dumps(GOOD))
    found = read_result(tmp_path / "a.json").found
    wrong = TableRows("a", 0, found._replace(scores=np.array([np.nan])))
    write_table(tmp_path / "all.parquet", [wrong], [])
    with pytest.raises(ValueError, match=r"\A[^\n]*all.parquet: not a table of millisecond detect"):
        read_table(tmp_path / "all.parquet")


def test_velocities_go_through_files_and_tables(tmp_path):
    pytest.importorskip("pyarrow")
    (tmp_path / "a.json").write_text(json.dumps(GOOD | {"velocities": [[1.5, -2]]}))
    found = read_result(tmp_path / "a.json").found
    assert found.velocities.tolist() == [[1.5, -2]]
    parts, table = [tmp_path / f"{part}.parquet" for part in (1, 2)], tmp_path / "all.parquet"
    write_table(parts[0], [], ["bad.bin"])
    rows = [TableRows("a", 0, found), TableRows("none", 1, found.select([]))]
    write_table(parts[1], rows, [])
    assert join_tables(parts, table, {}) == ["bad.bin"]
    assert told_by(table)["empty"] == [["none", 1]]
    again = read_table(table)
    assert again["a"][0].velocities.tolist() == [[1.5, -2]]
    np.testing.assert_array_equal(again["a"][0].boxes, GOOD["boxes"])
    assert again["none"][0].velocities is None
    write_table(
        tmp_path / "still.parquet", [TableRows("a", 0, found._replace(velocities=None))], []
    )
    assert read_table(tmp_path / "still.parquet")["a"][0].velocities is None
