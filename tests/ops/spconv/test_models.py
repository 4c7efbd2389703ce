"""Networks written against spconv 2's API: on dense grids, on OpenPCDet's results, on spconv."""

import numpy as np
import pytest
import torch
from torch import nn

import millisecond.ops.spconv as spconv
from millisecond.ops.lab import spconv_networks as models
from tests.helpers import dense_spconv
from tests.helpers.dense_oracle import assert_same, draws, random_sites

SHAPE = (9, 10, 11)
MODELS = {
    "residual": (lambda engine: _features(models.residual_block(engine, 16, "a")), 16),
    "unet": (lambda engine: models.unet(engine, channels=4, levels=3), 4),
    "positional encoding": (lambda engine: models.positional_encoding(engine, 8), 6),
}


class _features(nn.Module):
    def __init__(self, block):
        super().__init__()
        self.block = block

    def forward(self, x):
        return self.block(x).features


def filled(network):
    """The network in float64, with numbers that make every part of it matter."""
    draw = draws(1)
    state = {
        name: draw(*tensor.shape).abs() + 0.5
        if "running_var" in name
        else 0.3 * draw(*tensor.shape)
        for name, tensor in network.double().state_dict().items()
        if tensor.is_floating_point()
    }
    network.load_state_dict(state, strict=False)
    return network


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("name", MODELS)
def test_on_dense_grids(name, training):
    build, channels = MODELS[name]
    ours, dense = filled(build(spconv)).train(training), filled(build(dense_spconv)).train(training)
    dense.load_state_dict(ours.state_dict())
    assert list(ours.state_dict()) == list(dense.state_dict())
    for seed in range(2):  # the second input's maps are foreseen
        indices = random_sites(seed, 2, SHAPE, 0.2)
        indices = indices[torch.randperm(len(indices), generator=torch.Generator().manual_seed(1))]
        features = draws(seed)(len(indices), channels).requires_grad_()
        got = ours(spconv.SparseConvTensor(features, indices, SHAPE, 2))
        wanted = dense(dense_spconv.SparseConvTensor(features, indices, SHAPE, 2))
        assert_same(got, wanted, 1e-9)
        seen = draws(7)(*got.shape)
        mine = torch.autograd.grad(got, [features, *ours.parameters()], seen)
        theirs = torch.autograd.grad(wanted, [features, *dense.parameters()], seen)
        for a, b in zip(mine, theirs, strict=True):
            assert_same(a, b, 1e-8)
    with torch.no_grad():
        assert_same(
            ours.eval()(spconv.SparseConvTensor(features, indices, SHAPE, 2)),
            dense.eval()(dense_spconv.SparseConvTensor(features, indices, SHAPE, 2)),
            1e-9,
        )


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_second_gives_openpcdets_results_from_its_weights(golden, device):
    folder = golden / "openpcdet_second"
    with np.load(folder / "weights_fp16.npz") as file:
        prefix = "backbone_3d."
        names = [name for name in file.files if name.startswith(prefix)]
        state = {name[len(prefix) :]: torch.from_numpy(file[name]).float() for name in names}
    network = models.second(spconv).eval()
    result = network.load_state_dict(state, strict=False)
    assert not result.unexpected_keys
    assert all(name.endswith("num_batches_tracked") for name in result.missing_keys)
    recorded = np.load(folder / "infer_0.npz")
    generator = spconv.utils.PointToVoxel(
        (0.05, 0.05, 0.1), (0, -40, -3, 70.4, 40, 1), 4, 40000, 5, torch.device(device)
    )
    voxels, indices, number = generator(torch.from_numpy(recorded["points"]).to(device))
    assert len(indices) == recorded["num_voxels"]
    mean = voxels.sum(1) / number[:, None]
    indices = nn.functional.pad(indices, (1, 0)).int()
    x = spconv.SparseConvTensor(mean, indices, [41, 1600, 1408], 1)
    with torch.no_grad():
        bev = network.to(device)(x)[0].double().cpu()
    seen = bev.flatten(1)[:, recorded["pos"]].numpy()
    error = np.abs(seen - recorded["bev"]).max() / np.abs(recorded["bev"]).max()
    assert error < 1e-3
    assert bev.abs().sum().item() == pytest.approx(float(recorded["bev_abs_sum"]), rel=1e-5)


def test_second_on_spconv_itself():
    """Its CPU build runs what has no bias."""
    theirs = pytest.importorskip("spconv.pytorch")
    indices = random_sites(0, 2, (41, 24, 24), 0.02)
    indices = indices[torch.randperm(len(indices), generator=torch.Generator().manual_seed(0))]
    features = draws(0, torch.float32)(len(indices), 4)
    peer, ours = models.second(theirs), models.second(spconv)
    ours.load_state_dict(peer.state_dict())
    peer.load_state_dict(ours.state_dict())
    with torch.no_grad():
        wanted = peer(theirs.SparseConvTensor(features, indices, [41, 24, 24], 2))
        got = ours(spconv.SparseConvTensor(features, indices, [41, 24, 24], 2))
    torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-4)
