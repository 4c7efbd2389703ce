"""ship_weights.py as a user calls it."""

from detector.weights import load_weights
from tools import ship_weights


def test_a_training_s_weights_in_half_the_size(tmp_path, weights, capsys):
    target = tmp_path / "half.safetensors"
    assert ship_weights.main([str(weights), str(target)]) == 0
    assert target.stat().st_size < 0.6 * weights.stat().st_size
    assert load_weights(target)[0] == load_weights(weights)[0]
    assert f"wrote {target}" in capsys.readouterr().out


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
