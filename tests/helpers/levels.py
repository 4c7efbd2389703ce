"""Grids, sites and comparisons of levels for tests of the index."""

import math

import torch

from millisecond.ops import ConvGeometry
from millisecond.ops.geometry import coords_of_keys

KITTI = (41, 1600, 1408)
SECOND = (
    ConvGeometry((3, 3, 3), (2, 2, 2), (1, 1, 1), (1, 1, 1)),
    ConvGeometry((3, 3, 3), (2, 2, 2), (1, 1, 1), (1, 1, 1)),
    ConvGeometry((3, 3, 3), (2, 2, 2), (0, 1, 1), (1, 1, 1)),
    ConvGeometry((3, 1, 1), (2, 1, 1), (0, 0, 0), (1, 1, 1)),
)


def assert_same(name, got, want):
    if want is None:
        assert got is None, f"{name}: expected None, got {got}"
        return
    got = got.cpu()
    assert got.dtype == want.dtype, f"{name}: {got.dtype}, expected {want.dtype}"
    torch.testing.assert_close(got, want, rtol=0, atol=0, msg=lambda m: f"{name}: {m}")


def assert_same_table(name, got, want):
    if want is None:
        assert got is None, f"{name}: expected None"
        return
    assert got.neighbours.shape == want.neighbours.shape, f"{name}: {got.neighbours.shape}"
    rows = None if want.count is None else int(want.count)  # what lies beyond is never read
    assert_same(f"{name} neighbours", got.neighbours[:, :rows], want.neighbours[:, :rows])
    assert_same(f"{name} count", got.count, want.count)
    assert got.flipped == want.flipped, f"{name}: flipped is {got.flipped}"


def assert_same_map(name, got, want):
    if want is None:
        assert got is None, f"{name}: expected None"
        return
    assert_same_table(f"{name} forward", got.forward, want.forward)
    assert_same_table(f"{name} backward", got.backward, want.backward)


def assert_same_pyramid(got, want):
    assert_same("overflow", got.overflow, want.overflow)
    for i, (a, b) in enumerate(zip(got.levels, want.levels, strict=True)):
        assert a.spatial_shape == b.spatial_shape
        assert_same(f"level {i} coords", a.coords, b.coords)
        assert_same(f"level {i} count", a.count, b.count)
        assert_same_map(f"level {i} submanifold", a.submanifold, b.submanifold)
        assert_same_map(f"level {i} down", a.down, b.down)


def random_coords(seed, batch_size, shape, size, corners=True):
    """Sorted and unique, with the first and the last cell of the grids among them."""
    generator = torch.Generator().manual_seed(seed)
    volume = batch_size * math.prod(shape)
    keys = torch.randint(volume, (size,), generator=generator)
    if size and corners:
        keys = torch.cat([keys, torch.tensor([0, volume - 1])])
    return coords_of_keys(keys.unique(), shape)


def street_coords(seed, batch_size, shape, size):
    """Clustered along lines, as walls and cars are."""
    generator = torch.Generator().manual_seed(seed)
    walk = torch.randint(-1, 2, (size, 3), generator=generator).cumsum(0)
    start = torch.randint(10**6, (size // 200 + 1, 3), generator=generator)
    cells = (walk + start.repeat_interleave(200, 0)[:size]) % torch.tensor(shape)
    frames = torch.randint(batch_size, (size // 200 + 1,), generator=generator)
    frames = frames.repeat_interleave(200)[:size]
    keys = ((frames * shape[0] + cells[:, 0]) * shape[1] + cells[:, 1]) * shape[2] + cells[:, 2]
    return coords_of_keys(keys.unique(), shape)
