"""The benchmarks of kernels run, and what they compare is equal."""

import json

import pytest

from millisecond.ops.lab.dense_conv3d import RUNGS
from millisecond.ops.lab.dense_times import Problem
from millisecond.tools.bench import main

pytestmark = pytest.mark.gpu
DENSE3D = "millisecond.ops.lab.dense_times"


def test_sampling(tmp_path, monkeypatch):
    monkeypatch.setattr("millisecond.tools.benchmarks.points.SAMPLES_OF", ((20, 300), (10, 5000)))
    path = tmp_path / "sampling.json"
    assert main(["sampling", "--repeats", "2", "--json", str(path)]) == 0
    rows = json.loads(path.read_text())["rows"]
    assert [row["engine"] for row in rows] == ["millisecond", "PointNet++"] * 4
    assert all(0 < row["least_ms"] <= row["median_ms"] <= row["p99_ms"] for row in rows)


def test_points(tmp_path, monkeypatch):
    monkeypatch.setattr("millisecond.tools.benchmarks.points.SIZES", ((2, 3000, 200),))
    path = tmp_path / "points.json"
    assert main(["points", "--count", "1", "--repeats", "1", "--json", str(path)]) == 0
    rows = json.loads(path.read_text())["rows"]
    assert [row["engine"] for row in rows] == ["millisecond", "PointNet++"] * 8
    assert all(0 < row["least_ms"] <= row["median_ms"] <= row["most_ms"] for row in rows)


def test_operators(tmp_path):
    path = tmp_path / "operators.json"
    assert main(["operators", "--count", "1", "--repeats", "2", "--json", str(path)]) == 0
    rows = json.loads(path.read_text())["rows"]
    assert {"voxelize", "conv 64-64 and backward", "NMS of 4096 boxes"} <= {r["name"] for r in rows}
    assert all(row["median_ms"] > 0 for row in rows)


def test_ladder(tmp_path, capsys):
    path = tmp_path / "ladder.json"
    assert main(["ladder", "--count", "1", "--json", str(path)]) == 0
    layers = json.loads(path.read_text())["layers"]
    assert layers[0]["layer"] == "0 4-16" and layers[0]["naive fp32"] > 0
    assert "tensor fp32" in capsys.readouterr().out


def test_train(tmp_path, monkeypatch):
    monkeypatch.setattr("millisecond.tools.bench.STREETS", 2)
    path, brief = tmp_path / "train.json", ["--repeats", "2", "--precision", "fp16"]
    arguments = ["train", "--config", "configs/second_small.yaml", *brief, "--json", str(path)]
    assert main([*arguments, "--set", "train.workers=0"]) == 0
    (row,) = json.loads(path.read_text())["steps"]
    parts = [row[name] for name in row if name.endswith(", ms")]
    assert len(parts) == 9 and min(parts) > 0
    assert row["of it the host's own work, ms"] < row["whole step, ms"]


def test_bev(tmp_path):
    path = tmp_path / "bev.json"
    assert main(["bev", "--count", "1", "--batch", "1", "2", "--json", str(path)]) == 0
    result = json.loads(path.read_text())
    assert {"256-128", "up 256-256, heads"} <= {row["step"] for row in result["steps"]}
    assert all(row["rows_ms"] > 0 and row["cudnn_ms"] > 0 for row in result["whole"])


def test_dense3d(tmp_path, monkeypatch):
    monkeypatch.setattr(f"{DENSE3D}.SINGLE", [Problem(1, 5, (20, 20, 40))])
    monkeypatch.setattr(f"{DENSE3D}.WIDE", [Problem(16, 3, (9, 10, 33))])
    monkeypatch.setattr(f"{DENSE3D}.GRID", (8, 16, 20))
    path, plot = tmp_path / "dense3d.json", tmp_path / "dense3d.png"
    assert main(["dense3d", "--json", str(path), "--plot", str(plot)]) == 0
    result = json.loads(path.read_text())
    assert [row["channels"] for row in result["dense"]] == [1, 1, 16, 16]
    assert all(row[name] > 0 for row in result["dense"] for name in (*RUNGS, "cuDNN"))
    assert {row["precision"] for row in result["crossings"]} == {"fp32", "fp16"}
    assert plot.is_file()
