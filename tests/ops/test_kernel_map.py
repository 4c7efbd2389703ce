"""Kernel maps against a dictionary of coordinates."""

from itertools import product

import pytest
import torch

from millisecond.ops import ConvGeometry, KernelMap, index_pyramid, strided_map, submanifold_map
from tests.helpers.levels import KITTI, SECOND

SUBMANIFOLD = [  # grid, kernel, dilation
    ((5, 6, 7), 3, 1),
    ((5, 6, 7), (1, 3, 5), 1),
    ((5, 6, 7), (3, 1, 1), (2, 1, 1)),
    ((4, 9, 8), (3, 3, 3), (1, 2, 3)),
    ((2, 2, 2), 5, 1),
    ((6, 1, 1), 3, 1),
    ((8, 9), 3, 1),
    ((8, 9), (5, 3), (1, 2)),
    ((8, 9), 1, 1),
]
STRIDED = [  # grid, kernel, stride, padding, dilation
    ((5, 6, 7), 3, 2, 1, 1),
    ((5, 6, 7), 3, 2, (0, 1, 1), 1),
    ((5, 6, 7), (3, 1, 1), (2, 1, 1), 0, 1),
    ((5, 6, 7), (1, 2, 4), (3, 1, 2), (0, 1, 2), 1),
    ((9, 8, 7), (2, 3, 3), (1, 2, 3), (2, 0, 1), (3, 2, 1)),
    ((5, 6, 7), 1, 1, 0, 1),
    ((5, 6, 7), 2, 3, 0, 1),
    ((5, 6, 7), 3, 1, 0, 1),
    ((3, 3, 3), 1, 1, 2, 1),
    ((8, 9), 3, 2, 1, 1),
    ((8, 9), (4, 2), (2, 3), (1, 0), (2, 1)),
]


@pytest.fixture(autouse=True, params=["kernels", "reference"])
def implementation(request, monkeypatch):
    """What computes the maps here: the kernels of a CPU, where there is a compiler, or torch."""
    if request.param == "reference":
        monkeypatch.setattr("millisecond.ops.kernel_map.on_cpu_kernels", lambda tensor: False)


def random_coords(seed: int, batch_size: int, shape, density=0.25) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (torch.rand(batch_size, *shape, generator=generator) < density).nonzero().int()


