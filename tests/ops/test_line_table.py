"""Tables from lines and locations of sites against the tables of kernel maps."""

from copy import deepcopy

import pytest
import torch

from millisecond.ops import (
    ConvGeometry,
    SparseTensor,
    SubmanifoldConv,
    line_maps,
    sites,
    strided_map,
    submanifold_map,
)
from millisecond.ops.line_maps import (
    NOT_INCREASING,
    OUTSIDE,
    TWICE,
    line_table,
    site_faults,
    site_table,
)
from millisecond.ops.spconv import SparseConvTensor, SubMConv3d
from tests.helpers.dense_oracle import STRIDED, random_sites

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("shape", *"ksp", "dilation"), STRIDED)
def test_strided_and_back(shape, k, s, p, dilation, device):
    coords, geometry = random_sites(1, 3, shape).to(device), ConvGeometry(k, s, p, dilation)
    outputs, out_shape, expected = strided_map(coords, shape, 3, geometry)
    table = line_table(outputs, coords, 3, shape, geometry)
    assert torch.equal(table, expected.forward.neighbours)
    table = line_table(coords, outputs, 3, out_shape, geometry, transposed=True)
    assert torch.equal(table, expected.backward.neighbours)
    found, found_shape, kernel_map = line_maps.strided_map(coords, shape, 3, geometry)
    assert found_shape == out_shape
    assert torch.equal(found, outputs)
    assert torch.equal(kernel_map.forward.neighbours, expected.forward.neighbours)
    assert line_maps.strided_map(coords, shape, 3, geometry, False)[2].backward is None


@pytest.mark.gpu
def test_more_lines_than_a_block_finds():
    shape, around = (60, 201, 11), ConvGeometry.around((3, 3, 3), (1, 1, 1))
    coords = random_sites(4, 2, shape, 0.02)
    coords = coords[(coords[:, 1] < 7) | (coords[:, 1] > 41)]  # blocks of lines without sites
    there = coords.cuda().contiguous()
    found = line_table(there, there, 2, shape, around)
    assert torch.equal(found.cpu(), submanifold_map(coords, shape, 2).forward.neighbours)


def table_and_faults(coords, batch_size, shape, kernel, dilation, likely_sorted=True):
    """As layers ask: anew where the sites were not sorted, though that was likely."""
    arguments = coords, batch_size, shape, kernel, dilation, likely_sorted
    table, question = site_table(*arguments)
    faults = site_faults(table, question)
    return table_and_faults(*arguments[:-1], False) if faults and likely_sorted else (table, faults)


def in_order(table, order):
    """A table of sorted rows as the table of rows `order`."""
    rank = order.argsort().int()
    columns = table[:, order]
    return torch.where(columns < 0, columns, rank[columns.long()])


@pytest.mark.parametrize("likely_sorted", [True, False])
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("shape", [(5, 6, 7), (8, 9), (3, 4, 90)])
def test_of_sites_in_any_order(shape, device, likely_sorted):
    window = (3, 5, 7)[-len(shape) :], (1, 1, 2)[-len(shape) :]
    for seed, density in ((2, 0.3), (3, 0.0), (4, 1.0)):
        coords = random_sites(seed, 2, shape, density).to(device)
        expected = submanifold_map(coords, shape, 2, *window).forward.neighbours
        table, fault = table_and_faults(coords, 2, shape, *window, likely_sorted)
        assert fault == 0
        assert torch.equal(table, expected)
        order = torch.randperm(len(coords), device=device)
        table, fault = table_and_faults(coords[order], 2, shape, *window, likely_sorted)
        assert fault == (NOT_INCREASING if len(coords) > 1 else 0)
        assert torch.equal(table, in_order(expected, order))


