"""The network: its size, its shapes, and that it is a function of its input."""

from pathlib import Path

import pytest
import torch
from torch import nn

from millisecond.detector.config import load_config
from millisecond.detector.models.layers import MapNorm, RowNorm, _Heads
from millisecond.detector.models.second import build_second
from millisecond.ops import Voxels, voxelize

CONFIGS = Path(__file__).resolve().parents[2] / "configs"


@pytest.fixture(scope="module")
def small():
    """A small network with statistics as after some training."""
    torch.manual_seed(0)
    model = build_second(load_config(CONFIGS / "second_small.yaml")).eval()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d):
            for tensor, low, high in (
                (module.weight, 0.5, 1.5),
                (module.bias, -0.5, 0.5),
                (module.running_mean, -0.2, 0.2),
                (module.running_var, 0.3, 1.0),
            ):
                nn.init.uniform_(tensor, low, high)
    return model


def cloud(count, seed):
    generator = torch.Generator().manual_seed(seed)
    scale, lower = torch.tensor([44.0, 44, 5, 1]), torch.tensor([2.0, 22, 3.5, 0])
    return torch.rand(count, 4, generator=generator) * scale - lower


def offsets(*counts):
    return torch.tensor([0, *counts], dtype=torch.int32).cumsum(0, dtype=torch.int32)


def close(a, b, tolerance):
    for x, y in zip(a, b, strict=True):
        assert (x - y).abs().max() <= tolerance * y.abs().max()


def test_size_of_second_on_kitti():
    config = load_config(CONFIGS / "second_kitti.yaml")
    model = build_second(config)
    assert sum(p.numel() for p in model.parameters()) == 5_325_576
    convolutions = [m for m in model.encoder.modules() if hasattr(m, "norm")]
    assert len(convolutions) == 12
    assert [list(m.weight.shape) for m in convolutions][-1] == [3, 64, 128]
    assert model.head.classes.weight.shape[0] == 18
    assert model.head.boxes.weight.shape[0] == 42
    assert model.head.directions.weight.shape[0] == 12
    score = torch.sigmoid(model.head.classes.bias)
    torch.testing.assert_close(score, torch.full_like(score, 0.01))
    assert model.head.boxes.weight.abs().max() < 0.01, "the first boxes are the anchors"


def test_training_and_detection_have_caps_of_their_own():
    caps = {True: 50, False: 80}
    values = [f"grid.max_voxels_train={caps[True]}", f"grid.max_voxels_test={caps[False]}"]
    model = build_second(load_config(CONFIGS / "second_small.yaml", values))
    for training, cap in caps.items():
        voxels = model.train(training).voxelize(cloud(2000, 0), offsets(2000))
        assert len(voxels.coords) == cap


def test_shapes(small):
    with torch.inference_mode():
        out = small(*small.sites(torch.cat((cloud(3000, 0), cloud(2000, 1))), offsets(3000, 2000)))
    assert out.class_logits.shape == (2, 48 * 60 * 2, 1)
    assert out.box_residuals.shape == (2, 48 * 60 * 2, 7)
    assert out.direction_logits.shape == (2, 48 * 60 * 2, 2)


@torch.inference_mode()
def test_a_forward_pass_is_its_stages(small):
    points, starts = torch.cat((cloud(3000, 0), cloud(2000, 1))), offsets(3000, 2000)
    voxels = small.voxelize(points, starts)
    pyramid = small.index(voxels)
    assert voxels.batch_size == pyramid.batch_size == 2
    bev = small.encode(voxels, pyramid)
    assert bev.shape == (2, *small.encoder.bev_shape)
    assert bev.is_contiguous(memory_format=torch.channels_last)
    for got, want in zip(small.predict(bev), small(*small.sites(points, starts)), strict=True):
        assert torch.equal(got, want)
    capacities = [len(level.coords) for level in pyramid.levels]
    assert small.encoder.index(voxels, capacities).batch_size == 2


@torch.inference_mode()
def test_frames_of_a_batch_do_not_see_each_other(small):
    clouds = [cloud(3000, 0), cloud(0, 1), cloud(2000, 2)]
    together = small(*small.sites(torch.cat(clouds), offsets(*map(len, clouds))))
    for b, points in enumerate(clouds):
        alone = small(*small.sites(points, offsets(len(points))))
        close([p[b : b + 1] for p in together], alone, 1e-5)


@torch.inference_mode()
def test_folding_changes_nothing_but_rounding(small):
    before = {name: tensor.clone() for name, tensor in small.state_dict().items()}
    folded = small.fold()
    points = cloud(4000, 3)
    close(
        folded(*folded.sites(points, offsets(4000))),
        small(*small.sites(points, offsets(4000))),
        1e-5,
    )
    norms = [m for m in folded.modules() if isinstance(m, nn.BatchNorm1d | nn.BatchNorm2d)]
    assert not norms
    assert all(torch.equal(tensor, before[name]) for name, tensor in small.state_dict().items())


@torch.inference_mode()
def test_nothing_is_kept_between_calls(small):
    points = cloud(3000, 4)
    first = small(*small.sites(points, offsets(3000)))
    small(*small.sites(cloud(500, 5), offsets(500)))
    again = small(*small.sites(points, offsets(3000)))
    for a, b in zip(first, again, strict=True):
        assert torch.equal(a, b)


