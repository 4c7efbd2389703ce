"""Cells of a bird's-eye-view network on the CUDA kernels, against the reference."""

import pytest
import torch

from millisecond.ops import BevHeads, ConvChain, KernelMap, Level, Table, bev_cells, bev_spread
from millisecond.ops.bev import bev_heads_definition, planned
from millisecond.ops.toolchain import kernels_of
from tests.conftest import ROUNDED_ONCE
from tests.ops.test_bev_cells import CASES, DENSITIES, DOWN, SAME, sites

pytestmark = pytest.mark.gpu
operators = torch.ops.millisecond
LARGE = [((200, 176), 8, [[SAME] * 6, [DOWN] + [SAME] * 5]), ((301, 259), 2, [[SAME], [DOWN]])]


def padded(level: Level) -> Level:
    """With room behind the sites, and a count."""
    room = torch.full((37, 4), -1, dtype=torch.int32)
    count = torch.tensor([len(level.coords)], dtype=torch.int32)
    return Level(torch.cat((level.coords, room)).cuda(), count.cuda(), *level[2:])


@pytest.mark.parametrize(("shape", "batch_size", "blocks"), CASES + LARGE)
def test_tables_and_rows_are_those_of_the_reference(shape, batch_size, blocks):
    plans = [planned(blocks, shape, torch.device(device)) for device in ("cpu", "cuda")]
    for seed, density in enumerate(DENSITIES):
        level = sites(seed, batch_size, shape, density)
        wanted = bev_cells(level, batch_size, plans[0])
        found = bev_cells(padded(level), batch_size, plans[1])
        for a, b in zip(found.tables, wanted.tables, strict=True):
            assert int(a.count) == b.neighbours.shape[1]
            assert torch.equal(a.neighbours[:, : int(a.count)].cpu(), b.neighbours)
        for a, b in zip(found.rows, wanted.rows, strict=True):
            assert torch.equal(a.cpu(), b)


WIDE = [128, 128, 256]  # channels of three convolutions


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("shape", "batch_size"), [((9, 7), 1), ((60, 44), 1), ((200, 176), 6)])
def test_tiles_found_ahead_change_no_bit(shape, batch_size, dtype):
    generator = torch.Generator().manual_seed(3)
    plan = planned([[SAME, SAME], [DOWN]], shape, torch.device("cuda"), WIDE)
    convolutions = zip([128, *WIDE], WIDE, [18, 9, 9], strict=False)
    weights = [torch.randn(v, i, o, generator=generator) / 32 for i, o, v in convolutions]
    chain = ConvChain(weights, [torch.randn(n, generator=generator) for n in WIDE])
    chain = chain.cuda().to(dtype)
    for seed, density in enumerate(DENSITIES):
        level = padded(sites(seed, batch_size, shape, density))
        cells = bev_cells(level, batch_size, plan)
        tables = [table._replace(tiles=None) for table in cells.tables]
        rows = torch.randn(len(level.coords), 128, generator=generator).cuda().to(dtype)
        found, wanted = (
            chain(rows, [KernelMap(table, None) for table in of])[: int(tables[-1].count)]
            for of in (cells.tables, tables)
        )
        assert torch.equal(found, wanted)


def test_cells_and_tiles_in_a_compiled_program():
    plan = planned([[SAME, SAME], [DOWN]], (20, 12), torch.device("cuda"), WIDE)

    def run(level, batch_size):
        found = bev_cells(level, batch_size, plan)
        return found.rows, [table.count for table in found.tables], found.tables[0].tiles

    compiled = torch.compile(run, fullgraph=True, backend="aot_eager")
    for batch_size in (1, 2, 3):
        level = padded(sites(batch_size, batch_size, (20, 12), 0.1))
        wanted, got = run(level, batch_size), compiled(level, batch_size)
        torch.testing.assert_close(got[:2], wanted[:2], rtol=0, atol=0)
        if wanted[2] is not None:  # bytes up to the count alone are written
            assert got[2].shape == wanted[2].shape


