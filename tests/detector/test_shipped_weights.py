"""The weights that come with the program: files, cards, names, and that they find what they say."""

import hashlib
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from millisecond.data.simulator import simulate
from millisecond.data.simulator.sensors import street_sensor
from millisecond.detector import Detector, tensor_file
from millisecond.detector.config import load_config
from millisecond.detector.models.second import build_second
from millisecond.detector.weights import (
    SHIPPED,
    find_weights,
    load_weights,
    save_halved,
    save_weights,
)
from millisecond.ops.boxes import iou_3d
from tests.helpers.small_detector import CONFIG

ROOT = Path(__file__).resolve().parents[2]
CHECK = r"\| (Car|Pedestrian|Cyclist) \| (\d+) \| (\d+) \| (\d+) \|"  # of a card
LARGEST = 12_000_000  # bytes


def card(name: str) -> str:
    return find_weights(name).with_suffix(".md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", SHIPPED)
def test_files_are_what_their_cards_say(name):
    path = find_weights(name)
    assert path.stat().st_size < LARGEST
    assert hashlib.sha256(path.read_bytes()).hexdigest() in card(name)
    content = tensor_file.read(path)
    assert content.checked
    for key, tensor in content.tensors.items():
        wide = tensor.ndim > 1
        assert tensor.dtype in ((torch.float16,) if wide else (torch.float32, torch.int64)), key
    config = load_weights(name)[0]
    assert config.class_names == ("Car", "Pedestrian", "Cyclist")
    parameters = sum(weight.numel() for weight in build_second(config).parameters())
    assert f"{parameters:,} parameters" in card(name)
    recipe = load_config(ROOT / "configs" / f"shipped_{name}.yaml")
    for part in ("classes", "grid", "model"):
        assert getattr(config, part) == getattr(recipe, part), part
    assert replace(config.loss, overlap=0.0) == recipe.loss
    assert config.loss.overlap == (0.0 if name == "any" else 3.0)  # the last trainings add it


@pytest.mark.parametrize("name", SHIPPED)
def test_they_find_what_their_cards_say(name):
    """On the first streets that the card names; a score at the limit may fall to either side."""
    first, last = map(int, re.search(r"streets (\d+) to (\d+) of", card(name)).groups())
    stated = {kind: tuple(map(int, rest)) for kind, *rest in re.findall(CHECK, card(name))}
    config = load_weights(name)[0]
    names, crop = config.class_names, config.grid.crop_to_image
    sensor = street_sensor(config.train.sensor)
    counted = {kind: np.zeros(3, int) for kind in names}
    for seed in range(first, last + 1):
        frame = simulate(seed, sensor=sensor, crop=crop)
        boxes, scores, labels = Detector.from_weights(name, "cpu").detect(frame.points)[0]
        for number, kind in enumerate(names, start=1):
            own = [row for row, type_ in enumerate(frame.names) if type_ == kind]
            sure = boxes[(scores >= 0.5) & (labels == number)]
            overlap = iou_3d(sure, torch.from_numpy(frame.boxes[own])) >= 0.5
            counted[kind] += (len(own), int(overlap.any(0).sum()), len(sure))
    assert set(stated) == set(names)
    for kind, numbers in counted.items():
        assert numbers[0] == stated[kind][0]
        assert np.abs(numbers - stated[kind]).max() <= 1, (kind, numbers)


def test_names_stand_for_files(tmp_path, monkeypatch, weights, trained):
    monkeypatch.chdir(tmp_path)
    for name in SHIPPED:
        assert find_weights(name).parent == ROOT / "detector" / "weights"
    weights.rename(tmp_path / "second")  # a file of one's own is meant
    assert load_weights("second")[0] == trained[0]
    with pytest.raises(FileNotFoundError, match="third: no such weights file"):
        Detector.from_weights("third", "cpu")


def test_without_weights_the_shipped_ones_are_used_and_named(capsys):
    for make in (Detector, Detector.from_weights):
        assert make(device="cpu").config == load_weights("second_small")[0]
        assert capsys.readouterr().err.splitlines() == [
            "weights: none given; second_small is used, which is shipped for a CPU"
        ]


def test_halved_weights_find_the_same_but_for_rounding(tmp_path, trained):
    config, model = trained
    save_weights(tmp_path / "whole", model, config)
    save_halved(tmp_path / "half", model.state_dict(), config)
    sizes = [(tmp_path / name).stat().st_size for name in ("half", "whole")]
    assert sizes[0] < 0.6 * sizes[1]
    whole, half = (load_weights(tmp_path / name)[1] for name in ("whole", "half"))
    for key, tensor in whole.items():
        torch.testing.assert_close(half[key].to(tensor.dtype), tensor, rtol=1e-3, atol=1e-7)
        assert torch.equal(half[key].to(tensor.dtype), tensor) or tensor.ndim > 1


def test_weights_too_large_for_16_bits_are_refused(tmp_path):
    config = load_config(CONFIG)
    state = build_second(config).state_dict()
    state["head.boxes.weight"] += 1e5
    with pytest.raises(ValueError, match=r"head\.boxes\.weight has values beyond 65504"):
        save_halved(tmp_path / "half", state, config)
    assert not (tmp_path / "half").exists()


def test_an_installed_package_has_them():
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    patterns = re.findall(r'"(weights/[^"]*)"', project)
    packed = {path.name for pattern in patterns for path in (ROOT / "detector").glob(pattern)}
    assert {f"{name}{suffix}" for name in SHIPPED for suffix in (".safetensors", ".md")} <= packed
