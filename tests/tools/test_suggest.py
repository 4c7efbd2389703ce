"""tools/suggest.py: which scans it orders, and what it writes."""

import json

import numpy as np
import pytest
import torch

from detector.weights import save_weights
from tests.helpers.small_detector import build_small_network
from tools.suggest import main


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    """Of a network whose scores depend on the points."""
    config, model = build_small_network()
    for name, buffer in model.named_buffers():
        if name.endswith("running_var"):
            buffer.fill_(0.15)
    torch.nn.init.normal_(model.head.classes.weight, std=0.03)
    path = tmp_path_factory.mktemp("weights") / "weights.safetensors"
    save_weights(path, model, config)
    return path


@pytest.fixture
def folder(tmp_path):
    """Five scans, of which the last has labels."""
    root, rng = tmp_path / "mine", np.random.default_rng(0)
    for name in ("points", "labels"):
        (root / name).mkdir(parents=True)
    for number in range(5):
        points = rng.uniform((0, -18, -2, 0), (40, 18, 0, 1), (50 + 800 * number, 4))
        np.save(root / "points" / f"{number}.npy", points.astype(np.float32))
    (root / "labels" / "4.txt").write_text("")
    return root


def test_orders_what_has_no_labels(folder, weights, tmp_path, capsys):
    lists, figures = tmp_path / "lists" / "next.txt", tmp_path / "all.json"
    options = [str(weights), "--root", str(folder), "--device", "cpu", "--count", "2"]
    assert main([*options, "--output", str(lists), "--json", str(figures), "--by", "entropy"]) == 0
    lines = capsys.readouterr().out.splitlines()
    rows = json.loads(figures.read_text())["most_first"]
    assert {row["frame"] for row in rows} == {"0", "1", "2", "3"}
    entropies = [row["entropy"] for row in rows]
    assert entropies == sorted(entropies, reverse=True) and entropies[0] > entropies[-1]
    best = [row["frame"] for row in rows[:2]]
    assert lists.read_text().split() == best == [line.split()[0] for line in lines[1:3]]
    assert main([*options, "--output", str(lists)]) == 2
    assert "is there already" in capsys.readouterr().err
    again = [*options[:-2], "--split", str(lists), "--count", "9", "--json", str(figures)]
    assert main(again) == 0
    assert {row["frame"] for row in json.loads(figures.read_text())["most_first"]} == set(best)


def test_mistakes_are_one_line(folder, weights, capsys):
    for number in range(4):
        (folder / "labels" / f"{number}.txt").write_text("")
    for arguments, told in [
        ([str(weights), "--root", str(folder)], "all 5 scans have labels; name a split"),
        ([str(weights), "--root", str(folder), "--split", "odd"], "odd.txt"),
        (["no.safetensors", "--root", str(folder)], "no.safetensors"),
    ]:
        assert main([*arguments, "--device", "cpu"]) == 2
        (line,) = capsys.readouterr().err.strip().splitlines()
        assert line.startswith("error: ") and told in line
