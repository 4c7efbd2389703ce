"""Results in .json files: what is not a result is named in one line."""

import json

import numpy as np
import pytest

from millisecond.detector.detection_files import read_detections, read_result
from millisecond.detector.detection_table import (
    TableRows,
    join_tables,
    read_table,
    write_table,
)

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


def test_velocities_go_through_files_and_tables(tmp_path):
    pytest.importorskip("pyarrow")
    (tmp_path / "a.json").write_text(json.dumps(GOOD | {"velocities": [[1.5, -2]]}))
    found = read_result(tmp_path / "a.json").found
    assert found.velocities.tolist() == [[1.5, -2]]
    write_table(tmp_path / "1.parquet", [], ["bad.bin"])
    rows = [TableRows("a", 0, found), TableRows("none", 1, found.select([]))]
    write_table(tmp_path / "2.parquet", rows, [])
    parts = [tmp_path / f"{part}.parquet" for part in (1, 2)]
    assert join_tables(parts, tmp_path / "all.parquet", {}) == ["bad.bin"]
    again = read_table(tmp_path / "all.parquet")
    assert again["a"][0].velocities.tolist() == [[1.5, -2]]
    np.testing.assert_array_equal(again["a"][0].boxes, GOOD["boxes"])
    assert again["none"][0].velocities is None
    write_table(
        tmp_path / "still.parquet", [TableRows("a", 0, found._replace(velocities=None))], []
    )
    assert read_table(tmp_path / "still.parquet")["a"][0].velocities is None