@pytest.mark.parametrize("likely_sorted", [True, False])
@pytest.mark.parametrize("device", DEVICES)
def test_faults_of_sites(device, likely_sorted):
    shape = 5, 6, 7
    coords = random_sites(2, 2, shape, 0.3).to(device)

    def fault(rows, shape=shape):
        return table_and_faults(rows, 2, shape, (3, 3, 3), (1, 1, 1), likely_sorted)[1]

    assert fault(coords) == fault(coords[:0]) == 0
    assert fault(coords.flip(0)) == NOT_INCREASING
    assert fault(coords[[0, 0, 1]]) == NOT_INCREASING + TWICE
    assert fault(coords[[3, 0, 1, 3]]) == NOT_INCREASING + TWICE
    assert fault(coords, (4, 6, 7)) & OUTSIDE
    far = torch.tensor([[0, -(2**31), 0, 0], [1, 0, 2**31 - 1, -1]], dtype=torch.int32)
    assert fault(far.to(device)) == OUTSIDE
    for kernel in ((3, 2, 3), (3, 3), (3, 3, 3, 3)):
        with pytest.raises(ValueError, match="kernel_size"):
            site_table(coords, 2, shape, kernel, (1,) * len(kernel), likely_sorted)


def test_rows_are_expected_as_those_of_the_last_input(monkeypatch):
    """In which order they come is known once they were looked at."""
    expected = []

    def seen(*arguments):
        expected.append(arguments[-2])
        return site_table(*arguments)

    monkeypatch.setattr(sites, "site_table", seen)
    shape, layer, window = (5, 6, 7), torch.nn.Identity(), ((3, 3, 3), (1, 1, 1))
    coords = random_sites(2, 2, shape, 0.3)
    for rows in (coords, coords.flip(0), coords.flip(0), coords, coords.flip(0)):
        given = sites.Sites(rows, shape, 2)
        given.follow(layer)
        for _ in range(2):  # what a GPU does for each window
            given._map_on_gpu(*window)
            given.sure()
        given.ordered()
        given._map_on_gpu(*window)
        assert given.sure()
    by_input = [expected[at : at + 3] for at in range(0, len(expected), 3)]
    mixed, in_order = [False] * 2, [True] * 2
    assert by_input == [
        [True, *in_order],
        [True, *mixed],
        [False, *mixed],
        [False, *in_order],
        [True, *mixed],
    ]


@pytest.mark.parametrize("device", DEVICES)
def test_a_map_by_lines_of_unsorted_sites_does_not_count(device):
    shape, window = (5, 6, 7), ((3, 3, 3), (1, 1, 1))
    coords = random_sites(2, 2, shape, 0.3).to(device)
    order = torch.randperm(len(coords), device=device)
    expected = in_order(submanifold_map(coords, shape, 2).forward.neighbours, order)
    given = sites.Sites(coords[order], shape, 2)
    given._map_on_gpu(*window)
    assert not given.sure()
    found = given._map_on_gpu(*window)
    assert given.sure()
    assert torch.equal(found.forward.neighbours, expected)
    for wrong in (coords[[0, 0, 1]], coords.flip(0)[[0, 1, 0]]):
        given = sites.Sites(wrong, shape, 2)
        given._map_on_gpu(*window)
        assert not given.sure()
        given._map_on_gpu(*window)
        with pytest.raises(sites.WrongSites, match="may be there once"):
            given.sure()


@pytest.mark.parametrize("kind", ["sorted", "unsorted", "twice", "outside"])
def test_layers_redo_what_they_computed_along_a_map_that_does_not_count(kind, monkeypatch):
    """As on a GPU, where a map by lines of other sites holds anything."""
    shape, coords = (5, 6, 7), random_sites(2, 2, (5, 6, 7), 0.3)
    if kind != "sorted":
        coords = coords[torch.randperm(len(coords))]
    if kind == "twice":
        coords[3] = coords[0]
    if kind == "outside":
        coords[3, 1] = 9
    features = torch.randn(len(coords), 4)
    layer, native = SubMConv3d(4, 8, 3), SubmanifoldConv(4, 8)
    fresh, fresh_native = deepcopy((layer, native))  # which expect no order of the rows yet

    def computed(layer):
        x = SparseConvTensor(features.clone().requires_grad_(), coords, list(shape), 2)
        out = layer(x).features
        out.square().sum().backward()
        return out, x.features.grad

    def computed_by_native(native):
        return native(SparseTensor(features, coords, shape, 2)).features

    def anything(rows, *arguments):
        table, fault = site_table(rows, *arguments)
        by_lines = arguments[-2]
        return (torch.zeros_like(table) if by_lines and fault else table), fault

    wanted = computed(layer)
    expected = computed_by_native(native) if kind in ("sorted", "unsorted") else None
    monkeypatch.setattr(sites, "site_table", anything)
    monkeypatch.setattr(sites.Sites, "_on_gpu", lambda self: True)
    for _ in range(2):  # the second time the order of the rows is expected
        for found, one in zip(computed(fresh), wanted, strict=True):
            torch.testing.assert_close(found, one)
        if expected is not None:
            torch.testing.assert_close(computed_by_native(fresh_native), expected)
        else:
            with pytest.raises(sites.WrongSites):
                computed_by_native(fresh_native)


