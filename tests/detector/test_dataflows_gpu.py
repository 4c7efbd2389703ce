"""Tuned dataflows on a GPU: in networks of ops.spconv and in the detector."""

import warnings

import pytest
import torch
from torch import nn

import ops.spconv as spconv
from detector import Detector
from detector.inference import Inference
from ops import Dataflow, PairMap, pair_map, submanifold_map, use_tuned
from tests.conftest import CONV_BLOCKS
from tests.helpers.small_detector import build_small_network, cloud
from tests.helpers.sparse import error, random_coords
from tests.helpers.tuned import FETCH, every_size, write_tuned

pytestmark = pytest.mark.gpu

SHAPE = (8, 40, 38)
FLOWS = [FETCH, Dataflow("gather_scatter")]
TYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}


@pytest.fixture(scope="module")
def sites():
    return random_coords(torch.Generator().manual_seed(0), SHAPE, 2, 0.1).cuda().contiguous()


def network() -> spconv.SparseSequential:
    torch.manual_seed(0)
    down = {"stride": 2, "padding": 1, "indice_key": "down"}
    net = spconv.SparseSequential(
        spconv.SubMConv3d(4, 16, 3, bias=False, indice_key="a"),
        nn.BatchNorm1d(16),
        nn.ReLU(),
        spconv.SparseConv3d(16, 128, 3, **down),
        spconv.SubMConv3d(128, 128, 3, bias=False, indice_key="b"),
        nn.BatchNorm1d(128),
        nn.ReLU(),
        spconv.SparseInverseConv3d(128, 16, 3, indice_key="down"),
    )
    return net.cuda()


@pytest.mark.parametrize("dataflow", FLOWS, ids=str)
@pytest.mark.parametrize("precision", TYPES)
@pytest.mark.parametrize("training", [False, True], ids=["inference", "training"])
def test_networks_of_spconv(sites, monkeypatch, dataflow, precision, training):
    """Under autocast where the precision is not that of the weights."""
    shapes = [(27, 4, 16), (27, 16, 128), (27, 128, 128), (27, 128, 16)]
    order = torch.randperm(len(sites), generator=torch.Generator().manual_seed(1)).cuda()
    torch.manual_seed(0)
    features, gradient = (torch.randn(len(sites), width, device="cuda") for width in (4, 16))
    seen, results = [], []
    product = spconv.convolution.product
    monkeypatch.setattr(spconv.convolution, "product", lambda *a: seen.append(a[2]) or product(*a))
    tuned = every_size(training, precision, shapes, dataflow)
    for given in (None, tuned, tuned):
        net = network().train(training)
        use_tuned(net, given)
        seen.clear()
        x = spconv.SparseConvTensor(features, sites[order], SHAPE, 2)
        half = torch.autocast("cuda", TYPES[precision], precision != "fp32")
        with torch.set_grad_enabled(training), half:
            out = net(x).features.float()
        found = [out.detach()]
        if training:
            found += torch.autograd.grad(out, list(net.parameters()), gradient)
        results.append(found)
    assert len(seen) == 4 and all(isinstance(taken, PairMap) for taken in seen)
    for plain, first, again in zip(*results, strict=True):
        assert torch.equal(first, again)
        assert error(first, plain.double()) < CONV_BLOCKS[TYPES[precision]]


def test_a_graph_cannot_hold_what_counts_pairs(sites):
    kernel_map = submanifold_map(sites, SHAPE, 2)
    pair_map(kernel_map)
    refused = pytest.raises(ValueError, match="list them before the capture")
    with refused, torch.cuda.graph(torch.cuda.CUDAGraph()):
        pair_map(kernel_map)
    assert len(pair_map(kernel_map).pairs.sources)  # the device works on


@pytest.mark.parametrize("dataflow", FLOWS, ids=str)
@pytest.mark.parametrize("precision", TYPES)
def test_detector(tmp_path, dataflow, precision):
    config, model = build_small_network()
    path, points = tmp_path / "tuned.json", torch.from_numpy(cloud(8000))
    shapes = [tuple(shape) for _, shape in model.encoder._layers()]
    write_tuned(path, every_size(False, precision, shapes, dataflow))
    with pytest.warns(UserWarning, match=f"by {dataflow}, .*a CUDA graph cannot hold that"):
        detector = Detector(model, config, "cuda", precision, path)
    assert detector._graphs is None
    again = [detector.detect(points)[0] for _ in range(2)]
    assert all(torch.equal(a, b) for a, b in zip(*again, strict=True)) and len(again[0].boxes)
    rows = []
    for inference in (Inference(model, config, detector.device, precision), detector._inference):
        with torch.inference_mode():
            offsets = torch.tensor([0, len(points)], dtype=torch.int32, device="cuda")
            voxels = inference.model.voxelize(points.cuda(), offsets)
            rows.append(inference.encode(voxels, inference.model.index(voxels)))
    tolerance = {"fp32": 1e-5, "fp16": 3e-3, "bf16": 2e-2}[precision]  # as of the encoder's tests
    assert error(rows[1], rows[0].double()) < tolerance


def test_detector_of_implicit_gemms_keeps_its_graphs(tmp_path):
    config, model = build_small_network()
    path = tmp_path / "tuned.json"
    shapes = [tuple(shape) for _, shape in model.encoder._layers()]
    write_tuned(path, every_size(False, "fp16", shapes, Dataflow()))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        detector = Detector(model, config, "cuda", "fp16", path)
    assert detector._graphs is not None
    plain, points = Detector(model, config, "cuda", "fp16"), cloud(8000)
    for a, b in zip(detector(points), plain(points), strict=True):
        assert torch.equal(a, b)