def test_tiles_are_of_wide_convolutions(request):
    blocks = torch.cuda.get_device_properties(0).multi_processor_count
    has_tiles = kernels_of(torch.cuda.get_device_capability()) == "wgmma"
    has_tiles &= request.config.getoption("--device-limits") is None
    sizes = operators.tile_sizes(0, [64, 10**6, 10**6], [18, 9, 9], WIDE)
    counts = [(2, 18), (blocks, 9), (blocks // 2, 9)]
    assert sizes == [n * (800 + 784 * v) for n, v in counts][: 3 * has_tiles]
    assert operators.tile_sizes(0, [64, 64], [9, 9], [128, 64]) == []
    assert operators.tile_sizes(0, [64, 64], [99, 9], [128, 128]) == []  # eleven heights


def test_tiles_of_another_convolution_are_refused():
    chain = ConvChain([torch.zeros(9, 128, 128)], [torch.zeros(128)]).cuda().half()
    table = Table(torch.zeros(9, 50, dtype=torch.int32).cuda(), tiles=torch.zeros(16).byte().cuda())
    with pytest.raises(RuntimeError, match="tiles were not made for 50 rows"):
        chain(torch.zeros(9, 128).cuda().half(), [KernelMap(table, None)])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("channels", [[18, 42, 12], [3, 7, 2], [700]])
def test_spread_is_that_of_the_reference(dtype, channels):
    random = torch.Generator().manual_seed(0)
    rows = [
        torch.randint(50, (2, 38 // f, 26 // f), generator=random, dtype=torch.int32)
        for f in (1, 2)
    ]
    room = sum(channels) + sum(channels) % 2
    values = [torch.randn(50 * f * f, room, generator=random).to(dtype) for f in (1, 2)]
    wanted = bev_spread(values, rows, [1, 2], channels)
    on_gpu = [tensor.cuda() for tensor in values], [tensor.cuda() for tensor in rows], [1, 2]
    for a, b in zip(bev_spread(*on_gpu, channels), wanted, strict=True):
        assert torch.equal(a.cpu(), b)
    torch.library.opcheck(operators.bev_spread.default, (*on_gpu, channels))


SIZES = [(128, 256, 1, 72), (256, 256, 4, 72), (64, 32, 4, 20), (24, 12, 1, 5)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("c_in", "width", "parts", "outputs"), SIZES)
@torch.inference_mode()
def test_heads_are_those_of_the_reference(dtype, c_in, width, parts, outputs):
    random = torch.Generator(device="cuda").manual_seed(0)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=random, device="cuda") / shape[0] ** 0.5

    up, head = normal(c_in, parts * width).to(dtype), normal(width, outputs).to(dtype)
    biases = normal(parts * width), normal(outputs)
    heads = BevHeads(up, biases[0], head, biases[1], parts)
    for rows in (1, 700, 20_000):
        features, count = normal(rows, c_in).to(dtype), -(-rows * 4 // 5)
        found = heads(features, torch.tensor([count], dtype=torch.int32).cuda())
        wanted = bev_heads_definition(features[:count], up, biases[0], head, biases[1], parts)
        error = (found[: count * parts, :outputs].double() - wanted.double()).norm()
        # the features between the two products are rounded, too: near 0.5 one way or the other
        assert error <= 2 * ROUNDED_ONCE[dtype] * wanted.double().norm()
        again = heads(features)[:, :outputs]
        assert torch.equal(heads(features)[:, :outputs], again)


def test_operators_are_what_they_say():
    level, plan = (
        padded(sites(0, 2, (20, 12), 0.1)),
        planned([[SAME]], (20, 12), torch.device("cuda")),
    )
    arguments = [level.coords, level.count, 2, (2, 20, 12), (3, 1, 1), plan.alike[1:], [489]]
    # rows from the count on hold anything: results of two calls need not be equal
    checks = "test_schema", "test_faketensor"
    for tiles in ([], operators.tile_sizes(0, [489], [18], [128])):
        given = (*arguments, tiles, [0])
        torch.library.opcheck(operators.bev_cells.default, given, test_utils=checks)
    x, up, head = (torch.randn(n, device="cuda").half() for n in ((9, 24), 24 * 12, 12 * 5))
    biases = torch.zeros(12, device="cuda"), torch.zeros(5, device="cuda")
    given = x, up, biases[0], head, biases[1], 1, 5, None, False
    torch.library.opcheck(operators.bev_heads.default, given)