@torch.inference_mode()
def test_the_map_has_its_layers_one_after_another():
    model = build_second(load_config(CONFIGS / "second_kitti.yaml")).eval()
    for block in model.encoder.modules():
        if hasattr(block, "norm"):  # the input counts through: every output is a sum of inputs
            nn.init.ones_(block.weight)
    # A voxel at the bottom of the grid reaches only the lower of the map's two layers.
    voxels = Voxels(
        torch.ones(1, 4), torch.tensor([[0, 2, 800, 704]], dtype=torch.int32), None, None, 1
    )
    bev = model.encoder(voxels)
    assert bev.shape == (1, 256, 200, 176)
    reached = bev[0].flatten(1).any(dim=1)
    assert reached[:128].all()
    assert not reached[128:].any()


@torch.inference_mode()
def test_fixed_capacities_change_nothing(small):
    folded = small.fold()
    points = cloud(3000, 6)
    voxels = voxelize(points, offsets(3000), small.grid, small.max_points, 4000)
    rows = len(voxels.coords)
    spare = 4000 - rows
    padded = Voxels(
        torch.cat((voxels.features, torch.zeros(spare, 4))),
        torch.cat((voxels.coords, torch.full((spare, 4), -1, dtype=torch.int32))),
        torch.tensor([rows], dtype=torch.int32),
        voxels.dropped,
        1,
    )
    fixed = folded.encoder(padded, capacities=(4000, 12000, 12000, 6000, 6000))
    torch.testing.assert_close(fixed, folded.encoder(voxels))


def test_batch_statistics_on_the_cpu_are_accurate():
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(40000, 8, generator=generator) * 2 + 3
    maps = rows.view(2, 100, 200, 8).permute(0, 3, 1, 2)  # channels last
    expected = (rows.double() - rows.double().mean(0)) / (rows.double().var(0, False) + 1e-3).sqrt()
    for norm, data in ((RowNorm(8), rows), (MapNorm(8), maps)):
        out = norm(data)
        out = out if data is rows else out.permute(0, 2, 3, 1).reshape(-1, 8)
        assert (out - expected).abs().max() < 3e-6
        torch.testing.assert_close(
            norm.running_mean.double(), 0.01 * rows.double().mean(0), rtol=1e-6, atol=0
        )


@pytest.mark.parametrize("points", [torch.zeros(0, 4), torch.tensor([[5.0, 0, -1, 0.5]])])
def test_training_on_a_cloud_of_hardly_any_points_is_finite(points):
    model = build_second(load_config(CONFIGS / "second_small.yaml"))
    sum(p.sum() for p in model(*model.sites(points, offsets(len(points))))).backward()
    for tensor in (*model.parameters(), *model.buffers()):
        assert tensor.isfinite().all()
        assert tensor.grad is None or tensor.grad.isfinite().all()


def test_gradients_reach_every_parameter():
    torch.manual_seed(0)
    model = build_second(load_config(CONFIGS / "second_small.yaml"))
    out = model(*model.sites(cloud(3000, 7), offsets(3000)))
    sum((p * torch.randn_like(p)).sum() for p in out).backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
    assert all(p.grad.any() for p in model.parameters())


@pytest.mark.parametrize(
    ("device", "dtype", "error"),
    [
        ("cpu", torch.float64, 1e-12),
        ("cpu", torch.float32, 1e-5),
        *[
            pytest.param("cuda", dtype, error, marks=pytest.mark.gpu)
            for dtype, error in (
                (torch.float32, 5e-5),
                (torch.float16, 2e-3),
                (torch.bfloat16, 2e-2),
            )
        ],
    ],
)
def test_heads_are_a_convolution(device, dtype, error):
    """In float64, with its gradients; one head has none. A sum over 140,800 cells, one after
    another, has a rounding error of about 6e-8 times the root of their number, 2e-5, in float32."""
    torch.manual_seed(0)
    sizes, cells = [18, 42, 12], (4, 200, 176) if device == "cuda" else (2, 40, 33)
    batch, height, width = cells
    features = torch.randn(batch, 64, height, width, device=device, dtype=dtype)
    weight = torch.randn(sum(sizes), 64, 1, 1, device=device, dtype=dtype) / 8
    bias = torch.randn(sum(sizes), device=device, dtype=dtype)
    gradients = [torch.randn(*cells, size, device=device, dtype=dtype) for size in sizes]
    gradients[2].zero_()

    def found(heads, kind):
        inputs = [tensor.to(kind) for tensor in (features, weight, bias)]
        inputs[:2] = [t.contiguous(memory_format=torch.channels_last) for t in inputs[:2]]
        for tensor in inputs:
            tensor.requires_grad_()
        parts = heads(*inputs)
        used = [gradient.to(kind) for gradient in gradients[:2]]
        return [*parts, *torch.autograd.grad(parts[:2], inputs, used)]

    def convolution(*inputs):
        return nn.functional.conv2d(*inputs).permute(0, 2, 3, 1).split(sizes, dim=-1)

    want = found(convolution, torch.float64)
    got = found(lambda *tensors: _Heads.apply(*tensors, sizes, None), dtype)
    for one, other in zip(want, got, strict=True):
        assert other.dtype == dtype
        assert (other.double() - one).norm() <= error * one.norm()
    assert got[4].stride() == (64, 1, 64, 64)  # as of a layer that is channels last