def naive_submanifold(coords, shape, kernel, dilation) -> torch.Tensor:
    rows = {tuple(site): row for row, site in enumerate(coords.tolist())}
    table = []
    for offset in product(*(range(k) for k in kernel)):
        shift = [(o - k // 2) * d for o, k, d in zip(offset, kernel, dilation, strict=True)]
        table.append(
            [
                rows.get((b, *(c + s for c, s in zip(cell, shift, strict=True))), -1)
                for b, *cell in coords.tolist()
            ]
        )
    return torch.tensor(table, dtype=torch.int32)


def naive_strided(coords, shape, geometry):
    """Sorted output sites and {(offset, output site): input row}."""
    kernel, stride, padding, dilation = geometry
    out_shape = [
        (n + 2 * p - d * (k - 1) - 1) // s + 1
        for n, k, s, p, d in zip(shape, *geometry, strict=True)
    ]
    entries = {}
    for row, (b, *cell) in enumerate(coords.tolist()):
        for v, offset in enumerate(product(*(range(k) for k in kernel))):
            window = zip(cell, padding, offset, dilation, strict=True)
            start = [c + p - o * d for c, p, o, d in window]
            out = [a // s for a, s in zip(start, stride, strict=True)]
            exact = all(a % s == 0 for a, s in zip(start, stride, strict=True))
            if exact and all(0 <= a < n for a, n in zip(out, out_shape, strict=True)):
                entries[v, (b, *out)] = row
    return sorted({site for _, site in entries}), entries, tuple(out_shape)


def assert_strided(coords, shape, batch_size, geometry):
    out_coords, out_shape, kernel_map = strided_map(coords, shape, batch_size, geometry)
    sites, entries, expected_shape = naive_strided(coords, shape, geometry)
    assert out_shape == expected_shape
    assert [tuple(site) for site in out_coords.tolist()] == sites
    forward, backward = (table.neighbours for table in kernel_map)
    volume = torch.tensor(geometry.kernel_size).prod()
    assert forward.shape == (volume, len(sites)) and backward.shape == (volume, len(coords))
    assert {t.dtype for t in (out_coords, forward, backward)} == {torch.int32}
    rows = {site: row for row, site in enumerate(sites)}
    assert (forward >= 0).sum() == (backward >= 0).sum() == len(entries)
    forward, backward = forward.tolist(), backward.tolist()  # a number of a tensor takes long
    for (v, site), row in entries.items():
        assert forward[v][rows[site]] == row
        assert backward[v][row] == rows[site]


@pytest.mark.parametrize("shape, kernel, dilation", SUBMANIFOLD)
@pytest.mark.parametrize("density", [0.1, 0.6, 1.0])
def test_submanifold_map_is_the_dictionary_look_up(shape, kernel, dilation, density):
    coords = random_coords(1, 2, shape, density)
    kernel_map = submanifold_map(coords, shape, 2, kernel, dilation)
    spelled = ConvGeometry.of(kernel, dilation=dilation, dims=len(shape))
    expected = naive_submanifold(coords, shape, spelled.kernel_size, spelled.dilation)
    assert torch.equal(kernel_map.forward.neighbours, expected)
    assert kernel_map.forward.neighbours.dtype == torch.int32
    assert not kernel_map.forward.flipped and kernel_map.backward.flipped
    assert kernel_map.backward.neighbours is kernel_map.forward.neighbours


@pytest.mark.parametrize("shape, kernel, stride, padding, dilation", STRIDED)
@pytest.mark.parametrize("density", [0.05, 0.5, 1.0])
def test_strided_map_is_the_dictionary_look_up(shape, kernel, stride, padding, dilation, density):
    geometry = ConvGeometry.of(kernel, stride, padding, dilation, dims=len(shape))
    assert_strided(random_coords(2, 2, shape, density), shape, 2, geometry)


@pytest.mark.parametrize("seed", range(20))
def test_maps_of_random_geometries(seed):
    generator = torch.Generator().manual_seed(seed)

    def draw(low, high):
        return int(torch.randint(low, high + 1, (), generator=generator))

    dims = draw(2, 3)
    shape = tuple(draw(1, 9) for _ in range(dims))
    batch_size = draw(1, 3)
    coords = random_coords(seed, batch_size, shape, draw(1, 10) / 10)
    kernel = tuple(2 * draw(0, 2) + 1 for _ in range(dims))
    dilation = tuple(draw(1, 3) for _ in range(dims))
    kernel_map = submanifold_map(coords, shape, batch_size, kernel, dilation)
    expected = naive_submanifold(coords, shape, kernel, dilation).view(-1, len(coords))
    assert torch.equal(kernel_map.forward.neighbours, expected)
    padding = tuple(draw(0, 3) for _ in range(dims))
    window = [
        (draw(1, 4), draw(1, 4), p, d) if n + 2 * p > 3 * d else (1, draw(1, 4), p, d)
        for n, p, d in zip(shape, padding, dilation, strict=True)
    ]
    geometry = ConvGeometry(*zip(*window, strict=True))
    assert_strided(coords, shape, batch_size, geometry)


def test_worked_example_of_the_tutorials():
    """Sites (1, 2) and (2, 3) of a 5 x 5 image, kernel 3 x 3; offsets counted by hand."""
    coords = torch.tensor([[0, 1, 2], [0, 2, 3]], dtype=torch.int32)
    submanifold = submanifold_map(coords, (5, 5), 1, 3).forward.neighbours
    expected = torch.full((9, 2), -1, dtype=torch.int32)
    expected[4] = torch.tensor([0, 1])
    expected[8, 0] = 1  # (2, 3) lies one down and one right of (1, 2)
    expected[0, 1] = 0
    assert torch.equal(submanifold, expected)

    out_coords, out_shape, kernel_map = strided_map(coords, (5, 5), 1, ConvGeometry.of(3, dims=2))
    assert out_shape == (3, 3)
    sites = [[0, 0], [0, 1], [0, 2], [1, 0], [1, 1], [1, 2], [2, 1], [2, 2]]
    assert out_coords[:, 1:].tolist() == sites
    first_reads = {5: 0, 4: 1, 3: 2, 2: 3, 1: 4, 0: 5}  # offset: row of the output
    second_reads = {8: 1, 7: 2, 5: 4, 4: 5, 2: 6, 1: 7}
    expected = torch.full((9, 8), -1, dtype=torch.int32)
    for row, reads in enumerate((first_reads, second_reads)):
        for offset, out_row in reads.items():
            expected[offset, out_row] = row
    assert torch.equal(kernel_map.forward.neighbours, expected)


@pytest.mark.parametrize("shape", [(3, 4, 5), (4, 5)])
def test_no_window_runs_over_the_border(shape):
    full = torch.ones(2, *shape, dtype=torch.bool)
    inner = (slice(None), *(slice(1, -1) for _ in shape))
    full[inner] = False
    coords = full.nonzero().int()
    kernel = (3,) * len(shape)
    neighbours = submanifold_map(coords, shape, 2).forward.neighbours
    assert torch.equal(neighbours, naive_submanifold(coords, shape, kernel, (1,) * len(shape)))
    assert_strided(coords, shape, 2, ConvGeometry.of(3, 2, 1, dims=len(shape)))


@pytest.mark.parametrize("batch", [0, 31])
def test_batch_of_32_kitti_grids(batch):
    """Linear indices of the last frames need more than 31 bits."""
    corners = list(product(*((0, n // 2, n // 2 + 1, n - 1) for n in KITTI)))
    cells = [(b, *corner) for b in sorted({0, batch, 31}) for corner in corners]
    coords = torch.tensor(cells, dtype=torch.int32)
    neighbours = submanifold_map(coords, KITTI, 32).forward.neighbours
    assert torch.equal(neighbours, naive_submanifold(coords, KITTI, (3,) * 3, (1,) * 3))
    assert_strided(coords, KITTI, 32, SECOND[0])


def test_one_site():
    coords = torch.tensor([[1, 0, 3, 4]], dtype=torch.int32)
    neighbours = submanifold_map(coords, (1, 4, 5), 2).forward.neighbours
    assert neighbours.flatten().tolist() == [-1] * 13 + [0] + [-1] * 13
    assert_strided(coords, (1, 4, 5), 2, SECOND[0])


def test_no_site():
    coords = torch.zeros(0, 4, dtype=torch.int32)
    assert submanifold_map(coords, (4, 4, 4), 1).forward.neighbours.shape == (27, 0)
    out_coords, shape, kernel_map = strided_map(coords, (4, 4, 4), 1, SECOND[0])
    assert out_coords.shape == (0, 4) and shape == (2, 2, 2)
    assert kernel_map.forward.neighbours.shape == kernel_map.backward.neighbours.shape == (27, 0)


def test_reversed_swaps_the_directions():
    coords = random_coords(3, 1, (4, 4, 4))
    _, _, kernel_map = strided_map(coords, (4, 4, 4), 1, SECOND[0])
    assert kernel_map.reversed().forward is kernel_map.backward
    assert kernel_map.reversed().backward is kernel_map.forward
    with pytest.raises(ValueError, match="backward is None"):
        KernelMap(kernel_map.forward, None).reversed()


@pytest.mark.parametrize(
    "change, message",
    [
        (lambda c: c.long(), "coords: expected int32, got torch.int64"),
        (lambda c: c[:, 1:], r"coords: expected \[N, 4\] .* got \[3, 3\]"),
        (lambda c: c[[0, 2, 1]], r"row 2 \[0, 1, 2, 3\] is not sorted after row 1 \[1, 0, 0, 0\]"),
        (lambda c: c[[0, 1, 1]], r"row 2 \[0, 1, 2, 3\] is a duplicate of row 1"),
        (lambda c: c + torch.tensor([1, 0, 0, 0]).int(), r"row 2 is \[2, 0, 0, 0\], outside of 2"),
        (lambda c: c - torch.tensor([0, 0, 0, 1]).int(), r"row 0 is \[0, 0, 0, -1\], outside"),
        (lambda c: c + torch.tensor([0, 0, 0, 2]).int(), r"row 1 is \[0, 1, 2, 5\], outside"),
    ],
)
def test_wrong_coords_are_named(change, message):
    coords = torch.tensor([[0, 0, 0, 0], [0, 1, 2, 3], [1, 0, 0, 0]], dtype=torch.int32)
    for build in (
        lambda c: submanifold_map(c, (3, 4, 5), 2),
        lambda c: strided_map(c, (3, 4, 5), 2, SECOND[0]),
        lambda c: index_pyramid(c, (3, 4, 5), 2, SECOND[:1]),
    ):
        build(coords)
        with pytest.raises(ValueError, match=message):
            build(change(coords))


def test_wrong_windows_are_named():
    coords = torch.zeros(1, 4, dtype=torch.int32)
    with pytest.raises(ValueError, match=r"kernel_size: .* odd sizes only, got \(3, 2, 3\)"):
        submanifold_map(coords, (3, 4, 5), 1, (3, 2, 3))
    with pytest.raises(ValueError, match="stride: expected 3 whole numbers from 1 up, got 0"):
        ConvGeometry.of(3, stride=0)
    for far in (2**29, 2**31 + 1):
        with pytest.raises(ValueError, match=r"dilation: .* reaches over 2\^30 sites or more"):
            submanifold_map(coords, (3, 4, 5), 1, 3, far)
        with pytest.raises(ValueError, match=r"dilation: .* reaches over 2\^30 sites or more"):
            ConvGeometry.of(3, padding=1, dilation=(1, 1, far))
    with pytest.raises(ValueError, match=r"padding: expected less than 2\^30"):
        ConvGeometry.of(3, padding=2**32)
    with pytest.raises(ValueError, match=r"padding: expected 3 whole numbers .* got \(1, 1\)"):
        ConvGeometry.of(3, padding=(1, 1))
    with pytest.raises(ValueError, match=r"kernel_size: \(5, 5, 5\) does not fit"):
        strided_map(coords, (3, 4, 5), 1, ConvGeometry.of(5))
    with pytest.raises(ValueError, match="capacities: expected 2 numbers, one per level, got 3"):
        index_pyramid(coords, (3, 4, 5), 1, SECOND[:1], capacities=[1, 2, 3])
