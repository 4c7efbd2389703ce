"""The file of tools/tune.py: read back as it was written, refused where it is wrong, and taken by
the layers that it names."""

import json

import pytest
import torch
from torch import nn

import ops.spconv as spconv
from ops import (
    Dataflow,
    PairMap,
    SubmanifoldConv,
    Tuned,
    pair_map,
    read_tuned,
    submanifold_map,
    use_tuned,
)
from ops.tuned import Choice, Work
from ops.tuned_file import Origin, as_json
from tests.helpers.dense_oracle import draws, random_sites
from tests.helpers.tuned import FETCH, every_size

GEMM = Dataflow()


def written(path, changed=None, **origin):
    work = Work.of("submanifold", (27, 8, 16), torch.float16, 70000, False)
    assert work == ("submanifold", 27, 8, 16, "fp16", False, 17)
    other = work._replace(training=True)
    gather = Dataflow("gather_scatter", epsilon=0.1)
    fastest = {work: Choice(FETCH, GEMM), other: Choice(gather, gather)}
    times = {work: {"implicit_gemm": 3.5}, other: {}}
    content = as_json(Origin.here()._replace(**origin), fastest, times)
    content["layers"][0].update(changed or {})
    path.write_text(json.dumps(content))
    return fastest


def test_is_read_as_it_was_written(tmp_path):
    path = tmp_path / "tuned.json"
    fastest = written(path)
    assert read_tuned(path) == Tuned(fastest)


@pytest.mark.parametrize(
    ("origin", "expected"),
    [
        ({"device": "another GPU"}, "measured on another GPU, here is "),
        ({"torch_version": "1.0"}, "measured with torch 1.0, here is "),
        ({"kernels": "abc"}, "measured with kernels abc, here are "),
    ],
)
def test_of_elsewhere_it_chooses_nothing_and_says_so(tmp_path, origin, expected):
    path = tmp_path / "tuned.json"
    written(path, **origin)
    with pytest.warns(UserWarning, match=f"^{path}: {expected}.*: all layers stay implicit GEMMs"):
        assert not read_tuned(path).fastest


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({"kind": "dense"}, r"layers\[0\]: kind: 'dense' is none of"),
        ({"listed": "direct array"}, r"layers\[0\]: dataflow 'direct array'"),
        ({"unlisted": "direct"}, r"layers\[0\]: unlisted: direct takes no kernel map"),
        ({"unlisted": 3}, "unlisted: 3 is no text"),
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
    written(path, changed)
    with pytest.raises(ValueError, match=rf"^{path}: .*{expected}"):
        read_tuned(path)


def test_what_is_no_such_file(tmp_path):
    path = tmp_path / "tuned.json"
    with pytest.raises(FileNotFoundError, match="no such file"):
        read_tuned(path)
    for text in ("", "[" * 100_000, "[]", '{"format": "millisecond dataflows 1"}'):
        path.write_text(text)
        with pytest.raises(ValueError, match=f"^{path}: is no"):
            read_tuned(path)
    written(path, device=7)
    with pytest.raises(ValueError, match=f"^{path}: device: 7 is no text"):
        read_tuned(path)


def test_layers_take_what_was_measured_for_their_size():
    coords = random_sites(0, 1, (6, 7, 8))
    kernel_map = submanifold_map(coords, (6, 7, 8), 1)
    layer, features = SubmanifoldConv(3, 5), torch.randn(len(coords), 3)
    shape, dtype = layer.weight.shape, torch.float32
    work = Work.of("submanifold", shape, dtype, len(coords), True)
    other = Dataflow("gather_scatter")
    use_tuned(nn.ModuleList([layer]), Tuned({work: Choice(FETCH, other)}))
    listed = pair_map(kernel_map)
    assert layer.chosen("submanifold", shape, dtype, listed) == FETCH
    assert layer.chosen("submanifold", shape, dtype, kernel_map) == other
    assert layer.chosen("inverse", shape, dtype, listed) is None
    assert layer.chosen("submanifold", shape, torch.float64, listed) is None
    with torch.no_grad():
        assert layer.chosen("submanifold", shape, dtype, listed) is None
    expected = SubmanifoldConv.convolve(SubmanifoldConv(3, 5), features, kernel_map)
    assert expected.shape == layer.convolve(features, listed).shape
    tuned = layer.convolve(features, listed)
    use_tuned(layer, None)
    assert layer.dataflow is None
    assert torch.equal(tuned, layer.convolve(features, kernel_map))


def spconv_network():
    torch.manual_seed(0)
    down = {"stride": 2, "padding": 1, "indice_key": "down"}
    net = spconv.SparseSequential(
        spconv.SubMConv3d(4, 16, 3, bias=False, indice_key="a"),
        nn.BatchNorm1d(16),
        nn.ReLU(),
        spconv.SubMConv3d(16, 16, 3, indice_key="a"),
        spconv.SparseConv3d(16, 32, 3, **down),
        spconv.SparseInverseConv3d(32, 16, 3, indice_key="down"),
    )
    return net.eval()


@pytest.mark.parametrize("training", [False, True])
def test_networks_of_spconv_take_it(monkeypatch, training):
    sites = random_sites(0, 2, (7, 8, 9))
    sites = sites[torch.randperm(len(sites))]
    x = spconv.SparseConvTensor(draws(0, torch.float32)(len(sites), 4), sites, (7, 8, 9), 2)
    net = spconv_network()
    with torch.set_grad_enabled(training):
        expected = net(x).features
    seen = []
    product = spconv.convolution.product
    monkeypatch.setattr(
        spconv.convolution, "product", lambda *a: seen.append((a[2], a[-1])) or product(*a)
    )
    use_tuned(net, every_size(training, "fp32", [(27, 4, 16), (27, 16, 32), (27, 32, 16)]))
    with torch.set_grad_enabled(training):
        got = net(x).features
    torch.testing.assert_close(got, expected, rtol=2e-5, atol=2e-5)
    maps, flows = zip(*seen, strict=True)
    assert flows == (FETCH, None, FETCH, FETCH)  # 16-16 is not in the file
    assert [isinstance(taken, PairMap) for taken in maps] == [True, False, True, True]
    assert maps[3].pairs is maps[2].pairs_back  # listed once for both directions
