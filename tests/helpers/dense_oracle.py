"""The dense grid around active sites: what sparse operators are judged by."""

import torch

STRIDED = [  # grid, kernel, stride, padding, dilation
    ((5, 6, 7), (3, 3, 3), (2, 2, 2), (1, 1, 1), (1, 1, 1)),
    ((5, 6, 7), (3, 1, 1), (2, 1, 1), (0, 0, 0), (1, 1, 1)),
    ((5, 6, 7), (1, 2, 4), (3, 1, 2), (0, 1, 2), (1, 1, 1)),
    ((9, 8, 7), (2, 3, 3), (1, 2, 3), (1, 0, 1), (3, 2, 1)),
    ((8, 9), (3, 3), (2, 2), (1, 1), (1, 1)),
    ((8, 9), (4, 2), (2, 3), (2, 0), (2, 1)),
]


def random_sites(seed: int, batch_size: int, shape, density=0.3) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (torch.rand(batch_size, *shape, generator=generator) < density).nonzero().int()


def draws(seed: int, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)

    return draw


def scatter(features, coords, shape, batch_size):
    """[B, C, *shape], by plain indexing."""
    grid = features.new_zeros(batch_size, *shape, features.shape[1])
    return grid.index_put(tuple(coords.long().T), features).movedim(-1, 1)


def read(grid, coords):
    return grid.movedim(1, -1)[tuple(coords.long().T)]


def dense_weight(weight, kernel):
    """[V, C_in, C_out] -> [C_out, C_in, *kernel]."""
    return weight.view(*kernel, *weight.shape[1:]).movedim((-1, -2), (0, 1))


def assert_same(got, expected, tolerance=1e-11):
    torch.testing.assert_close(got, expected, rtol=tolerance, atol=tolerance)


def gradients(result, leaves, seed=9):
    return torch.autograd.grad(result, leaves, draws(seed)(*result.shape).to(result))


def assert_same_gradients(got, expected, leaves):
    """Both are functions of the leaves: equal values, equal gradients."""
    assert_same(got, expected)
    for a, b in zip(gradients(got, leaves), gradients(expected, leaves), strict=True):
        assert_same(a, b)