def test_a_compiled_layer_asks_about_its_sites(monkeypatch):
    """What a traced operator says of them would be a constant."""
    shape, layer = (5, 6, 7), SubmanifoldConv(4, 8)
    coords = random_sites(2, 2, shape, 0.3).flip(0)
    x = SparseTensor(torch.randn(len(coords), 4), coords, shape, 2)
    compiled, expected = torch.compile(deepcopy(layer), backend="eager"), layer(x).features

    @torch.library.custom_op("millisecond_tests::site_table", mutates_args=())
    def as_on_a_gpu(
        rows: torch.Tensor, batch_size: int, shape: list[int], by_lines: bool
    ) -> tuple[torch.Tensor, int]:
        table, faults = site_table(rows, batch_size, tuple(shape), (3, 3, 3), (1, 1, 1))
        return (torch.zeros_like(table) if by_lines and faults else table), faults

    as_on_a_gpu.register_fake(lambda rows, *_: (rows.new_empty(27, len(rows)), 0))

    def stand_in(rows, batch_size, shape, kernel, dilation, by_lines, right):
        return as_on_a_gpu(rows, batch_size, list(shape), by_lines)

    monkeypatch.setattr(sites, "site_table", stand_in)
    monkeypatch.setattr(sites.Sites, "_on_gpu", lambda self: True)
    again = SparseTensor(x.features, coords, shape, 2)  # without the maps of the other layer
    torch.testing.assert_close(compiled(again).features, expected)


def test_after_an_error_nobody_asks_about_the_map_that_was_begun():
    shape, window = (5, 6, 7), ((3, 3, 3), (1, 1, 1))
    given = sites.Sites(random_sites(2, 2, shape, 0.3).flip(0), shape, 2)
    given._submanifold[window] = given._map_on_gpu(*window)  # an error comes now
    found = given.begun(*window)
    assert given.sure()
    sorted_rows = sites.Sites(given.indices.flip(0), shape, 2).submanifold(*window)
    order = torch.arange(len(given.indices)).flip(0)
    assert torch.equal(found.forward.neighbours, in_order(sorted_rows.forward.neighbours, order))


@pytest.mark.gpu
def test_a_captured_graph_asks_nothing():
    shape, window = (5, 6, 7), ((3, 3, 3), (1, 1, 1))
    coords = random_sites(2, 2, shape, 0.3).cuda().contiguous()
    refused = pytest.raises(RuntimeError, match="while a CUDA graph is captured")
    with refused, torch.cuda.graph(torch.cuda.CUDAGraph()):
        site_table(coords, 2, shape, *window)
    for _ in range(1100):  # all words, and some of them again
        table, question = site_table(coords, 2, shape, *window)
    assert site_faults(table, question) == 0


@pytest.mark.gpu
def test_questions_that_nobody_asks_hold_up_no_other_one():
    shape, window = (5, 6, 7), ((3, 3, 3), (1, 1, 1))
    coords = random_sites(2, 2, shape, 0.3).cuda().contiguous()
    asked = [site_table(rows, 2, shape, *window) for rows in (coords, coords.flip(0))]
    for _ in range(500):  # of 1,024 that may be open at once
        site_table(coords.flip(0), 2, shape, *window)
    assert [site_faults(*each) for each in asked] == [0, NOT_INCREASING]
    for _ in range(2000):
        table, question = site_table(coords, 2, shape, *window)
    assert site_faults(table, question) == 0
    with pytest.raises(RuntimeError, match="question"):
        site_faults(table, 1 << 20)


