"""Training of a network of ops.spconv through torch.compile: its gradients are as in eager mode."""

import copy
import subprocess
import sys

import pytest
import torch
import torch._functorch.config as functorch
from torch import nn

import millisecond.ops.spconv as spconv
from tests.conftest import CONV_BLOCKS
from tests.helpers.dense_oracle import draws, random_sites
from tests.helpers.sparse import error

SHAPE = (9, 18, 16)
BACKENDS = [
    ("cpu", "aot_eager"),
    pytest.param("cuda", "aot_eager", marks=pytest.mark.gpu),
    pytest.param("cuda", "inductor", marks=pytest.mark.gpu),
]


def block(conv):
    return spconv.SparseSequential(
        conv, nn.BatchNorm1d(conv.out_channels, eps=1e-3, momentum=0.01), nn.ReLU()
    )


class Network(nn.Module):
    """Blocks down and up again; `middle` is used twice."""

    def __init__(self):
        super().__init__()
        window = {"stride": 2, "padding": 1, "bias": False, "indice_key": "down"}
        self.stem = block(spconv.SubMConv3d(4, 16, 3, bias=False, indice_key="a"))
        self.down = block(spconv.SparseConv3d(16, 32, 3, **window))
        self.middle = block(spconv.SubMConv3d(32, 32, 3, bias=False, indice_key="b"))
        self.up = block(spconv.SparseInverseConv3d(32, 16, 3, bias=False, indice_key="down"))
        self.head = nn.Linear(16, 8)

    def forward(self, x):
        x = self.stem(x)
        y = self.middle(self.middle(self.down(x)))
        return self.head(self.up(y).features + x.features).tanh()


@pytest.mark.parametrize(("device", "backend"), BACKENDS)
@functorch.patch(donated_buffer=False)  # for retain_graph
def test_gradients(device, backend):
    torch.manual_seed(0)
    plain = Network().to(device)
    other = copy.deepcopy(plain)
    compiled = torch.compile(other, backend=backend)
    for seed in range(2):  # another number of rows; its maps are foreseen
        sites = random_sites(seed, 2, SHAPE, 0.1).to(device)
        values = draws(seed, torch.float32)(len(sites), 4).to(device)
        results = []
        for network in (plain, compiled):
            features = values.clone().requires_grad_()
            leaves = [features, *network.parameters()]
            out = network(spconv.SparseConvTensor(features, sites, SHAPE, 2))
            seen = draws(7, torch.float32)(*out.shape).to(device)
            first = torch.autograd.grad(out, leaves, seen, retain_graph=True)
            second = torch.autograd.grad(out, leaves, seen)
            assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
            results.append([out, *first, *network.buffers()])
        for one, other in zip(*results, strict=True):
            assert error(one, other) <= CONV_BLOCKS[torch.float32]


def test_who_compiles_nothing_does_not_import_torchs_compiler():
    """It takes a second, which a program would start later."""
    program = """if True:
        import sys
        import millisecond.ops.spconv, millisecond.tools.detect
        sys.exit("torch._dynamo" in sys.modules)
    """
    assert subprocess.run([sys.executable, "-c", program], timeout=60).returncode == 0
