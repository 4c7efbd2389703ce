"""The file of tools/tune.py: read back as it was written, refused where it is wrong."""

import json

import pytest
import torch

from ops import Dataflow, SubmanifoldConv, Tuned, pair_map, read_tuned, submanifold_map, use_tuned
from ops.tuned import Work, as_json
from tests.helpers.dense_oracle import random_sites

HERE = torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU"


def written(path, device=HERE, changed=None):
    weight = torch.zeros(27, 8, 16)
    work = Work.of("submanifold", weight, torch.float16, 70000, False)
    assert work == ("submanifold", 27, 8, 16, "fp16", False, 17)
    other = work._replace(training=True)
    fastest = {work: Dataflow("fetch_on_demand"), other: Dataflow("gather_scatter", epsilon=0.1)}
    content = as_json(Tuned(device, fastest), {work: {"implicit_gemm": 3.5}, other: {}})
    content["layers"][0].update(changed or {})
    path.write_text(json.dumps(content))
    return fastest


def test_is_read_as_it_was_written(tmp_path):
    path = tmp_path / "tuned.json"
    fastest = written(path)
    assert read_tuned(path) == Tuned(HERE, fastest)
    written(path, device="another GPU")
    with pytest.warns(UserWarning, match="measured on another GPU, here is .*: implicit GEMMs"):
        assert not read_tuned(path).fastest


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({"kind": "dense"}, r"layers\[0\]: kind: 'dense' is none of"),
        ({"dataflow": "direct array"}, r"layers\[0\]: dataflow 'direct array'"),
        ({"dataflow": 3}, "dataflow: 3 is no text"),
        ({"c_in": -1}, "c_in: -1 is no whole number"),
        ({"c_in": [1]}, r"c_in: \[1\] is no whole number"),
        ({"precision": "int8"}, "precision: 'int8' is none of"),
        ({"training": 1}, "training: 1 is neither"),
        ({"training": True}, r"layers\[1\]: .* is there twice"),
        ({"speed": 1}, "expected the keys"),
    ],
)
def test_mistakes_are_named(tmp_path, changed, expected):
    path = tmp_path / "tuned.json"
    written(path, changed=changed)
    with pytest.raises(ValueError, match=rf"^{path}: .*{expected}"):
        read_tuned(path)


def test_what_is_no_such_file(tmp_path):
    path = tmp_path / "tuned.json"
    with pytest.raises(FileNotFoundError, match="no such file"):
        read_tuned(path)
    for text in ("", "[" * 100_000, "[]", '{"format": "millisecond dataflows 2"}'):
        path.write_text(text)
        with pytest.raises(ValueError, match=f"^{path}: is no"):
            read_tuned(path)


def test_layers_take_what_was_measured_for_their_size():
    coords = random_sites(0, 1, (6, 7, 8))
    kernel_map = submanifold_map(coords, (6, 7, 8), 1)
    layer, features = SubmanifoldConv(3, 5), torch.randn(len(coords), 3)
    fast = Dataflow("fetch_on_demand")
    work = Work.of("submanifold", layer.weight, features.dtype, len(coords), True)
    use_tuned(torch.nn.ModuleList([layer]), Tuned(HERE, {work: fast}))
    choose = layer.dataflow.dataflow
    listed = pair_map(kernel_map)
    assert choose("submanifold", features, layer.weight, listed) == fast
    assert choose("inverse", features, layer.weight, listed) == Dataflow()
    assert choose("submanifold", features, layer.weight, kernel_map) == Dataflow()
    with torch.no_grad():
        assert choose("submanifold", features, layer.weight, listed) == Dataflow()
    expected = SubmanifoldConv.convolve(layer, features, kernel_map)
    assert torch.equal(layer.convolve(features, listed), expected)
    use_tuned(layer, None)
    assert layer.dataflow is None
