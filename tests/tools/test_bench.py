import json
from pathlib import Path

import pytest
import torch

from millisecond.tools.bench import main

STAGES = ["voxelize", "encoder", "BEV network", "postprocess", "points to boxes"]  # on a CPU


def test_network(tmp_path, capsys):
    path = tmp_path / "network.json"
    brief = ["--config", "configs/second_small.yaml", "--count", "1", "--repeats", "2"]
    assert main(["network", *brief, "--device", "cpu", "--json", str(path)]) == 0
    result = json.loads(path.read_text())
    rows = {row["stage"]: row for row in result["stages"]}
    assert [stage for stage in rows if not stage.startswith("encoder of")] == STAGES
    for row in rows.values():
        assert 0 < row["fastest_scan_ms"] <= row["slowest_scan_ms"] <= row["p99_ms"]
    assert len(result["boxes"]) == 1
    printed = capsys.readouterr().out
    assert result["device"] in printed and all(stage in printed for stage in STAGES)


def test_scans_have_the_columns_of_the_network(tmp_path):
    config, columns = tmp_path / "ring.yaml", "[x, y, z, intensity, ring]"
    small = Path("configs/second_small.yaml").read_text()
    config.write_text(f"{small}\npoints: {{columns: {columns}, features: {columns}}}\n")
    once = ["--config", str(config), "--count", "1", "--repeats", "1", "--device", "cpu"]
    assert main(["network", *once]) == 0


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--frames", "no_such_folder"], "no_such_folder"),
        (["--weights", "no_such.safetensors", "--count", "1"], "no_such.safetensors"),
        (["--device", "abacus", "--count", "1"], "abacus"),
    ],
)
def test_a_mistake_is_one_line(arguments, named, capsys):
    small = ["--config", "configs/second_small.yaml"]
    assert main(["network", *small, *arguments]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ") and named in error and error.count("\n") == 1


def test_a_peer_that_fails_later_is_left_out(monkeypatch, tmp_path):
    class Failing(torch.nn.Module):
        calls = 0

        def __init__(self, sparse_shape, layers):
            super().__init__()

        def forward(self, voxels):
            Failing.calls += 1
            if Failing.calls > 5:  # past the warm-up and the first calls
                raise RuntimeError("out of table")

    monkeypatch.setattr("millisecond.tools.benchmarks.network.available", lambda: {"weak": Failing})
    path = tmp_path / "network.json"
    brief = ["--config", "configs/second_small.yaml", "--count", "2", "--repeats", "2"]
    assert main(["network", *brief, "--device", "cpu", "--json", str(path)]) == 0
    result = json.loads(path.read_text())
    assert result["peers_left_out"] == {"weak": "out of table"}
    assert [row["stage"] for row in result["stages"]] == STAGES


def test_a_training_step_in_every_precision(monkeypatch, tmp_path):
    monkeypatch.setattr("millisecond.tools.bench.STREETS", 1)
    monkeypatch.setattr("millisecond.tools.benchmarks.train.WARM_UP", 1)
    brief = ["--config", "configs/second_small.yaml", "--set", "train.batch_size=1"]
    path = tmp_path / "train.json"
    assert main(["train", *brief, "--repeats", "1", "--device", "cpu", "--json", str(path)]) == 0
    rows = json.loads(path.read_text())["steps"]
    assert [row["precision"] for row in rows] == ["fp32", "bf16", "fp16"]
    assert all(row["backward, ms"] > 0 and row["whole step, ms"] > 0 for row in rows)


@pytest.mark.parametrize("content", ["[1]", '{"device": "mine"}', '{"benchmark": "train"}'])
def test_figures_of_others_are_not_written_over(tmp_path, capsys, content):
    path = tmp_path / "mine.json"
    path.write_text(content)
    assert main(["network", "--count", "1", "--json", str(path)]) == 2
    assert "mine.json: already exists" in capsys.readouterr().err
    assert path.read_text() == content


@pytest.mark.parametrize(
    "arguments",
    [
        ["network", "--repeats", "0"],
        ["network", "--count", "-1"],
        ["train", "--repeats", "1e3"],
        ["train", "--precision", "fp8"],
        ["ops", "--batch", "0"],
        ["ops", "--precision", "fp64"],
    ],
)
def test_numbers_and_precisions_that_are_none(arguments, capsys):
    with pytest.raises(SystemExit) as end:
        main(arguments)
    assert end.value.code == 2
    assert arguments[1] in capsys.readouterr().err


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
@pytest.mark.parametrize("command", ["ops", "ladder", "sampling", "points", "operators", "engines"])
def test_kernels_need_a_gpu(command, capsys):
    assert main([command]) == 2
    err = capsys.readouterr().err
    assert err.startswith(f"error: benchmark {command}: needs a CUDA device; ")
    assert err.count("\n") == 1 and err.endswith("\n")
