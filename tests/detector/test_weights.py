"""Weights files: whole or refused with one line."""

import os
import struct

import pytest
import safetensors.torch
import torch

from millisecond.detector import Detector, tensor_file
from millisecond.detector.config import load_config
from millisecond.detector.models.second import build_second
from millisecond.detector.weights import load_weights
from tests.helpers.small_detector import CONFIG


def test_weights_come_back_bit_for_bit(weights, trained):
    config, state = load_weights(weights)
    assert config == trained[0]
    assert list(weights.parent.iterdir()) == [weights]
    for name, tensor in trained[1].state_dict().items():
        assert torch.equal(state[name], tensor)


@pytest.mark.parametrize("version", [1, 2])
def test_older_files_find_the_same(tmp_path, version):
    """They hold the weight for a map with channel c * Z + z; today's map has z * C + c."""
    config = load_config(CONFIG, ["grid.range=[0,-19.2,-3,48,19.2,5]"])
    today = build_second(config).state_dict()
    state, name, depth = dict(today), "backbone.blocks.0.0.conv.weight", config.bev_cells[0]
    assert depth > 1
    channels = state[name].shape[1] // depth
    order = [z * channels + c for c in range(channels) for z in range(depth)]
    state[name] = state[name][:, order].contiguous()
    older = tmp_path / "older.safetensors"
    texts = {"format": f"millisecond weights {version}", "config": config.to_yaml()}
    tensor_file.write(older, state, texts)
    loaded = load_weights(older)[1]
    for key, tensor in today.items():
        assert torch.equal(loaded[key], tensor), key


@pytest.mark.parametrize("kind", [torch.float8_e4m3fn, torch.float64])
def test_weights_count_as_the_network_has_them(tmp_path, trained, kind):
    """What is finite in the file may not be so in 32 bits."""
    config, model = trained
    state = {name: tensor.contiguous() for name, tensor in model.state_dict().items()}
    name = "backbone.blocks.0.0.conv.weight"
    state[name] = state[name].to(kind)
    texts = {"format": "millisecond weights 1", "config": config.to_yaml()}
    safetensors.torch.save_file(state, tmp_path / "other", texts)
    Detector.from_weights(tmp_path / "other", "cpu")
    if kind == torch.float64:
        state[name][0] = 1e300  # too much for 32 bits
        safetensors.torch.save_file(state, tmp_path / "other", texts)
        with pytest.raises(ValueError, match=f"values of {name} are not finite"):
            Detector.from_weights(tmp_path / "other", "cpu")


def test_wrong_weights_files_are_one_line(tmp_path, weights, trained):
    config, state = load_weights(weights)
    whole = weights.read_bytes()
    wide = load_config(CONFIG, ["model.encoder.out_channels=96"])
    bomb = struct.pack("<Q", 1 << 62) + b"{}"
    files = {
        "none": None,
        "truncated": whole[: len(whole) // 2],
        "empty": b"",
        "noise": os.urandom(1000),
        "header": bomb,
        "foreign": safetensors.torch.save({"a": torch.zeros(2)}),
        "shape": safetensors.torch.save(
            state, {"format": "millisecond weights 1", "config": wide.to_yaml()}
        ),
        "missing": safetensors.torch.save(
            {k: t for k, t in state.items() if "head" not in k},
            {"format": "millisecond weights 1", "config": config.to_yaml()},
        ),
        "config": safetensors.torch.save(
            state, {"format": "millisecond weights 1", "config": "a: 1"}
        ),
        "no_config": safetensors.torch.save(state, {"format": "millisecond weights 1"}),
    }
    for name, content in files.items():
        path = tmp_path / name
        if content is not None:
            path.write_bytes(content)
        with pytest.raises((ValueError, FileNotFoundError), match=name) as caught:
            Detector.from_weights(path, "cpu")
        assert "\n" not in str(caught.value)
    (tmp_path / "published.pth").write_bytes(os.urandom(1000))
    with pytest.raises(
        ValueError, match=r"published\.pth.*; convert it by millisecond import_open"
    ):
        load_weights(tmp_path / "published.pth")


@pytest.mark.parametrize("place", ["first", "middle", "last", "texts", "key"])
def test_a_flipped_bit_is_seen(weights, place):
    content = bytearray(weights.read_bytes())
    at = {
        "first": content.index(b"}}") + 40,
        "middle": len(content) // 2,
        "last": len(content) - 1,
        "texts": content.index(b"voxel_size") + 20,
        "key": content.index(b"sha256"),
    }[place]
    content[at] ^= 4
    weights.write_bytes(content)
    with pytest.raises(ValueError, match=str(weights)) as caught:
        Detector.from_weights(weights, "cpu")
    assert "\n" not in str(caught.value)


def test_weights_without_a_checksum_still_load(tmp_path, weights):
    config, state = load_weights(weights)
    older = {"format": "millisecond weights 1", "config": config.to_yaml()}
    safetensors.torch.save_file(state, tmp_path / "older", older)
    again, tensors = load_weights(tmp_path / "older")
    assert again == config and tensors.keys() == state.keys()


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda t: t.index_fill(0, torch.tensor([1]), torch.nan), "1 of the .* are not finite"),
        (lambda t: t.index_fill(0, torch.tensor([0]), torch.inf), "not finite"),
        (lambda t: t.to(torch.int32), "is of type int32"),
        (lambda t: t.to(torch.int8), "is of type int8"),
        (lambda t: -t - 1, "negative variance"),
    ],
)
def test_values_that_no_training_leaves_are_refused(tmp_path, weights, spoil, said):
    config, state = load_weights(weights)
    name = next(name for name in state if name.endswith("running_var"))
    state[name] = spoil(state[name])
    texts = {"format": "millisecond weights 1", "config": config.to_yaml()}
    safetensors.torch.save_file(state, tmp_path / "bad", texts)
    with pytest.raises(ValueError, match=said) as caught:
        Detector.from_weights(tmp_path / "bad", "cpu")
    assert name in str(caught.value) and "\n" not in str(caught.value)
