"""Weights to begin a training with: what fits is kept, the rest is new, and both are told."""

import pytest
import torch

from millisecond.detector.config import load_config
from millisecond.detector.models.second import build_second
from millisecond.detector.training.build import PARTS, start_from
from millisecond.detector.weights import save_weights
from tests.helpers.small_detector import CONFIG

FORKLIFT = "{name: Forklift, size: [3, 1.2, 2], bottom: -1.7, matched: 0.6, unmatched: 0.4}"
FORKLIFTS = f"classes=[{FORKLIFT}]"


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """Weights of the small network, all values random, statistics too."""
    torch.manual_seed(1)
    config = load_config(CONFIG)
    model = build_second(config)
    for tensor in model.state_dict().values():
        if tensor.is_floating_point():
            tensor.copy_(torch.rand_like(tensor))
    path = tmp_path_factory.mktemp("source") / "weights.safetensors"
    save_weights(path, model, config)
    return path, model.state_dict()


def started(source, *overrides):
    """A fresh model of the small configuration with overrides: before and after, and the lines."""
    config = load_config(CONFIG, overrides)
    model = build_second(config)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    lines = start_from(model, config, source[0])
    return before, model.state_dict(), dict(line.strip().split(": ", 1) for line in lines[1:])


def test_the_same_network_takes_over_everything(source):
    _, after, told = started(source, "grid.max_voxels_train=999", "train.lr=1")
    assert all(torch.equal(after[name], tensor) for name, tensor in source[1].items())
    own = [part for part in PARTS if part != "head.velocities"]  # which this network has not
    assert told == dict.fromkeys(own, "kept")


def test_other_classes_have_new_heads(source):
    before, after, told = started(source, FORKLIFTS, "augment.sample={}")
    for name in after:
        expected = before if name.startswith("head.") else source[1]
        assert torch.equal(after[name], expected[name]), name
    assert told["encoder"] == told["backbone"] == "kept"
    for part in ("head.classes", "head.boxes", "head.directions"):
        assert told[part] == "new, for the classes are Forklift instead of Car"


def test_what_has_another_shape_is_new_and_named(source):
    # 16 more voxels along z: a cell of the map has two heights, not one
    higher = "grid.range=[0, -19.2, -3, 48, 19.2, 3.56]"
    wider = "model.bev.upsample_channels=[32, 48]"
    before, after, told = started(source, higher, wider)
    fits = {name for name in after if after[name].shape == source[1][name].shape}
    assert 0 < len(fits) < len(after)
    for name in after:
        assert torch.equal(after[name], (source[1] if name in fits else before)[name]), name
    assert told["encoder"] == "kept"
    assert (
        "new: blocks.0.0.conv.weight [32, 128, 3, 3] instead of [32, 64, 3, 3]"
        in (told["backbone"])
    )
    assert told["head.boxes"] == "1 of 2 kept, new: weight [14, 80, 1, 1] instead of [14, 64, 1, 1]"


def test_points_of_more_features_have_a_new_first_convolution(source):
    names = "[x, y, z, intensity, ring]"
    before, after, told = started(source, f"points={{columns: {names}, features: {names}}}")
    first = "encoder.levels.0.0.weight"
    assert torch.equal(after[first], before[first]) and after[first].shape[1] == 5
    assert all(torch.equal(after[name], source[1][name]) for name in after if name != first)
    assert "levels.0.0.weight [27, 5, 16] instead of [27, 4, 16]" in told["encoder"]
    assert told["backbone"] == told["head.boxes"] == "kept"


def test_wrong_files_are_refused_and_leave_the_model_as_it_is(source, tmp_path):
    whole = source[0].read_bytes()
    for name, content, told in [
        ("damaged", whole[:-1] + bytes([whole[-1] ^ 1]), "checksum differs"),
        ("cut", whole[:-9], "damaged"),
    ]:
        (tmp_path / name).write_bytes(content)
        model = build_second(load_config(CONFIG))
        before = {key: tensor.clone() for key, tensor in model.state_dict().items()}
        with pytest.raises(ValueError, match=told):
            start_from(model, load_config(CONFIG), tmp_path / name)
        assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())
    config = load_config(
        CONFIG,
        [
            "model.encoder={channels: [4, 4, 8, 8], out_channels: 8}",
            "model.bev={layers: [1], channels: [8], strides: [1], upsample_channels: [8]}",
            "augment.sample={}",
            FORKLIFTS,
        ],
    )
    with pytest.raises(ValueError, match="no weight fits"):
        start_from(build_second(config), config, source[0])
