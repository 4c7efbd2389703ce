"""The benchmark of points to boxes runs on a CPU; its figures and picture are those measured."""

import json

import numpy as np
import pytest
from PIL import Image

from millisecond.detector.config import load_config
from millisecond.detector.models.second import build_second
from millisecond.detector.weights import save_weights
from millisecond.tools.bench import main
from millisecond.tools.benchmarks import first_box
from millisecond.tools.benchmarks.pipeline import ROW, TITLE, WIDTH, draw_latencies
from millisecond.tools.benchmarks.timing import Percentiles
from tests.helpers.small_detector import CONFIG, RING, cloud

STAGES = ["voxelize", "index", "encoder", "BEV network", "postprocess"]  # on a CPU


def test_percentiles():
    rng = np.random.default_rng(0)
    times = Percentiles.of(rng.permutation(1001).tolist())
    assert times[:4] == (500, 900, 990, 999)
    assert Percentiles.of([1, 4, 2]).jitter == 2.5
    assert Percentiles.of([3.0]) == (3.0, 3.0, 3.0, 3.0, 0.0)


def test_pipeline(tmp_path, monkeypatch, capsys):
    """Of a network that takes a ring beside the intensity."""
    config, weights = load_config(CONFIG, [RING]), tmp_path / "ring.safetensors"
    save_weights(weights, build_second(config), config)
    scans = tmp_path / "scans"
    scans.mkdir()
    for seed in range(2):
        np.pad(cloud(3000, seed), ((0, 0), (0, 1))).tofile(scans / f"{seed}.bin")
    monkeypatch.setattr("millisecond.tools.bench.SWEEPS", 1)
    monkeypatch.setattr("millisecond.tools.benchmarks.pipeline.SECONDS", 0.01)
    monkeypatch.setattr("millisecond.tools.benchmarks.pipeline.REPEATS", 1)
    monkeypatch.setattr(
        "millisecond.tools.benchmarks.pipeline.first_box", lambda *_: {"first boxes": 2.5}
    )
    json_path, picture = tmp_path / "pipeline.json", tmp_path / "latency.png"
    brief = ["--device", "cpu", "--calls", "3", "--batch", "1", "3", "--weights", str(weights)]
    files = ["--frames", str(scans), "--json", str(json_path), "--plot", str(picture)]
    assert main(["pipeline", *brief, *files]) == 0
    result = json.loads(json_path.read_text())
    assert result["scans"] == ["2 scans", "1 simulated sweeps"]
    for row in result["latency"]:
        assert (row["precision"], row["path"], row["calls"]) == ("fp32", "eager", 3)
        assert 0 < row["p50_ms"] <= row["p90_ms"] <= row["p99_ms"] <= row["p99_9_ms"]
    for stages in result["stages"]:
        assert all(stages[name] > 0 for name in STAGES)
    assert len(result["latency"]) == len(result["stages"]) == 2
    assert [row["way"] for row in result["throughput"]] == ["batch of 1", "batch of 3"]
    assert all(row["frames_per_second"] > 0 for row in result["throughput"])
    assert result["start"] == {"precision": "fp32", "first boxes": 2.5}
    with Image.open(picture) as image:
        assert image.size == (WIDTH, TITLE + 2 * ROW)
    printed = capsys.readouterr().out
    assert "p99.9" in printed and all(name in printed for name in STAGES)


def test_a_foreign_picture_is_kept(tmp_path, capsys):
    (tmp_path / "mine.png").write_bytes(b"mine")
    assert main(["pipeline", "--count", "1", "--plot", str(tmp_path / "mine.png")]) == 2
    assert "mine.png" in capsys.readouterr().err


def test_the_first_box_of_a_process(weights, tmp_path, capsys):
    cloud(1000).tofile(tmp_path / "scan.bin")
    first_box._main("0", str(weights), "cpu", "fp32", str(tmp_path / "scan.bin"))
    times = json.loads(capsys.readouterr().out)
    assert 0 < times["imported"] <= times["network"] <= times["first boxes"]


@pytest.mark.parametrize("samples", [[1.0], [2.0] * 5, [0.5, 0.7, 90.0], [1e-4, 2e-4]])
def test_any_latencies_are_drawn(samples):
    picture = draw_latencies({"one": samples, "two": samples}, "title " * 40)
    assert picture.shape == (TITLE + 2 * ROW, WIDTH, 3) and picture.std() > 0
