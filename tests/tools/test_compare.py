"""The comparison of two sets of scans as a program: its files, its figures, its one-line errors."""

import json

import numpy as np
import pytest
from PIL import Image

from millisecond.data.checks.comparison import FigureRow, Verdict
from millisecond.data.checks.sensor import Mounting
from millisecond.data.simulator import simulate, write_kitti_tree
from millisecond.data.simulator.sensors import find_sensor
from millisecond.tools import compare


def test_streets_are_like_themselves(tmp_path, capsys):
    root = tmp_path / "tree"
    write_kitti_tree(root, [0, 1], "all_of_them")
    output = tmp_path / "output"
    assert compare.main([str(root), "street:0-1", "--output", str(output)]) == 0
    out = capsys.readouterr().out
    assert out.startswith("scans: ") and max(map(len, out.splitlines()[:4])) <= 100
    counted = next(line for line in out.splitlines() if line.startswith("scans: "))
    within, of = counted.split(": ")[-1].split(" of ")
    assert within == of and " *" not in out
    written = json.loads((output / "comparison.json").read_text())
    a, b, _ = written["tables"]["scan"]["points"]
    assert a == b == np.mean([len(simulate(seed).points) for seed in (0, 1)])
    assert written["told apart"] is None
    with Image.open(output / "comparison.png") as sheet:
        left, right = np.split(np.asarray(sheet)[40:400, 4:-4], 2, axis=1)
    assert (left.std(axis=2) > 20).mean() > 0.05  # points in colour
    shift = 8 // 2  # half of the gap between the two pictures
    np.testing.assert_array_equal(left[:, shift : shift + 800], right[:, shift : shift + 800])


def test_folders_need_no_labels(tmp_path):
    for name, seeds in (("a", (0, 1)), ("b", (2,))):
        (tmp_path / name).mkdir()
        for seed in seeds:
            np.save(tmp_path / name / f"{seed}.npy", simulate(seed).points)
    folders = [str(tmp_path / name) for name in "ab"]
    assert compare.main([*folders, "--output", str(tmp_path)]) == 0
    tables = json.loads((tmp_path / "comparison.json").read_text())["tables"]
    assert "points per object" not in tables and len(tables["rings"]) == 9


def test_streets_are_seen_by_the_sensor():
    sensor = find_sensor("vlp-16")
    (read,) = compare.open_set("street:3", "all", sensor, (), Mounting())
    np.testing.assert_array_equal(read().points, simulate(3, sensor=sensor).points)


def test_what_is_close_by_hand():
    """Of rows that count, those within 20 %; beams that neither set has are not shown."""
    values = ("rings", 100, 110), ("rings", 0.5, 0), ("heights", 10, 30), ("beams", 7, 7)
    rows = [FigureRow(table, f"{a} points", a, b, (2, 2)) for table, a, b in values]
    told = next(compare.judgement(rows, Verdict(0.5, ()), 2, 3))
    assert told == "scans: 2 and 3; counts within 20 %: 2 of 3"
    lines = [line.split() for line in "\n".join(compare.table(rows)).splitlines() if line]
    assert ["10", "points", "10", "30", "3", "*"] in lines
    assert ["100", "points", "100", "110", "1.1"] in lines
    assert ["beams", "A", "B", "B", "/", "A"] in lines and not any("7" in line for line in lines)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["street:5-2", "street:0"], "street:5-2: give numbers"),
        (["street:5-0", "street:0"], "street:5-0: give numbers"),
        (["street:0", "street:x"], "street:x: give numbers"),
        (["street:0", "nowhere"], "nowhere: no such file or folder"),
        (["street:0", "street:1", "--sensor", "hdl-64"], "'hdl-64e'"),
    ],
)
def test_mistakes_get_one_line(tmp_path, capsys, monkeypatch, arguments, said):
    monkeypatch.chdir(tmp_path)
    assert compare.main([*arguments, "--output", "out"]) == 2
    err = capsys.readouterr().err
    assert said in err and err.count("\n") == 1
    assert not list(tmp_path.rglob("comparison*"))
