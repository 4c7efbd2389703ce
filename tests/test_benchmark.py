import json

import pytest

from tools.benchmark import main

STAGES = ["voxelize", "encoder", "BEV backbone", "heads", "postprocess", "points to boxes"]


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
