"""millisecond ship_weights as a user calls it."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from millisecond.data.metric.reliability import Judged, fit_scale_and_shift
from millisecond.detector.config import load_config
from millisecond.detector.models.second import build_second
from millisecond.detector.weights import (
    calibrate_head,
    calibration_of,
    load_weights,
    restore,
    save_halved,
    save_weights,
)
from millisecond.tools import ship_weights
from tests.helpers.small_detector import CONFIG, RING

ROOT = Path(__file__).resolve().parents[2]


def test_a_training_s_weights_in_half_the_size(tmp_path, weights, capsys):
    target = tmp_path / "half.safetensors"
    assert ship_weights.main([str(weights), str(target)]) == 0
    assert target.stat().st_size < 0.6 * weights.stat().st_size
    (config, state), (again, halved) = load_weights(weights), load_weights(target)
    assert again == config and halved.keys() == state.keys()
    for name, value in state.items():
        kept = value.half() if value.ndim > 1 else value  # numbers of batches are whole, too
        assert torch.equal(halved[name], kept) and halved[name].dtype == kept.dtype
    assert f"wrote {target}" in capsys.readouterr().out


def judged(scale, shift):
    """The sigmoid of scale * logit + shift is the share of right boxes."""
    rng = np.random.default_rng(0)
    logits = rng.normal(0, 1.5, 4000)
    right = rng.random(4000) < 1 / (1 + np.exp(-scale * logits - shift))
    return Judged(1 / (1 + np.exp(-logits)), right)


def test_calibration_scales_and_shifts_the_logits_of_each_class(tmp_path, monkeypatch, capsys):
    """Again and again, and the file knows what was done since the training."""
    config = load_config(ROOT / "configs" / "shipped_second_small.yaml")
    model = build_second(config)
    generator = torch.Generator().manual_seed(0)
    torch.nn.init.normal_(model.head.classes.weight, 0, 0.05, generator=generator)
    save_weights(tmp_path / "0", model, config)
    features = torch.randn(1, 128, 30, 40, generator=generator)
    found = {
        "Car": judged(2.4, -1.9),
        "Pedestrian": judged(0.7, 0.9),
        "Cyclist": judged(1.5, 0),
    }
    monkeypatch.setattr(ship_weights, "judged_on_streets", lambda *_: found)
    more = ("--set", "postprocess.iou=0.3", "postprocess.per_class=false", "--calibrate", "9")
    heads = []
    for step, options in enumerate((("--set", "train.seed=1"), more, more), 1):
        files = str(tmp_path / str(step - 1)), str(tmp_path / str(step))
        assert ship_weights.main([*files, *options]) == 0
        model = build_second(config)
        restore(model, load_weights(files[1])[1], files[1])
        heads.append(model.head(features))
    said = capsys.readouterr().out
    fits = [fit_scale_and_shift(name, found[name]) for name in config.class_names]
    for name, (scale, shift) in zip(found, fits, strict=True):
        fit = f"{scale:.3f} * logit of the training {shift:+.3f}"
        assert f"{name}: logit of the score = {fit}" in said and re.search(rf"{name} +boxes", said)
    assert calibration_of(tmp_path / "1") == {}
    limits = load_weights(tmp_path / "3")[0].postprocess
    assert (limits.iou, limits.per_class) == (0.3, False)
    for step in (1, 2):
        scales, shifts = np.array(list(calibration_of(tmp_path / str(step + 1)).values())).T
        for k, (scale, shift) in enumerate(fits):
            expected = (scale, shift) if step == 1 else (scale**2, scale * shift + shift)
            np.testing.assert_allclose((scales[k], shifts[k]), expected, rtol=1e-6)
        moved = heads[0].class_logits.double() * torch.tensor(scales) + torch.tensor(shifts)
        spread = moved.std()
        assert (heads[step].class_logits - moved).abs().max() < 2e-3 * spread * 8  # fp16
        assert torch.equal(heads[step].box_residuals, heads[0].box_residuals)


def test_calibration_keeps_the_order_of_a_class():
    """In fp32: no two boxes change their places."""
    state = {
        "head.classes.weight": torch.randn(18, 64, 1, 1, generator=torch.manual_seed(0)),
        "head.classes.bias": torch.randn(18),
    }
    features = torch.randn(200, 64)

    def logits():
        weight, bias = state["head.classes.weight"].flatten(1), state["head.classes.bias"]
        return (features.double() @ weight.T.double() + bias).view(-1, 3)

    before = logits().argsort(0)
    fits = {"Car": (2.4, -1.9), "Pedestrian": (1.6, 0.9), "Cyclist": (0.25, 3.0)}
    calibrate_head(state, tuple(fits), fits)
    assert torch.equal(logits().argsort(0), before)


def test_streets_on_which_too_little_is_right_calibrate_nothing(tmp_path, weights, capsys):
    assert ship_weights.main([str(weights), str(tmp_path / "new"), "--calibrate", "1"]) == 2
    (line,) = capsys.readouterr().err.splitlines()[-1:]
    assert line.startswith("error: ") and "give more streets" in line
    assert not (tmp_path / "new").exists()


def test_boxes_on_streets_are_right_or_wrong():
    config, state = load_weights("second_small")
    model = build_second(config)
    restore(model, state, "second_small")
    found = ship_weights.judged_on_streets(model, config, range(300_000, 300_003))
    assert tuple(found) == config.class_names
    scores, right = found["Car"]
    assert 0 < right.sum() < len(right) and scores[right].mean() > scores[~right].mean()
    plain = replace(config, classes=tuple(replace(kind, also=()) for kind in config.classes))
    street = range(300_010, 300_011)  # a van is found there
    of_vans, of_cars = (ship_weights.judged_on_streets(model, c, street) for c in (config, plain))
    assert (of_vans["Car"].right.sum(), of_cars["Car"].right.sum()) == (1, 0)


def test_points_that_streets_do_not_have_are_not_calibrated_on(tmp_path, capsys):
    config, source = load_config(CONFIG, [RING]), tmp_path / "ring"
    save_weights(source, build_second(config), config)
    assert ship_weights.main([str(source), str(tmp_path / "new"), "--calibrate", "1"]) == 2
    said = "error: --calibrate 1: gives the network no ring, which it takes; leave it out\n"
    assert capsys.readouterr().err == said
    assert ship_weights.main([str(source), str(tmp_path / "new")]) == 0


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
    other = ("--set", "model.bev.layers=[1,1]")  # the weights are not of such a network
    assert ship_weights.main([str(weights), str(tmp_path / "new"), *other]) == 2
    assert str(weights) in capsys.readouterr().err
    config, state = load_weights(weights)
    state["head.boxes.weight"][0, 0] = 70_000
    with pytest.raises(ValueError, match=r"head\.boxes\.weight has values beyond 65504"):
        save_halved(tmp_path / "new", state, config)
    assert not (tmp_path / "new").exists() and (tmp_path / "there").read_text() == "mine"
