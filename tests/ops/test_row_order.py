"""The order of a table's rows by their offsets."""

import pytest
import torch

from ops.reference.row_order import row_order as reference
from ops.row_order import row_order
from ops.rulebook import KernelMap, Table
from ops.sparse_conv import sparse_conv


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
    table = random_table(400, 8, 3, count)
    order, masks = row_order(table).long()
    last = 400 if count is None else count
    assert order.sort().values.tolist() == list(range(400))
    assert order[:last].max() < last
    for v in range(8):
        assert torch.equal(masks >> v & 1, (table.neighbours[v] >= 0).long())
    found = masks[order[:last]]
    assert 1 + (found[1:] != found[:-1]).sum() == len(found.unique())


def test_too_many_offsets_are_told():
    with pytest.raises(ValueError, match="32 offsets"):
        row_order(random_table(4, 32, 0))


@pytest.mark.gpu
@pytest.mark.parametrize(("rows", "volume", "count"), [(0, 27, None), (1, 3, 1), (70001, 27, None)])
def test_the_kernel_finds_the_same_order(rows, volume, count):
    table = random_table(rows, volume, rows, count)
    assert torch.equal(row_order(moved(table)).cpu(), reference(table))
    bounded = table._replace(count=torch.tensor([rows // 3], dtype=torch.int32))
    assert torch.equal(row_order(moved(bounded)).cpu(), reference(bounded))
    torch.library.opcheck(torch.ops.millisecond.row_order, tuple(moved(bounded)[:2]))


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
def test_a_convolution_gives_the_same_bits_in_any_order(dtype, rows, c_in, c_out, flipped):
    """Of any permutation of the rows, and where only some of them count."""
    table = moved(random_table(rows, 27, rows))._replace(flipped=flipped)
    check_any_order(table, dtype, c_in, c_out)
    check_any_order(
        table._replace(count=torch.tensor([rows // 2]).int().cuda()), dtype, c_in, c_out
    )


@pytest.mark.gpu
def test_a_convolution_of_many_rows_gives_the_same_bits_in_any_order():
    check_any_order(moved(random_table(70001, 27, 1)), torch.float16, 128, 256)


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
        order[0, :counted] = order[0, torch.randperm(counted, device="cuda")]
        for given in (row_order(table), order):
            ordered = KernelMap(table._replace(order=given), None)
            found = sparse_conv(x, others[0], ordered, *others[2:])[:counted]
            assert torch.equal(found, wanted)
