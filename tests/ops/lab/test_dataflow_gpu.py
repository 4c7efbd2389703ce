"""The dataflows on CUDA against the reference in fp64, forward and backward."""

import pytest
import torch

from millisecond import ops
from millisecond.ops import ConvGeometry
from millisecond.ops.lab import Dataflow, location_map, pair_map, sparse_conv
from millisecond.ops.lab import pairs as kernels
from millisecond.ops.lab.gather_scatter import Buffer
from millisecond.ops.lab.locations import kernel_map as searched
from millisecond.ops.lab.locations import output_sites
from tests.conftest import CONVOLUTION
from tests.helpers.sparse import error, poison, poison_bits, random_coords

pytestmark = pytest.mark.gpu

SHAPE = (8, 40, 38)
AROUND = ConvGeometry((3, 3, 3), (1, 1, 1), (1, 1, 1), (1, 1, 1))
DOWN = ConvGeometry((3, 3, 3), (2, 2, 2), (1, 1, 1), (1, 1, 1))
HALF = ConvGeometry((2, 2, 2), (2, 2, 2), (0, 0, 0), (1, 1, 1))
SOME = ConvGeometry((1, 2, 2), (2, 2, 2), (0, 0, 0), (1, 1, 1))  # leaves out every other layer
WINDOWS = {"same": AROUND, "down": DOWN, "half": HALF, "some": SOME}
CASES = [("same", channels) for channels in ((16, 32), (48, 80), (64, 64), (64, 256), (5, 7))]
CASES += [(name, channels) for name in ("down", "half", "some") for channels in ((64, 64), (5, 7))]
DATAFLOWS = [Dataflow("gather_scatter", g) for g in ("symmetric", "fixed", "adaptive")]
NAMES = ("features", "weight", "bias", "residual")
DATAFLOWS += [Dataflow("fetch_on_demand"), Dataflow("direct")]


@pytest.fixture(params=CONVOLUTION, ids=str)
def precision(request):
    dtype, matmul = request.param
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(matmul)
    yield dtype, CONVOLUTION[request.param]
    torch.set_float32_matmul_precision(before)


@pytest.fixture(scope="module")
def sites():
    return random_coords(torch.Generator().manual_seed(0), SHAPE, 2, 0.1).cuda().contiguous()


def maps(sites, geometry):
    """The kernel map of a convolution with what the dataflows take: its pairs, its locations."""
    if geometry is AROUND:
        out, kernel_map = sites, ops.submanifold_map(sites, SHAPE, 2)
    else:
        out, _, kernel_map = ops.strided_map(sites, SHAPE, 2, geometry)
    table = "array" if geometry is DOWN else "hash"
    found = location_map(sites, SHAPE, 2, geometry, out, table)
    return kernel_map, pair_map(kernel_map), found


def computed(dataflow, tensors, listed, found, relu=False):
    features, weight, bias, residual = tensors
    taken = found if dataflow.kind == "direct" else listed
    return sparse_conv(features, weight, taken, bias, residual, relu, dataflow)


@pytest.mark.parametrize(("window", "channels"), CASES, ids=str)
def test_matches_the_reference_in_fp64(sites, precision, window, channels):
    (dtype, tolerance), geometry = precision, WINDOWS[window]
    torch.manual_seed(0)
    draw = lambda *shape: torch.randn(*shape, device="cuda").to(dtype)  # noqa: E731
    c_in, c_out = channels
    forth = maps(sites, geometry)
    for kernel_map, listed, found in (forth, [either.reversed() for either in forth]):
        volume, rows = kernel_map.forward.neighbours.shape
        sources = kernel_map.backward.neighbours.shape[1]
        narrow = draw(sources, c_in), draw(volume, c_in, c_out) / (c_in * 8) ** 0.5
        narrow += draw(c_out).float(), draw(rows, c_out)
        wide = [tensor.double().requires_grad_() for tensor in narrow]
        narrow = [tensor.requires_grad_() for tensor in narrow]
        expected = sparse_conv(*wide[:2], kernel_map, *wide[2:])
        gradient = draw(rows, c_out)
        wanted = torch.autograd.grad(expected, wide, gradient.double())
        for dataflow in DATAFLOWS if channels == (64, 64) else DATAFLOWS[2:]:
            poison()
            out = computed(dataflow, narrow, listed, found, relu=True)
            off = error(out, expected.relu())
            assert off <= tolerance, f"{dataflow}: {off}"
            # without ReLU, whose kink would let one rounding flip a whole gradient
            out = computed(dataflow, narrow, listed, found)
            poison_bits()
            gradients = torch.autograd.grad(out, narrow, gradient)
            for name, x, y in zip(NAMES, gradients, wanted, strict=True):
                off = error(x, y)
                assert off <= 2 * tolerance, f"{dataflow}, gradient of {name}: {off}"


