"""The order of a table's rows by their offsets."""

import itertools

import numpy as np
import pytest
import torch

from millisecond.ops.row_order import ALL, row_order
from millisecond.ops.row_order import row_order_definition as reference
from millisecond.ops.rulebook import KernelMap, Table
from millisecond.ops.sparse_conv import mixed_conv, pack_weight, sparse_conv
from tests.conftest import CONVOLUTION, ROUNDED_ONCE
from tests.helpers.sparse import error


def random_table(rows: int, volume: int, seed: int, count: int | None = None) -> Table:
    generator = torch.Generator().manual_seed(seed)
    neighbours = torch.randint(-3 * rows, rows + 1, (volume, rows), generator=generator)
    neighbours = neighbours.clamp(min=-1, max=max(rows - 1, -1)).int()
    return Table(neighbours, None if count is None else torch.tensor([count], dtype=torch.int32))


def moved(table: Table) -> Table:
    count = None if table.count is None else table.count.cuda()
    return table._replace(neighbours=table.neighbours.cuda(), count=count)


@pytest.mark.parametrize("count", [None, 300])
def test_every_row_is_there_once_and_rows_of_the_same_offsets_side_by_side(count):
    table = random_table(400, 4, 3, count)
    order, masks = row_order(table).long()
    last = 400 if count is None else count
    assert order.sort().values.tolist() == list(range(400))
    assert order[:last].max() < last
    for v in range(4):
        assert torch.equal(masks >> v & 1, (table.neighbours[v] >= 0).long())
    found = masks[order[:last]]
    assert 1 + (found[1:] != found[:-1]).sum() == len(found.unique())


@pytest.mark.parametrize("count", [None, 1500])
def test_each_segment_is_in_order_by_itself(count):
    table = random_table(3000, 27, 6, count)
    order = row_order(table, 1024)[0]
    for begin in range(0, 3000, 1024):
        rows = slice(begin, begin + 1024)
        counted = None if count is None else torch.tensor([min(max(count - begin, 0), 1024)])
        part = Table(table.neighbours[:, rows], counted)
        assert torch.equal(order[rows], row_order(part)[0] + begin)


def test_the_four_rarest_offsets_decide():
    """Of a kernel of 3 x 3 x 3: those with most steps from the middle. Rows for which they are the
    same stay in their order."""
    table = random_table(3000, 27, 5)
    steps = [abs(z) + abs(y) + abs(x) for z, y, x in itertools.product((-1, 0, 1), repeat=3)]
    rarest = sorted(range(27), key=lambda v: (steps[v], abs(v - 13), v), reverse=True)
    present = (table.neighbours[rarest] >= 0).T
    order = row_order(table)[0].tolist()
    rows_of: dict[tuple[int, ...], list[int]] = {}
    for row in order:
        rows_of.setdefault(tuple(present[row].nonzero()[:4, 0].tolist()), []).append(row)
    assert list(itertools.chain(*rows_of.values())) == order  # side by side
    assert all(rows == sorted(rows) for rows in rows_of.values())
    firsts = [bin[0] if bin else 27 for bin in rows_of]
    assert firsts == sorted(firsts)


def test_tiles_in_that_order_multiply_half_as_many_offsets():
    """About three offsets per row, the middle one always, as in a scan."""
    draw = torch.Generator().manual_seed(1)
    neighbours = torch.where(torch.rand(27, 64 * 200, generator=draw) < 0.08, 0, -1).int()
    neighbours[13] = 0
    order, masks = row_order(Table(neighbours))

    def products(masks: torch.Tensor) -> int:
        tiles = np.bitwise_or.reduce(masks.view(-1, 64).numpy(), axis=1)
        return sum(bin(offsets).count("1") for offsets in tiles.tolist())

    assert products(masks[order.long()]) < products(masks) / 2


