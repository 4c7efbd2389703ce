"""Sparse max pooling on CUDA equals the reference, with its gradient."""

import pytest
import torch

from millisecond.ops import ConvGeometry, index_pyramid, sparse_max_pool, strided_map
from millisecond.ops.geometry import coords_of_keys

pytestmark = pytest.mark.gpu

SHAPE = (9, 20, 30)
WINDOW = ConvGeometry((3, 3, 3), (2, 2, 2), (1, 1, 1), (1, 1, 1))


def random_coords(seed, size):
    generator = torch.Generator().manual_seed(seed)
    keys = torch.randint(2 * 9 * 20 * 30, (size,), generator=generator).unique()
    return coords_of_keys(keys, SHAPE)


def assert_same(name, got, want, rtol=0.0):
    torch.testing.assert_close(
        got.cpu(), want, rtol=rtol, atol=0, equal_nan=True, msg=lambda m: f"{name}: {m}"
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize(("size", "channels"), [(0, 4), (1, 1), (2000, 16), (700, 5)])
def test_equals_the_reference(dtype, size, channels):
    coords = random_coords(1, size)
    generator = torch.Generator().manual_seed(2)
    features = torch.randint(-4, 5, (len(coords), channels), generator=generator).to(dtype)
    _, _, kernel_map = strided_map(coords, SHAPE, 2, WINDOW)
    weights = torch.rand(kernel_map.forward.neighbours.shape[1], channels).to(dtype)
    results = []
    for on in (lambda tensor: tensor, lambda tensor: tensor.cuda()):
        _, _, kernel_map = strided_map(on(coords), SHAPE, 2, WINDOW)
        leaf = on(features).detach().requires_grad_()
        out = sparse_max_pool(leaf, kernel_map)
        out.backward(on(weights))
        results.append((out.detach(), leaf.grad))
    (want, want_grad), (got, got_grad) = results
    assert_same("out", got, want)  # many ties, so the gradient tells which input was taken
    assert_same("gradient", got_grad, want_grad, rtol=4 * torch.finfo(dtype).eps)


def test_nan_and_infinity():
    coords = random_coords(3, 1500)
    features = torch.randn(len(coords), 3)
    features[::7] = float("nan")
    features[::11] = float("-inf")
    _, _, cpu = strided_map(coords, SHAPE, 2, WINDOW)
    _, _, gpu = strided_map(coords.cuda(), SHAPE, 2, WINDOW)
    assert_same("out", sparse_max_pool(features.cuda(), gpu), sparse_max_pool(features, cpu))


def test_rows_behind_the_count_are_zero():
    coords = random_coords(4, 500)
    options = {"capacities": (600, 900), "transposed": False}
    cpu = index_pyramid(coords, SHAPE, 2, [WINDOW], **options).levels[1].down
    gpu = index_pyramid(coords.cuda(), SHAPE, 2, [WINDOW], **options).levels[1].down
    features = torch.randn(600, 8)
    assert_same("out", sparse_max_pool(features.cuda(), gpu), sparse_max_pool(features, cpu))


def test_operator_is_well_behaved():
    coords = random_coords(5, 300)
    _, _, kernel_map = strided_map(coords.cuda(), SHAPE, 2, WINDOW)
    forward, backward = kernel_map
    features = torch.randn(len(coords), 4).cuda()
    sparse_max_pool(features, kernel_map)  # loads the operators
    operators = torch.ops.millisecond
    torch.library.opcheck(operators.max_pool.default, (features, forward.neighbours, None))
    out, source = operators.max_pool(features, forward.neighbours, None)
    torch.library.opcheck(
        operators.max_pool_backward.default, (out, source, backward.neighbours, None)
    )
