"""Weights files that are damaged, lie or are of another network: C++ says what is wrong."""

import json
import shutil
import struct
from pathlib import Path

import pytest
import torch

from detector import tensor_file
from detector.weights import FIRST_OF_MAP, load_weights

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="there is no C++ compiler")


def stored(path: Path, header: dict, data: bytes = b"", size: int | None = None) -> Path:
    """A safetensors file byte by byte; size: what it says of its header."""
    text = json.dumps(header).encode() if isinstance(header, dict) else header
    path.write_bytes(struct.pack("<Q", len(text) if size is None else size) + text + data)
    return path


def entry(offsets=(0, 4), shape=(1,), dtype="F32"):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}


@pytest.mark.parametrize(
    ("header", "data", "size", "fault"),
    [
        (b"", b"", None, "its header of 0 bytes"),
        (b"{}", b"", 1 << 60, "does not fit its 10"),
        (b"{}", b"", 3, "does not fit its 10"),
        (b'{"a": ', b"", None, "line 1"),
        (b'{"a": 1, "a": 2}', b"", None, "the key a stands twice"),
        (b"[" * 1000, b"", None, "nested too deeply"),
        (b'{"a": "\\ud8', b"", None, "a wrong escape"),
        ({"a": entry()}, b"abc", None, "a does not lie where"),
        ({"a": entry((0, 8))}, b"12345678", None, "a does not lie where"),
        ({"a": entry((4, 0))}, b"1234", None, "a does not lie where"),
        ({"a": entry((-4, 0))}, b"1234", None, "a does not lie where"),
        ({"a": entry(shape=(1 << 62, 4))}, b"1234", None, "an impossible shape"),
        ({"a": entry(shape=(-1,))}, b"1234", None, "an impossible shape"),
        ({"a": entry(shape=(0.5,))}, b"1234", None, "an impossible shape"),
        ({"a": entry(dtype="F12")}, b"1234", None, "the unknown type F12"),
        ({"a": entry(), "b": entry()}, b"1234", None, "overlap or leave gaps"),
        ({"a": entry()}, b"12345", None, "1 bytes more"),
        ({"a": entry()}, b"1234", None, "not weights of this program"),
    ],
)
def test_files_that_lie_are_refused_with_what_is_wrong(
    inspect, tmp_path, header, data, size, fault
):
    path = stored(tmp_path / "wrong.safetensors", header, data, size)
    result = inspect("network", path, "fp32")
    assert result.returncode == 1
    assert fault in result.stderr.decode()
    assert str(path) in result.stderr.decode()


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (lambda state: state.pop("head.boxes.bias"), "head.boxes.bias is missing"),
        (lambda state: state.update(more=torch.ones(1)), "more is unknown"),
        (lambda state: state["head.boxes.bias"].fill_(torch.nan), "head.boxes.bias are not finite"),
        (
            lambda state: state["encoder.downs.0.norm.running_var"].neg_(),
            "encoder.downs.0.norm.running_var has a negative variance",
        ),
        (
            lambda state: state.update({"head.boxes.bias": torch.ones(3)}),
            "head.boxes.bias is [3] instead of [14]",
        ),
    ],
)
def test_weights_that_do_not_fit_are_refused(inspect, small, tmp_path, change, fault):
    config, state = load_weights(small)
    change(state)
    texts = {"format": "millisecond weights 3", "config": config.to_yaml()}
    tensor_file.write(tmp_path / "wrong.safetensors", state, texts)
    path = tmp_path / "wrong.safetensors"
    result = inspect("network", path, "fp32")
    told = result.stderr.decode()
    assert (result.returncode, fault in told, str(path) in told) == (1, True, True), told


def test_older_files_are_read_and_changed_ones_refused(inspect, small, tmp_path):
    config, state = load_weights(small)
    weight, depth = state[FIRST_OF_MAP], config.bev_cells[0]
    state[FIRST_OF_MAP] = weight.unflatten(1, (depth, -1)).transpose(1, 2).flatten(1, 2)
    texts = {"format": "millisecond weights 2", "config": config.to_yaml()}
    tensor_file.write(tmp_path / "older.safetensors", state, texts)
    results = [inspect("network", path, "fp32") for path in (small, tmp_path / "older.safetensors")]
    assert results[0].returncode == 0
    assert results[0].stdout == results[1].stdout

    changed = bytearray(small.read_bytes())
    changed[-5] ^= 1
    (tmp_path / "changed.safetensors").write_bytes(changed)
    result = inspect("network", tmp_path / "changed.safetensors", "fp32")
    assert (result.returncode, b"its checksum differs" in result.stderr) == (1, True)


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        ("score: 0.1", "score: 2.0", "postprocess.score: is not between 0 and 1"),
        ("max_points: 5", "max_points: five", "grid.max_points: is no number"),
        ("layers: [1, 2]", "layers: [1, 2", "expected , or ]"),
        ("grid:", "gird:", "grid.range: is missing"),
        ("voxel_size: [0.1,", "voxel_size: [0.7,", "it is no whole number of voxels"),
        ("strides: [2, 2]", "strides: [536870912, 1]", "model.bev.strides: 536870912 is no whole"),
        ("layers: [1, 2]", "layers: [1, 1000000000]", "model.bev.layers: 1000000000 is no whole"),
        ("out_channels: 16", "out_channels: 1000000000", "model.encoder.out_channels: 1000000000"),
        ("-3.0, 48.0, 19.2, 1.0]", "-3.0, 48.0, 19.2, -2.04]", "too few voxels along z"),
        (
            "-3.0, 48.0, 19.2",
            "-3.0, 47.9, 19.2",
            "479 voxels along x and 384 along y are no multip",
        ),
    ],
)
def test_configurations_that_are_wrong_are_refused(inspect, small, tmp_path, old, new, fault):
    config, state = load_weights(small)
    text = config.to_yaml()
    assert old in text
    texts = {"format": "millisecond weights 3", "config": text.replace(old, new)}
    path = tmp_path / "wrong.safetensors"
    tensor_file.write(path, state, texts)
    result = inspect("network", path, "fp32")
    told = result.stderr.decode()
    assert (result.returncode, fault in told, str(path) in told) == (1, True, True), told


def test_damaged_files_never_crash(inspect, small, tmp_path):
    state = {"a": torch.ones(2), "b": torch.ones(3)}
    tensor_file.write(tmp_path / "few.safetensors", state, {"format": "millisecond weights 1"})
    assert inspect("fuzz", tmp_path / "few.safetensors", 500).returncode == 0
    assert inspect("fuzz", small, 10).returncode == 0
