"""`millisecond tune`'s file: read back as it was written, refused where it is wrong, and taken by
the layers that it names."""

import json
from itertools import product

import pytest
import torch
from torch import nn

from millisecond import ops
from millisecond.ops import lab, submanifold_map
from millisecond.ops.lab import Dataflow, Tuned, layers, pair_map, read_tuned, use_tuned
from millisecond.ops.lab.tuned import KINDS, FastestDataflow, Origin, Work, as_json
from tests.helpers.dense_oracle import draws, random_sites

FETCH = Dataflow("fetch_on_demand")
GEMM = Dataflow()


def written(path, changed=None, **origin):
    work = Work.of("submanifold", (27, 8, 16), torch.float16, 70000, False)
    assert work == ("submanifold", 27, 8, 16, "fp16", False, 17)
    other = work._replace(training=True)
    gather = Dataflow("gather_scatter", epsilon=0.1)
    fastest = {work: FastestDataflow(FETCH, GEMM), other: FastestDataflow(gather, gather)}
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
        ({"unlisted": 3}, "unlisted: 3 is not text"),
        ({"c_in": -1}, "c_in: -1 is not a whole number"),
        ({"c_in": [1]}, r"c_in: \[1\] is not a whole number"),
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
        with pytest.raises(ValueError, match=f"^{path}: is not"):
            read_tuned(path)
    written(path, device=7)
    with pytest.raises(ValueError, match=f"^{path}: device: 7 is not text"):
        read_tuned(path)


def test_layers_take_what_was_measured_for_their_size():
    coords = random_sites(0, 1, (6, 7, 8))
    kernel_map = submanifold_map(coords, (6, 7, 8), 1)
    layer, features = lab.SubmanifoldConv(3, 5), torch.randn(len(coords), 3)
    work = Work.of("submanifold", layer.weight.shape, torch.float32, len(coords), True)
    other = Dataflow("gather_scatter")
    use_tuned(nn.ModuleList([layer]), Tuned({work: FastestDataflow(FETCH, other)}))
    listed = pair_map(kernel_map)
    assert layer.flow(features, listed) == FETCH
    assert layer.flow(features, kernel_map) == other
    assert layer.flow(features.double(), listed) == GEMM
    with torch.no_grad():
        assert layer.flow(features, listed) == GEMM
    inverse = lab.InverseConv(3, 5, 3)
    inverse.dataflow = layer.dataflow
    assert inverse.flow(features, listed) == GEMM
    tuned = layer.convolve(features, listed)
    use_tuned(layer, None)
    assert layer.flow(features, listed) is None
    assert torch.equal(tuned, layer.convolve(features, kernel_map))


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("dataflow", [FETCH, Dataflow("gather_scatter"), None], ids=str)
def test_layers_compute_as_those_of_the_main_house(monkeypatch, dataflow, device):
    """On plain maps, on maps with their pairs listed, and on location tables, by any dataflow."""
    shape = (7, 8, 9)
    coords = random_sites(0, 2, shape).to(device)
    features = draws(0, torch.float32)(len(coords), 4).to(device)
    x = ops.SparseTensor(features, coords, shape, 2)
    kinds = (("SubmanifoldConv", (4, 16, 3)), ("StridedConv", (16, 32, 3, 2, 1)))
    kinds += (("InverseConv", (32, 16, 3)),)
    plain, tunable = (
        nn.ModuleList([getattr(house, kind)(*sizes) for kind, sizes in kinds]).to(device)
        for house in (ops, lab)
    )
    tunable.load_state_dict(plain.state_dict())
    same = ops.submanifold_map(coords, shape, 2)
    below, small, down = ops.strided_map(coords, shape, 2, plain[1].geometry)
    located = (
        lab.location_map(coords, shape, 2, ops.ConvGeometry.of(3, padding=1), coords),
        lab.location_map(coords, shape, 2, plain[1].geometry, below),
    )
    flows = []
    monkeypatch.setattr(
        layers,
        "sparse_conv",
        lambda *a, dataflow: flows.append(dataflow) or lab.sparse_conv(*a, dataflow=dataflow),
    )
    works = product(KINDS, [(27, 4, 16), (27, 16, 32), (27, 32, 16)], range(24))
    if dataflow is not None:
        choice = FastestDataflow(dataflow, dataflow)
        tuned = {Work(kind, *sizes, "fp32", True, n): choice for kind, sizes, n in works}
        use_tuned(tunable, Tuned(tuned))
    results = []
    listed = pair_map(same), pair_map(down)
    for network, (around, strided) in (
        (plain, (same, down)),
        (tunable, (same, down)),
        (tunable, listed),
        (tunable, located),
    ):
        y = network[0](x, around)
        z = network[1](y, below, small, strided)
        results.append(network[2](z, y, strided).features)
    for found in results[1:]:
        torch.testing.assert_close(found, results[0], rtol=2e-5, atol=2e-5)
    assert flows == [dataflow] * 6 + [None] * 3  # there is one dataflow for location tables


def test_a_network_without_layers_of_the_lab_is_refused():
    with pytest.raises(ValueError, match=r"^network: Sequential has no layer of ops\.lab; make"):
        use_tuned(nn.Sequential(ops.SubmanifoldConv(3, 5)), Tuned({}))
