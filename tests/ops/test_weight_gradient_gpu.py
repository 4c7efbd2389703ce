"""The weight gradient of wide layers, whose CTAs add up several slabs of rows."""

import pytest
import torch

from millisecond.ops.library import extension
from tests.helpers.sparse import error, poison

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize(
    ("rows", "c_in", "c_out"), [(9000, 128, 128), (40001, 256, 128), (40001, 512, 256)]
)
def test_matches_products_in_fp64_whatever_room_there_is(dtype, rows, c_in, c_out):
    extension()
    draw = torch.Generator("cuda").manual_seed(rows)
    options = {"device": "cuda", "generator": draw}
    neighbours = torch.randint(-3 * rows, rows, (5, rows), **options).clamp(min=-1).int()
    features = torch.randn(rows, c_in, **options).to(dtype)
    gradient = torch.randn(rows, c_out, **options).to(dtype)
    wanted = []
    for sources in neighbours:
        hit = sources >= 0
        wanted.append(features[sources[hit]].double().T @ gradient[hit].double())
    poison()
    call = torch.ops.millisecond.conv_weight_gradient
    found = call(features, gradient, neighbours, None, False)
    assert error(found, torch.stack(wanted)) <= 1e-6 * rows**0.5
    # room for more rows, whose neighbours would be an illegal access, changes no bit
    room = torch.full((5, 3 * rows), 1 << 30, dtype=torch.int32, device="cuda")
    room[:, :rows] = neighbours
    more = torch.cat((gradient, gradient, gradient))
    count = torch.tensor([rows], dtype=torch.int32, device="cuda")
    assert torch.equal(call(features, more, room, count, False), found)


def skewed_table(rows, draw):
    """[27, rows] like a submanifold map's: the middle offset has all rows, two have none."""
    neighbours = torch.randint(-9 * rows, rows, (27, rows), device="cuda", generator=draw)
    neighbours[13] = torch.arange(rows)
    neighbours[[0, 20]] = -1
    neighbours[5, rows // 3 :] = -1  # all of its pairs in the first rows
    return neighbours.clamp(min=-1).int()


@pytest.mark.parametrize("channels", [16, 64, 128, 512])
@pytest.mark.parametrize("rows", [100, 5000, 20001])
def test_offsets_of_unequal_work_need_little_memory(rows, channels):
    extension()
    draw = torch.Generator("cuda").manual_seed(rows)
    neighbours = skewed_table(rows, draw)
    features, gradient = (
        torch.randn(rows, channels, device="cuda", generator=draw).half() for _ in range(2)
    )
    call = torch.ops.millisecond.conv_weight_gradient
    poison()
    found = call(features, gradient, neighbours, None, False)
    for v in (0, 5, 7, 13, 20):
        hit = neighbours[v] >= 0
        wanted = features[neighbours[v][hit]].double().T @ gradient[hit].double()
        assert error(found[v], wanted) <= 1e-6 * rows**0.5
    assert torch.equal(call(features, gradient, neighbours, None, False), found)
    turned = call(features, gradient, neighbours, None, True)
    assert torch.equal(turned.flip(0), found)
    del turned
    # what was asked for: the allocator may give an output of 27 MiB a block of 28
    before = torch.cuda.memory_stats()["requested_bytes.all.current"]
    torch.cuda.reset_peak_memory_stats()
    call(features, gradient, neighbours, None, False)
    peak = torch.cuda.memory_stats()["requested_bytes.all.peak"]
    workspace = peak - before - 4 * found.numel()
    least = 8 * 4 * channels**2  # sums of eight offsets
    plan = neighbours.nbytes // 100 + 50_000
    assert workspace <= max(features.nbytes // 2, least) + plan