@pytest.mark.gpu
def test_a_layer_convolves_while_it_looks_at_the_sites():
    """In any order of the sites it gives the same; sites that are there twice are refused."""
    shape, layer = (5, 6, 7), SubmanifoldConv(16, 16).cuda()
    coords = random_sites(2, 2, shape, 0.3).cuda().contiguous()
    features = torch.randn(len(coords), 16, device="cuda")
    expected = layer(SparseTensor(features, coords, shape, 2)).features
    order = torch.randperm(len(coords), device="cuda")
    mixed = SparseTensor(features[order], coords[order].contiguous(), shape, 2)
    assert torch.equal(layer(mixed).features, expected[order])
    again = SparseTensor(features[order], coords[order].contiguous(), shape, 2)
    assert torch.equal(torch.compile(layer, backend="eager")(again).features, expected[order])
    twice = SparseTensor(features[:3], coords[[0, 1, 0]].contiguous(), shape, 2)
    for other in (layer, SubmanifoldConv(16, 16).cuda()):  # which expects unsorted rows, or sorted
        with pytest.raises(ValueError, match="may be there once"):
            other(twice)


@pytest.mark.gpu
@pytest.mark.parametrize("apart", [(1, 1, 1), (1, 1, 8), (7, 64, 1024)])
def test_many_sites_of_one_kind(apart):
    """Sites that begin at the same place of a sector, or lie far apart, are found as well."""
    dense = random_sites(5, 2, (8, 40, 50), 0.5)
    coords = dense * torch.tensor((1, *apart), dtype=torch.int32)
    shape = tuple(n * a for n, a in zip((8, 40, 50), apart, strict=True))
    expected = submanifold_map(dense, (8, 40, 50), 2).forward.neighbours
    order = torch.randperm(len(coords))
    for likely_sorted in (True, False):
        there = coords[order].cuda().contiguous()
        table, fault = table_and_faults(there, 2, shape, (3, 3, 3), apart, likely_sorted)
        assert fault == NOT_INCREASING
        assert torch.equal(table.cpu(), in_order(expected, order))
    table, fault = table_and_faults(coords.cuda().contiguous(), 2, shape, (3, 3, 3), apart)
    assert fault == 0
    assert torch.equal(table.cpu(), expected)


@pytest.mark.gpu
@pytest.mark.parametrize("shape", [(2**31 - 1,) * 3, (1, 2**31 - 1, 40), (2**30, 2, 40)])
def test_grids_of_more_lines_than_numbers(shape):
    small = tuple(min(n, 30) for n in shape)
    coords = random_sites(6, 4, small, 0.1)
    expected = submanifold_map(coords, small, 4).forward.neighbours
    there, window = coords.cuda().contiguous(), ((3, 3, 3), (1, 1, 1))
    table, fault = table_and_faults(there, 4, shape, *window)
    assert fault == 0
    assert torch.equal(table.cpu(), expected)
    with pytest.raises(RuntimeError, match="too many lines"):
        line_table(there, there, 4, shape, ConvGeometry.around(*window))


@pytest.mark.gpu
def test_opcheck():
    coords = random_sites(1, 2, (5, 6, 7)).cuda().contiguous()
    window = (3, 3, 3, 1, 1, 1, 1, 1, 1, 1, 1, 1)
    arguments = coords, coords, 2, (5, 6, 7), window, False
    torch.library.opcheck(torch.ops.millisecond.line_table, arguments)
    arguments = coords, 2, (3, 3, 4), window
    arguments_of_sites = coords, 2, (5, 6, 7), window, False, True
    torch.library.opcheck(torch.ops.millisecond.site_table, arguments_of_sites)
    torch.library.opcheck(torch.ops.millisecond.site_faults, (coords.new_empty(27, 9), -1))
    checks = ("test_schema", "test_faketensor")  # of the rows, some are room
    torch.library.opcheck(torch.ops.millisecond.reached_sites, arguments, test_utils=checks)
