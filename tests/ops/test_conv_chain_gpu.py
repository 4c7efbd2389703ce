"""Convolutions one after another: CUDA graphs, precisions, weights that are loaded anew."""

import copy

import pytest
import torch

from millisecond.ops import ConvChain, ConvGeometry, Level, index_pyramid, sparse_conv
from tests.conftest import CONV_CHAIN

pytestmark = pytest.mark.gpu

SHAPE, BATCH = (5, 40, 30), 3
DOWN = ConvGeometry((3, 3, 3), (2, 2, 2), (0, 1, 1), (1, 1, 1))


def levels(seed: int, share: float, capacities=None) -> tuple[Level, ...]:
    generator = torch.Generator().manual_seed(seed)
    sites = torch.rand(BATCH, *SHAPE, generator=generator) < share
    coords = sites.nonzero().int().cuda()
    return index_pyramid(coords, SHAPE, BATCH, [DOWN], capacities=capacities).levels


def chain(dtype: torch.dtype, c_out: int) -> ConvChain:
    generator = torch.Generator().manual_seed(c_out)
    sizes = [(27, 4, 16), (27, 16, 32), (27, 32, c_out)]
    weights = [torch.randn(size, generator=generator) / 8 for size in sizes]
    biases = [torch.randn(size[-1], generator=generator) for size in sizes]
    return ConvChain(weights, biases).cuda().to(dtype)


@torch.inference_mode()
def test_graph_replays_over_what_was_there():
    model = chain(torch.float16, 128)
    above, below = levels(4, 0.1)
    maps = [above.submanifold, above.submanifold, below.down]
    features = torch.randn(len(above.coords), 4, device="cuda")
    want = model(features, maps).clone()
    stream = torch.cuda.Stream()  # not the one that the operators were first used on
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        out = model(features, maps)
    for _ in range(20):
        out.fill_(torch.nan)
        graph.replay()
        assert torch.equal(out, want)


@pytest.mark.parametrize("made_under", ["highest", "high"])
@torch.inference_mode()
def test_the_precision_is_that_of_packing(made_under):
    """Whatever torch is set to when the chain is called: tiles for tf32 are not rows of float32."""
    before = torch.get_float32_matmul_precision()
    above, below = levels(6, 0.2)
    maps = [above.submanifold, above.submanifold, below.down]
    features = torch.randn(len(above.coords), 4, device="cuda")
    try:
        torch.set_float32_matmul_precision(made_under)
        model = chain(torch.float32, 64)
        want = model(features, maps)
        exact = chain(torch.float64, 64)(features, maps)
        tolerance = CONV_CHAIN[made_under]
        assert (want - exact).norm() / exact.norm() < tolerance
        for called_under in ("highest", "high", "medium"):
            torch.set_float32_matmul_precision(called_under)
            assert torch.equal(model(features, maps), want)
            again = copy.deepcopy(model)
            assert torch.equal(again(features, maps), want)
    finally:
        torch.set_float32_matmul_precision(before)


@torch.inference_mode()
def test_loaded_weights_are_packed_anew():
    model, other = chain(torch.float16, 64), chain(torch.float16, 64)
    above, below = levels(7, 0.2)
    maps = [above.submanifold, above.submanifold, below.down]
    features = torch.randn(len(above.coords), 4, device="cuda")
    doubled = {name: 2 * value for name, value in model.state_dict().items()}
    model.load_state_dict(doubled)
    assert not torch.equal(model(features, maps), other(features, maps))
    rows = features.half()
    for index, kernel_map in enumerate(maps):
        weight, bias = doubled[f"weight_{index}"], doubled[f"bias_{index}"]
        rows = sparse_conv(rows, weight, kernel_map, bias, relu=True)
    difference = (model(features, maps) - rows).float().norm() / rows.float().norm()
    assert difference < 1e-3
