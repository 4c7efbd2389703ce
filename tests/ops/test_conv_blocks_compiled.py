"""Training blocks through torch.compile: the gradients are as in eager mode."""

from itertools import pairwise

import pytest
import torch
import torch._functorch.config as functorch

from millisecond.ops import ConvGeometry, conv_blocks, strided_map, submanifold_map
from tests.conftest import CONV_BLOCKS
from tests.helpers.dense_oracle import draws, random_sites
from tests.helpers.sparse import error

SHAPE, CHANNELS = (9, 12, 10), (4, 16, 16, 32)
BACKENDS = [
    ("cpu", "aot_eager"),
    pytest.param("cuda", "aot_eager", marks=pytest.mark.gpu),
    pytest.param("cuda", "inductor", marks=pytest.mark.gpu),
]


@pytest.mark.parametrize(("device", "backend"), BACKENDS)
@functorch.patch(donated_buffer=False)  # for retain_graph
def test_gradients(device, backend):
    coords = random_sites(1, 2, SHAPE, 0.2).to(device)
    same = submanifold_map(coords, SHAPE, 2)
    maps = [same, same, strided_map(coords, SHAPE, 2, ConvGeometry.of(3, 2, 1))[2]]
    draw = draws(2, torch.float32)
    shapes = [(27, c_in, c_out) for c_in, c_out in pairwise(CHANNELS)]
    residual = draw(maps[-1].forward.neighbours.shape[1], CHANNELS[-1])
    leaves = [draw(len(coords), 4), residual, *(draw(*shape) / 10 for shape in shapes)]
    leaves = [leaf.to(device).requires_grad_() for leaf in leaves]

    def run(features, residual, weights, norms):
        return 2 * conv_blocks(1.5 * features, weights, maps, norms, residual).tanh()

    results = []
    for call in (run, torch.compile(run, backend=backend, fullgraph=True)):
        norms = [torch.nn.BatchNorm1d(c, momentum=0.01).to(device) for c in CHANNELS[1:]]
        inputs = leaves + [p for norm in norms for p in norm.parameters()]
        for _ in range(2):
            out = call(*leaves[:2], leaves[2:], norms)
            seen = torch.linspace(-1, 1, out.numel(), device=device).view_as(out)
            first = torch.autograd.grad(out, inputs, seen, retain_graph=True)
            second = torch.autograd.grad(out, inputs, seen)
            assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
        statistics = [buffer for norm in norms for buffer in (norm.running_mean, norm.running_var)]
        results.append([out, *first, *statistics])
    for one, other in zip(*results, strict=True):
        assert error(one, other) <= CONV_BLOCKS[torch.float32]
