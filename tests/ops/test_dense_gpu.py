"""Scattering rows to a dense grid on CUDA equals the reference, with its gradient."""

import pytest
import torch

from millisecond.ops import bev_map, dense
from millisecond.ops.geometry import coords_of_keys

pytestmark = pytest.mark.gpu


def random_coords(shape, size, batch_size=2):
    volume = batch_size
    for n in shape:
        volume *= n
    keys = torch.randint(volume, (size,), generator=torch.Generator().manual_seed(1))
    return coords_of_keys(keys.unique(), shape)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("shape", [(3, 7, 9), (2, 20, 30), (8, 9)])
@pytest.mark.parametrize("size", [0, 1, 60])
@pytest.mark.parametrize("counted", [False, True])
def test_equals_the_reference(dtype, shape, size, counted):
    coords = random_coords(shape, size)
    features = torch.randn(len(coords), 5).to(dtype)
    count = None
    if counted:
        count = torch.tensor([len(coords)], dtype=torch.int32)
        coords = torch.cat([coords, torch.full((7, 1 + len(shape)), -1, dtype=torch.int32)])
        features = torch.cat([features, torch.full((7, 5), float("nan"), dtype=dtype)])
    for function in (dense, bev_map)[: len(shape) - 1]:
        results = []
        for on in (lambda tensor: tensor, lambda tensor: tensor.cuda()):
            leaf = on(features).detach().requires_grad_()
            out = function(leaf, on(coords), shape, 2, None if count is None else on(count))
            weights = torch.arange(out.numel()).view(out.shape).to(dtype)
            out.backward(on(weights))
            results.append((out.detach(), leaf.grad))
        for name, want, got in zip(("out", "gradient"), *results, strict=True):
            torch.testing.assert_close(
                got.cpu(), want, rtol=0, atol=0, msg=lambda m, name=name: f"{name}: {m}"
            )


def test_bev_map_has_channels_last():
    coords = random_coords((2, 20, 30), 50).cuda()
    out = bev_map(torch.randn(len(coords), 4).cuda(), coords, (2, 20, 30), 2)
    assert out.shape == (2, 8, 20, 30)
    assert out.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("from_above", [False, True])
def test_operator_is_well_behaved(from_above):
    coords = random_coords((2, 6, 7), 50).cuda()
    features = torch.randn(len(coords), 4).cuda()
    dense(features, coords, (2, 6, 7), 2)  # loads the operators
    operators = torch.ops.millisecond
    torch.library.opcheck(
        operators.dense.default, (features, coords, None, 2, (2, 6, 7), from_above)
    )
    grid = operators.dense(features, coords, None, 2, (2, 6, 7), from_above)
    torch.library.opcheck(
        operators.dense_backward.default, (grid, coords, None, (2, 6, 7), from_above)
    )


def test_its_gradient_has_none():
    coords = random_coords((2, 6, 7), 50).cuda()
    features = torch.randn(len(coords), 4).cuda().requires_grad_()
    out = dense(features, coords, (2, 6, 7), 2)
    (gradient,) = torch.autograd.grad(out.square().sum(), features, create_graph=True)
    torch.testing.assert_close(gradient, 2 * features)
    with pytest.raises(RuntimeError, match="dense: its gradient cannot be differentiated"):
        gradient.sum().backward()


def test_wrong_tensors():
    coords = random_coords((2, 6, 7), 50).cuda()
    features = torch.randn(len(coords), 4).cuda()
    with pytest.raises(ValueError, match="features: expected"):
        dense(features[1:], coords, (2, 6, 7), 2)
    with pytest.raises(RuntimeError, match="count must be Int"):
        dense(features, coords, (2, 6, 7), 2, count=features[0, :1].detach())