@pytest.mark.parametrize("dataflow", DATAFLOWS, ids=str)
def test_same_bits_every_time(sites, dataflow):
    x = torch.randn(len(sites), 64, device="cuda").half().requires_grad_()
    weight = torch.randn(27, 64, 64, device="cuda").half().requires_grad_()
    grad = torch.randn(len(sites), 64, device="cuda").half()
    runs = []
    for _ in range(6):
        poison()
        _, *again = maps(sites, AROUND)
        out = computed(dataflow, (x, weight, None, None), *again)
        runs.append((out, *torch.autograd.grad(out, (x, weight), grad)))
    for run in runs[1:]:
        assert all(torch.equal(a, b) for a, b in zip(runs[0], run, strict=True))


@pytest.mark.parametrize("geometry", WINDOWS.values(), ids=WINDOWS)
def test_operators_are_what_their_definitions_say(sites, geometry):
    kernel_map, listed, _ = maps(sites, geometry)
    pairs, wanted = (
        listed.pairs,
        kernels.list_pairs_definition(kernel_map.forward, geometry is AROUND),
    )
    assert pairs.begin == wanted.begin
    assert pairs.most == wanted.most and pairs.single == (geometry is HALF and pairs.most == 1)
    for name in ("sources", "targets", "row_ends", "by_row"):
        assert torch.equal(getattr(pairs, name), getattr(wanted, name)), name
    x = torch.randn(len(sites), 24, device="cuda").half()
    for dataflow in DATAFLOWS[:3]:
        _, slot, order, slots, gathered = Buffer.of(pairs, dataflow)
        place = pairs.begin, slot, order, gathered
        poison_bits()
        buffer = kernels.gather_rows(x, pairs.sources, *place)
        assert torch.equal(buffer, kernels.gather_rows_definition(x, pairs.sources, *place))
        products = torch.randn(slots, 12, device="cuda")
        rest = slot, order, torch.float32, None, None, True
        got = kernels.add_products(products, pairs, *rest)
        assert error(got, kernels.add_products_definition(products, pairs, *rest)) <= 1e-6
    weight = torch.randn(len(pairs.sizes), 24, 12, device="cuda").half()
    for left_out in (None, len(weight) // 2):
        products = kernels.fetch_products(x, weight, pairs, left_out, False)
        wanted = kernels.fetch_products_definition(x, weight, pairs, left_out, False)
        assert error(products, wanted) <= 1e-6
    back = listed.pairs_back
    assert back.single == (geometry is HALF)
    if back.single:
        x, rest = torch.randn(back.begin[-1], 24).half().cuda(), (None, None, True, False)
        wanted = kernels.fetch_rows_definition(x, weight, back, *rest)
        assert error(kernels.fetch_rows(x, weight, back, *rest), wanted) <= 4e-4
    if pairs.centre is not None:
        rest = products, pairs, pairs.centre, None, None, True, False
        wanted = kernels.conv_centre_definition(x, weight, *rest)
        assert error(kernels.conv_centre(x, weight, *rest), wanted) <= 4e-4


@pytest.mark.parametrize("geometry", WINDOWS.values(), ids=WINDOWS)
def test_search_in_location_tables_gives_the_bitmaps_kernel_map(sites, geometry):
    kernel_map, _, _ = maps(sites, geometry)
    out = sites if geometry is AROUND else ops.strided_map(sites, SHAPE, 2, geometry)[0]
    if geometry is not AROUND:
        runs = [output_sites(sites, SHAPE, 2, geometry)[0] for _ in range(3)]
        assert all(torch.equal(run, out) for run in runs)
    for table in ("array", "hash"):
        found = searched(location_map(sites, SHAPE, 2, geometry, out, table))
        assert torch.equal(found.forward.neighbours, kernel_map.forward.neighbours)
        back = kernel_map.backward
        wanted = back.neighbours.flip(0) if back.flipped else back.neighbours
        assert torch.equal(found.backward.neighbours, wanted)


@pytest.mark.parametrize("dataflow", [*DATAFLOWS[:1], DATAFLOWS[3]], ids=str)
def test_rows_beyond_a_count_on_the_device_are_left_out(sites, dataflow):
    table = ops.submanifold_map(sites, SHAPE, 2).forward
    x = torch.randn(len(sites), 32, device="cuda").half()
    weight = torch.randn(27, 32, 32, device="cuda").half()
    for count in (0, 17, len(sites) // 2):
        neighbours = torch.full((27, len(sites) + 50), 1 << 30, dtype=torch.int32, device="cuda")
        neighbours[:, :count] = table.neighbours[:, :count]
        bounded = ops.Table(neighbours, torch.tensor([count]).int().cuda())
        with torch.no_grad():
            expected = sparse_conv(x, weight, ops.KernelMap(table, None))[:count]
            out = sparse_conv(x, weight, ops.KernelMap(bounded, None), dataflow=dataflow)
        assert error(out[:count], expected) <= 4e-4


def test_no_rows():
    empty = torch.zeros(0, 4, dtype=torch.int32, device="cuda")
    for dataflow in DATAFLOWS:
        _, *taken = maps(empty, AROUND)
        x = torch.zeros(0, 16, device="cuda", requires_grad=True)
        weight = torch.zeros(27, 16, 32, device="cuda", requires_grad=True)
        out = computed(dataflow, (x, weight, None, None), *taken)
        assert out.shape == (0, 32)
        out.sum().backward()
        assert not weight.grad.any()


def test_opcheck(sites):
    operators, check = torch.ops.millisecond_lab, torch.library.opcheck
    kernel_map = ops.submanifold_map(sites, SHAPE, 2)
    pairs = pair_map(kernel_map).pairs
    found = location_map(sites, SHAPE, 2, AROUND, sites).forward
    x, weight = torch.randn(len(sites), 16).cuda(), torch.randn(27, 16, 16).cuda()
    neighbours, begin = pairs.table.neighbours, list(pairs.begin)
    slot, order, slots = begin[:-1], list(range(27)), begin[-1]
    ends = (neighbours >= 0).flatten().cumsum(0, dtype=torch.int32).view(neighbours.shape)
    products = operators.fetch_products(x, weight, False, pairs.sources, begin, -1, False)
    check(operators.hash_sites.default, (found.sites,), test_utils=("test_schema",))
    reached = sites, [3] * 3 + [2] * 3 + [1] * 3 + [1] * 3, [4, 20, 19]
    check(operators.reach_outputs.default, reached, test_utils=("test_schema",))
    check(operators.locate.default, found[:4])
    check(operators.conv_direct.default, (x, weight, *found[:4], None, None, True))
    counts = pairs.row_ends, slots
    check(operators.list_pairs.default, (neighbours, None, ends, *counts))
    check(operators.gather_rows.default, (x, pairs.sources, begin, slot, order, slots))
    rows = pairs.row_ends, pairs.by_row
    add = products, *rows, None, begin, [], [], torch.float16, None, None, True
    check(operators.add_products.default, add)
    check(operators.fetch_products.default, (x, weight, False, pairs.sources, begin, 13, True))
    others = operators.fetch_products(x, weight, False, pairs.sources, begin, 13, True)
    centre = x, weight, False, others, *rows, begin, 13, None, None, True, True
    check(operators.conv_centre.default, centre)
    once = pairs.sources[: len(x)], torch.arange(len(x)).int().cuda(), [0] * 27 + [len(x)]
    check(operators.fetch_rows.default, (x, weight, False, *once, None, None, True, True))
