"""The folded encoder on the CUDA kernels: one graph for the compiler, one for CUDA."""

import copy

import pytest
import torch

from millisecond.detector.models.sparse_encoder import DOWNS, SparseEncoder
from millisecond.ops import VoxelGrid, Voxels, index_pyramid, index_workspace, voxelize
from millisecond.ops.capture import captured

pytestmark = pytest.mark.gpu

GRID = VoxelGrid((0, -16, -3, 32, 16, 1), (0.1, 0.1, 0.1))
CAPACITIES = [6000, 24000, 30000, 12000, 9000]


def street(seed: int) -> Voxels:
    """Voxels of points on a slope and of a few clusters, padded to the first capacity."""
    generator = torch.Generator().manual_seed(seed)
    ground = torch.rand(4000, 4, generator=generator) * torch.tensor([32, 32, 0.2, 1])
    clusters = torch.rand(20, 1, 4, generator=generator) * torch.tensor([32, 32, 2, 1])
    clusters = clusters + torch.randn(20, 80, 4, generator=generator) * 0.4
    points = torch.cat([ground, clusters.reshape(-1, 4)]) - torch.tensor([0, 16, 2, 0])
    offsets = torch.tensor([0, len(points)], dtype=torch.int32)
    found = voxelize(points, offsets, GRID, capacity=CAPACITIES[0])
    return Voxels(*(tensor.cuda() for tensor in found[:4]), batch_size=1)


@pytest.fixture(scope="module")
def encoder():
    torch.manual_seed(0)
    model = SparseEncoder(GRID.sparse_shape, (16, 32, 64, 64), 128)
    for module in model.modules():
        if isinstance(module, torch.nn.BatchNorm1d):
            module.momentum = 1.0  # the statistics of one scan, so that no layer fades away
    voxels = street(9)
    n = int(voxels.count)
    with torch.no_grad():
        model.train()(Voxels(voxels.features[:n].cpu(), voxels.coords[:n].cpu(), None, None, 1))
    model.eval().fold()
    return model


def relative(value: torch.Tensor, reference: torch.Tensor) -> float:
    return float((value.double() - reference.double()).norm() / reference.double().norm())


@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    [(torch.float32, 1e-5), (torch.float16, 3e-3), (torch.bfloat16, 2e-2)],
    ids=str,
)
@torch.inference_mode()
def test_equals_the_reference(encoder, dtype, tolerance):
    for seed in range(3):
        voxels = street(seed)
        n = int(voxels.count)
        cpu = Voxels(voxels.features[:n].cpu().double(), voxels.coords[:n].cpu(), None, None, 1)
        want = copy.deepcopy(encoder).double()(cpu)
        model = copy.deepcopy(encoder).cuda().to(dtype)
        exact = Voxels(voxels.features[:n], voxels.coords[:n], None, None, 1)
        assert relative(model(exact).cpu(), want) < tolerance
        assert relative(model(voxels, CAPACITIES).cpu(), want) < tolerance
    pyramid = index_pyramid(
        voxels.coords, GRID.sparse_shape, 1, DOWNS, capacities=CAPACITIES, count=voxels.count
    )
    assert not pyramid.overflow.item()


@torch.inference_mode()
def test_compiles_to_one_graph(encoder):
    model = copy.deepcopy(encoder).cuda().half()
    workspace = index_workspace(GRID.sparse_shape, 1, DOWNS, torch.device("cuda"))

    def run(features, coords, count):
        return model(Voxels(features, coords, count, None, 1), CAPACITIES, workspace)

    compiled = torch.compile(run, fullgraph=True, backend="aot_eager")
    for seed in range(2):
        voxels = street(seed)
        assert torch.equal(compiled(*voxels[:3]), run(*voxels[:3]))


@torch.inference_mode()
def test_one_cuda_graph_for_every_scan(encoder):
    model = copy.deepcopy(encoder).cuda().half()
    workspace = model.workspace(1, torch.device("cuda"))
    held = street(3)  # where the graph reads
    graph, bev = captured(lambda: model(held, CAPACITIES, workspace))
    for seed in (1, 2, 0):
        voxels = street(seed)
        for to, values in zip(held[:3], voxels[:3], strict=True):
            to.copy_(values)
        graph.replay()
        assert torch.equal(bev, model(voxels, CAPACITIES))


@torch.inference_mode()
def test_a_graph_tells_of_rows_that_do_not_fit(encoder):
    model = copy.deepcopy(encoder).cuda().half()
    workspace, voxels = model.workspace(1, torch.device("cuda")), street(1)
    for capacities, over in ((CAPACITIES, False), ((*CAPACITIES[:4], 10), True)):
        graph, pyramid = captured(lambda rows=capacities: model.index(voxels, rows, workspace))
        graph.replay()
        assert bool(pyramid.overflow.item()) == over


def test_training_gives_the_same_bits(encoder):
    torch.manual_seed(1)
    model = SparseEncoder(GRID.sparse_shape, (16, 32, 64, 64), 128).cuda().train()
    voxels = street(3)
    n = int(voxels.count)
    exact = Voxels(voxels.features[:n], voxels.coords[:n], None, None, 1)
    grad = None
    runs = []
    for _ in range(10):
        model.zero_grad()
        with torch.autocast("cuda", torch.float16):
            out = model(exact)
        grad = torch.randn_like(out) if grad is None else grad
        out.backward(grad)
        runs.append([out.detach(), *(p.grad.clone() for p in model.parameters())])
    for run in runs[1:]:
        assert all(torch.equal(one, other) for one, other in zip(runs[0], run, strict=True))