@pytest.mark.parametrize(("volume", "sizes"), [(27, [27]), (29, [14, 15]), (125, [25] * 5)])
def test_each_piece_of_a_large_window_is_in_order_by_itself(volume, sizes):
    """A flipped table has its last offsets at the first weights."""
    table = random_table(2000, volume, 7, 1500)
    offsets, from_behind = table.neighbours, table.neighbours.flip(0)
    for flipped, pieces in ((False, offsets.split(sizes)), (True, from_behind.split(sizes))):
        pieces = [piece.flip(0) if flipped else piece for piece in pieces]
        orders = [row_order(table._replace(neighbours=piece), 1024) for piece in pieces]
        assert torch.equal(row_order(table._replace(flipped=flipped), 1024), torch.cat(orders))


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("rows", "volume", "count"),
    [
        (0, 27, None),
        (1, 3, 1),
        (3000, 31, 1025),
        (70001, 27, None),
        (3000, 343, None),
        (170_001, 125, None),
    ],
)
def test_the_kernel_finds_the_same_order(rows, volume, count):
    table = random_table(rows, volume, rows, count)
    bounded = table._replace(count=torch.tensor([rows // 3], dtype=torch.int32))
    for given in (table, bounded, table._replace(flipped=True)):
        for segment in (ALL, 1024, 65536):
            found = row_order(moved(given), segment)
            assert torch.equal(found.cpu(), reference(given, segment))
    arguments = *moved(bounded)[:2], ALL, True
    torch.library.opcheck(torch.ops.millisecond.row_order, arguments)


@pytest.mark.gpu
def test_there_may_be_more_segments_than_a_grid_of_blocks_is_high():
    rows = 65535 * 1024 + 1025
    table = Table(torch.zeros(1, rows, dtype=torch.int32, device="cuda"))
    order, masks = row_order(table, 1024)
    assert torch.equal(order, torch.arange(rows, dtype=torch.int32, device="cuda"))
    assert bool((masks == 1).all())


@pytest.fixture
def tf32():
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    yield
    torch.set_float32_matmul_precision(before)


@pytest.mark.gpu
@pytest.mark.usefixtures("tf32")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize(
    ("rows", "c_in", "c_out"), [(0, 128, 128), (1, 192, 128), (97, 128, 256), (3001, 256, 384)]
)
@pytest.mark.parametrize("flipped", [False, True])
@pytest.mark.parametrize("volume", [27, 125, 343])
def test_a_convolution_gives_the_same_bits_in_any_order(dtype, rows, c_in, c_out, flipped, volume):
    """Of any permutation of the rows, and where only some of them count."""
    table = moved(random_table(rows, volume, rows))._replace(flipped=flipped)
    check_any_order(table, dtype, c_in, c_out)
    check_any_order(
        table._replace(count=torch.tensor([rows // 2]).int().cuda()), dtype, c_in, c_out
    )


@pytest.mark.gpu
@pytest.mark.usefixtures("tf32")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize(("volume", "c_out"), [(27, 128), (27, 256), (27, 384), (54, 512)])
def test_a_convolution_of_many_rows_gives_the_same_bits_in_any_order(dtype, volume, c_out):
    """Also where a block has two panels of 128 channels."""
    table = moved(random_table(70001, volume, 1))
    check_any_order(table, dtype, 128, c_out)
    check_any_order(table._replace(count=torch.tensor([69000]).int().cuda()), dtype, 128, c_out)


@pytest.mark.gpu
@pytest.mark.usefixtures("tf32")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("precision", ["highest", "high"])
@pytest.mark.parametrize(("rows", "c_in", "c_out"), [(1, 16, 16), (97, 32, 64), (70_001, 64, 48)])
def test_narrower_layers_in_an_order(dtype, precision, rows, c_in, c_out):
    """Sums of a row may be cut elsewhere: the same but for the rounding of float32."""
    torch.set_float32_matmul_precision(precision)
    draw = torch.Generator("cuda").manual_seed(0)
    features = torch.randn(rows, c_in, device="cuda", generator=draw).to(dtype)
    weight = torch.randn(27, c_in, c_out, device="cuda", generator=draw).to(dtype) / 30
    for count, flipped in itertools.product((None, rows // 2), (False, True)):
        table = moved(random_table(rows, 27, rows, count))._replace(flipped=flipped)
        counted = rows if count is None else count
        with torch.no_grad():
            wanted = sparse_conv(features, weight, KernelMap(table, None))[:counted]
            ordered = KernelMap(table._replace(order=row_order(table)), None)
            found = [sparse_conv(features, weight, ordered)[:counted] for _ in range(2)]
            assert torch.equal(*found)
            assert error(found[0], wanted) <= ROUNDED_ONCE[dtype]


@pytest.mark.gpu
@pytest.mark.usefixtures("tf32")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize(
    ("rows", "c_in", "c_out"),
    [(1, 64, 64), (1000, 32, 32), (1000, 64, 32), (1000, 32, 64), (70_001, 64, 64)],
)
@pytest.mark.parametrize("volume", [27, 125])
def test_32_and_64_channels_in_an_order(dtype, rows, c_in, c_out, volume):
    """Their own kernel against the reference in fp64, the same bits every time."""
    draw = torch.Generator("cuda").manual_seed(0)
    features = torch.randn(rows, c_in, device="cuda", generator=draw).to(dtype)
    weight = torch.randn(volume, c_in, c_out, device="cuda", generator=draw).to(dtype) / 30
    tolerance = CONVOLUTION[dtype, "high" if dtype == torch.float32 else "highest"]
    for count, flipped in itertools.product((None, rows // 2), (False, True)):
        table = moved(random_table(rows, volume, rows, count))._replace(flipped=flipped)
        counted = rows if count is None else count
        wanted = sparse_conv(features.double(), weight.double(), KernelMap(table, None))[:counted]
        ordered = KernelMap(table._replace(order=row_order(table, 1024)), None)
        with torch.no_grad():
            found = [sparse_conv(features, weight, ordered)[:counted] for _ in range(2)]
            packed = mixed_conv(features, weight, ordered, None, packed=pack_weight(weight))[
                :counted
            ]
        assert torch.equal(*found) and torch.equal(packed, found[0])
        assert error(found[0], wanted) <= tolerance


def check_any_order(table: Table, dtype: torch.dtype, c_in: int, c_out: int) -> None:
    offsets, rows = table.neighbours.shape
    counted = rows if table.count is None else int(table.count)
    draw = torch.Generator("cuda").manual_seed(0)
    random = lambda *shape: torch.randn(shape, device="cuda", generator=draw)  # noqa: E731
    x, weight, bias = random(rows, c_in).to(dtype), random(offsets, c_in, c_out) / 30, random(c_out)
    others = weight.to(dtype), KernelMap(table, None), bias, random(rows, c_out).to(dtype), True
    with torch.no_grad():
        wanted = sparse_conv(x, *others)[:counted]
        order = row_order(table)
        for rows_of_piece in order[::2]:
            mixed = torch.randperm(counted, device="cuda")
            rows_of_piece[:counted] = rows_of_piece[mixed]
        for given in (row_order(table), order):
            ordered = KernelMap(table._replace(order=given), None)
            found = sparse_conv(x, others[0], ordered, *others[2:])[:counted]
            assert torch.equal(found, wanted)
