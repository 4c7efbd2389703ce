"""The weight gradient of wide layers, whose CTAs add up several slabs of rows."""

import pytest
import torch

from ops.cuda.library import extension
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
