"""millisecond ship_weights as a user calls it."""

from pathlib import Path

import pytest
import torch

from millisecond.detector.config import load_config
from millisecond.detector.models.second import build_second
from millisecond.detector.weights import load_weights, restore, save_weights
from millisecond.tools import ship_weights

ROOT = Path(__file__).resolve().parents[2]


def test_a_training_s_weights_in_half_the_size(tmp_path, weights, capsys):
    target = tmp_path / "half.safetensors"
    assert ship_weights.main([str(weights), str(target)]) == 0
    assert target.stat().st_size < 0.6 * weights.stat().st_size
    assert load_weights(target)[0] == load_weights(weights)[0]
    assert f"wrote {target}" in capsys.readouterr().out


def test_a_shift_moves_the_logits_of_its_class_alone(tmp_path):
    config = load_config(ROOT / "configs" / "shipped_second_small.yaml")
    save_weights(tmp_path / "whole", build_second(config), config)
    features = torch.randn(1, 128, 3, 4, generator=torch.Generator().manual_seed(0))
    found = []
    for name, more in (("plain", ()), ("shifted", ("--shift", "Car=-0.5", "Cyclist=0.25"))):
        assert ship_weights.main([str(tmp_path / "whole"), str(tmp_path / name), *more]) == 0
        model = build_second(config)
        restore(model, load_weights(tmp_path / name)[1], tmp_path / name)
        found.append(model.head(features))
    moved = found[1].class_logits - found[0].class_logits
    by = torch.tensor([-0.5, 0.0, 0.25])  # Car, Pedestrian, Cyclist
    torch.testing.assert_close(moved, by.expand_as(moved), rtol=0, atol=1e-5)
    assert torch.equal(found[1].box_residuals, found[0].box_residuals)


@pytest.mark.parametrize("text", ["Lorry=1", "Car", "Car=nan", "Car=7"])
def test_a_wrong_shift_gets_one_line(tmp_path, weights, capsys, text):
    assert ship_weights.main([str(weights), str(tmp_path / "new"), "--shift", text]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1 and f"--shift {text}" in lines[0] and not (tmp_path / "new").exists()


def test_mistakes_get_one_line(tmp_path, weights, capsys):
    cut = tmp_path / "cut.safetensors"
    cut.write_bytes(weights.read_bytes()[:-9])
    (tmp_path / "there").write_text("mine")
    for source, target, said in (
        (tmp_path / "none", "new", "no such weights file"),
        (cut, "new", "damaged"),
        (weights, "there", "already exists"),
    ):
        assert ship_weights.main([str(source), str(tmp_path / target)]) == 2
        lines = capsys.readouterr().err.splitlines()
        assert len(lines) == 1 and said in lines[0]
    assert not (tmp_path / "new").exists() and (tmp_path / "there").read_text() == "mine"
