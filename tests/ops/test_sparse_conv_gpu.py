"""The CUDA convolution against the reference in fp64, forward and backward."""

import random

import pytest
import torch

from millisecond.ops import (
    ConvGeometry,
    KernelMap,
    Table,
    conv_blocks,
    sparse_conv,
    strided_map,
    submanifold_map,
)
from millisecond.ops.sparse_conv import mixed_conv, sparse_conv_definition
from tests.conftest import CONVOLUTION
from tests.helpers.sparse import error, on_cuda, poison, random_coords

pytestmark = pytest.mark.gpu

IN_EVERY_PRECISION = pytest.mark.parametrize("precision", CONVOLUTION, indirect=True, ids=str)
CHANNELS = [
    (4, 16),
    (16, 16),
    (16, 32),
    (32, 32),
    (32, 64),
    (64, 64),
    (64, 128),
    (128, 64),
    (128, 128),
    (48, 80),
]
ODD_CHANNELS = [(1, 1), (3, 5), (7, 16), (20, 12), (16, 24), (130, 9)]


@pytest.fixture
def precision(request):
    dtype, matmul = request.param
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(matmul)
    yield dtype, CONVOLUTION[request.param]
    torch.set_float32_matmul_precision(before)


def compare(kernel_map, sources, channels, dtype, tolerance, generator) -> None:
    """Forward and every gradient of a random convolution against fp64 on the CPU."""
    volume, rows = kernel_map.forward.neighbours.shape
    c_in, c_out = channels
    draw = lambda *shape: torch.randn(*shape, generator=generator).to(dtype)  # noqa: E731
    features, weight = draw(sources, c_in), draw(volume, c_in, c_out) / (c_in * 8) ** 0.5
    bias, residual, grad = draw(c_out).float(), draw(rows, c_out), draw(rows, c_out)
    wide = [t.double().requires_grad_() for t in (features, weight, bias, residual)]
    narrow = [t.cuda().requires_grad_() for t in (features, weight, bias, residual)]
    for relu in (False, True):
        expected = sparse_conv(wide[0], wide[1], kernel_map, wide[2], wide[3], relu)
        poison()
        out = sparse_conv(narrow[0], narrow[1], on_cuda(kernel_map), narrow[2], narrow[3], relu)
        what = f"{channels} {dtype} relu={relu} rows={rows}"
        assert error(out, expected) <= tolerance, f"forward {what}: {error(out, expected)}"
    # without ReLU, whose kink would let one rounding flip a whole gradient
    expected = sparse_conv(wide[0], wide[1], kernel_map, wide[2], wide[3])
    out = sparse_conv(narrow[0], narrow[1], on_cuda(kernel_map), narrow[2], narrow[3])
    wanted = torch.autograd.grad(expected, wide, grad.double())
    poison()
    found = torch.autograd.grad(out, narrow, grad.cuda())
    for name, x, y in zip(("features", "weight", "bias", "residual"), found, wanted, strict=True):
        assert error(x, y) <= 2 * tolerance, (
            f"gradient of {name}, {channels} {dtype}: {error(x, y)}"
        )


@IN_EVERY_PRECISION
@pytest.mark.parametrize(
    "channels", [(4, 16), (4, 32), (8, 48), (8, 64), (16, 32), (5, 7)], ids=str
)
def test_125_offsets_match_reference_in_fp64(precision, channels):
    dtype, tolerance = precision
    generator = torch.Generator().manual_seed(sum(channels))
    coords = random_coords(generator, (9, 40, 37), 2, 0.05)
    same = submanifold_map(coords.cuda(), (9, 40, 37), 2, 5)
    same = KernelMap(*(t._replace(neighbours=t.neighbours.cpu()) for t in same))
    assert len(same.forward.neighbours) == 125
    compare(same, len(coords), channels, dtype, tolerance, generator)


@IN_EVERY_PRECISION
@pytest.mark.parametrize("channels", CHANNELS + ODD_CHANNELS, ids=str)
def test_matches_reference_in_fp64(precision, channels):
    dtype, tolerance = precision
    generator = torch.Generator().manual_seed(sum(channels))
    coords = random_coords(generator, (9, 40, 37), 2, 0.15)
    same = submanifold_map(coords, (9, 40, 37), 2)
    compare(same, len(coords), channels, dtype, tolerance, generator)
    geometry = ConvGeometry((3, 3, 3), (2, 2, 2), (1, 1, 1), (1, 1, 1))
    _, _, down = strided_map(coords, (9, 40, 37), 2, geometry)
    compare(down, len(coords), channels, dtype, tolerance, generator)
    outputs = down.forward.neighbours.shape[1]
    compare(down.reversed(), outputs, channels, dtype, tolerance, generator)
    compare(same.reversed(), len(coords), channels, dtype, tolerance, generator)


def in_order(weight):
    """[V, C_in, C_out] of spconv's [C_out, *kernel, C_in]."""
    return weight if weight.ndim == 3 else weight.flatten(1, -2).permute(1, 2, 0)


def random_call(chance, generator, dtype, kernel_map):
    """Features, weight, bias and residual: a weight in either order and of either type, and any of
    the four may need a gradient."""
    may = lambda: chance.random() < 0.5  # noqa: E731
    draw = lambda *shape: torch.randn(*shape, generator=generator).to(dtype)  # noqa: E731
    c_in, c_out = chance.choice(CHANNELS + ODD_CHANNELS)
    weight = draw(c_out, 3, 3, 3, c_in) / (c_in * 8) ** 0.5
    weight = weight if may() else in_order(weight).contiguous()
    weight = weight if may() else weight.float()
    rows, sources = (table.neighbours.shape[1] for table in kernel_map)
    bias, residual = (draw(*n) if may() else None for n in ((c_out,), (rows, c_out)))
    tensors = [draw(sources, c_in), weight, bias, residual]
    needs = [tensor is not None and may() for tensor in tensors]
    if not any(needs):
        needs[chance.randrange(2)] = True
    return tensors, needs, draw(c_out, rows).T


@IN_EVERY_PRECISION
@pytest.mark.parametrize("seed", range(8))
def test_gradients_of_random_calls(precision, seed):
    dtype, tolerance = precision
    chance, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    coords = random_coords(generator, (9, 20, 17), 2, 0.15)
    down = strided_map(coords, (9, 20, 17), 2, ConvGeometry.of(3, 2, 1))[2]
    for kernel_map in (submanifold_map(coords, (9, 20, 17), 2), down, down.reversed()):
        tensors, needs, grad = random_call(chance, generator, dtype, kernel_map)
        pairs = list(zip(tensors, needs, strict=True))
        narrow = [None if t is None else t.cuda().requires_grad_(n) for t, n in pairs]
        wide = [None if t is None else t.double().requires_grad_(n) for t, n in pairs]
        for relu in (False, True):
            poison()
            out = mixed_conv(*narrow[:2], on_cuda(kernel_map), *narrow[2:], relu)
            weight = in_order(wide[1])
            expected = sparse_conv_definition(wide[0], weight, kernel_map, *wide[2:], False)
            assert error(out, expected.relu() if relu else expected) <= tolerance
            leaves = [
                [t for t in side if t is not None and t.requires_grad] for side in (narrow, wide)
            ]
            # by the mask that was found: one rounding at the kink of a ReLU flips a whole gradient
            seen = torch.where(out.detach().cpu() > 0, grad, 0) if relu else grad
            wanted = torch.autograd.grad(expected, leaves[1], seen.double())
            poison()
            found = torch.autograd.grad(out, leaves[0], grad.cuda(), retain_graph=True)
            again = torch.autograd.grad(out, leaves[0], grad.cuda())
            for leaf, x, y, z in zip(leaves[0], found, again, wanted, strict=True):
                assert x.dtype == leaf.dtype and x.stride() == leaf.stride() and torch.equal(x, y)
                assert error(x, z) <= 2 * tolerance, f"{list(leaf.shape)}: {error(x, z)}"


def test_a_gradient_may_begin_anywhere():
    """As the gradient of a part of joined rows does."""
    generator = torch.Generator().manual_seed(8)
    coords = random_coords(generator, (5, 20, 20), 1, 0.2)
    kernel_map = on_cuda(submanifold_map(coords, (5, 20, 20), 1))
    features = torch.randn(len(coords), 5, generator=generator).cuda().requires_grad_()
    weight = torch.randn(27, 5, 3, generator=generator).cuda().requires_grad_()
    room = torch.randn(1 + 3 * len(coords), generator=generator).cuda()[1:].view(-1, 3)
    results = [
        torch.autograd.grad(sparse_conv(features, weight, kernel_map), (features, weight), grad)
        for grad in (room, room.clone())
    ]
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


@pytest.mark.parametrize("rows", [0, 1, 15, 16, 17, 129, 2047, 2049, 70000])
@pytest.mark.parametrize("channels", [(16, 16), (64, 64), (5, 3)], ids=str)
def test_any_number_of_rows(rows, channels):
    generator = torch.Generator().manual_seed(rows)
    sources = rows // 2 + 1
    neighbours = torch.randint(-sources, sources, (27, rows), generator=generator).clamp(min=-1)
    # a table that no geometry made: several rows may read one source through one offset, so
    # there is no backward table
    table = Table(neighbours.int())
    features = torch.randn(sources, channels[0], generator=generator).half()
    weight = (torch.randn(27, *channels, generator=generator) / 20).half()
    with torch.no_grad():
        expected = sparse_conv(features.double(), weight.double(), KernelMap(table, None))
        on_device = KernelMap(table._replace(neighbours=table.neighbours.cuda()), None)
        poison()
        out = sparse_conv(features.cuda(), weight.cuda(), on_device)
    assert error(out, expected) <= 4e-4
    wanted = torch.zeros(27, *channels, dtype=torch.float64)
    grad = torch.randn(rows, channels[1], generator=generator).half()
    for v in range(27):
        hit = neighbours[v] >= 0
        wanted[v] = features[neighbours[v, hit]].double().T @ grad[hit].double()
    poison()
    found = torch.ops.millisecond.conv_weight_gradient(
        features.cuda(), grad.cuda(), table.neighbours.cuda(), None, False
    )
    assert found.dtype == torch.float32
    assert error(found, wanted) <= 1e-6 * max(1, rows) ** 0.5


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_same_bits_every_time(dtype):
    generator = torch.Generator().manual_seed(3)
    coords = random_coords(generator, (9, 60, 60), 2, 0.2)
    kernel_map = on_cuda(submanifold_map(coords, (9, 60, 60), 2))
    features = torch.randn(len(coords), 64, generator=generator).to("cuda", dtype).requires_grad_()
    weight = torch.randn(27, 64, 64, generator=generator).to("cuda", dtype).requires_grad_()
    grad = torch.randn(len(coords), 64, generator=generator).to("cuda", dtype)
    runs = []
    for _ in range(10):
        poison()
        out = sparse_conv(features, weight, kernel_map)
        runs.append((out, *torch.autograd.grad(out, (features, weight), grad)))
    for run in runs[1:]:
        for first, again in zip(runs[0], run, strict=True):
            assert torch.equal(first, again)


@pytest.mark.parametrize("blocks", [False, True])
@pytest.mark.parametrize(("before", "after"), [("high", "highest"), ("highest", "high")])
def test_backward_is_in_the_precision_of_forward(before, after, blocks):
    generator = torch.Generator().manual_seed(4)
    coords = random_coords(generator, (9, 40, 40), 1, 0.2)
    kernel_map = on_cuda(submanifold_map(coords, (9, 40, 40), 1))
    features = torch.randn(len(coords), 32, generator=generator).cuda().requires_grad_()
    weight = torch.randn(27, 32, 32, generator=generator).cuda().requires_grad_()
    grad = torch.randn(len(coords), 32, generator=generator).cuda()
    norm = torch.nn.BatchNorm1d(32, eps=1e-3, momentum=0.01).cuda()
    was = torch.get_float32_matmul_precision()
    results = []
    try:
        for later in (before, after):
            torch.set_float32_matmul_precision(before)
            if blocks:
                out = conv_blocks(features, [weight], [kernel_map], [norm])
            else:
                out = sparse_conv(features, weight, kernel_map)
            torch.set_float32_matmul_precision(later)
            results.append(torch.autograd.grad(out, (features, weight), grad))
    finally:
        torch.set_float32_matmul_precision(was)
    for same, changed in zip(*results, strict=True):
        assert torch.equal(same, changed)


@pytest.mark.parametrize("channels", [(4, 16), (16, 32), (64, 64)], ids=str)
def test_count_on_the_device_bounds_the_rows(channels):
    generator = torch.Generator().manual_seed(5)
    coords = random_coords(generator, (5, 50, 50), 1, 0.2)
    table = submanifold_map(coords, (5, 50, 50), 1).forward
    rows = len(coords)
    features = torch.randn(rows, channels[0], generator=generator).half().cuda()
    weight = (torch.randn(27, *channels, generator=generator) / 20).half().cuda()
    whole = KernelMap(Table(table.neighbours.cuda()), None)
    with torch.no_grad():
        expected = sparse_conv(features, weight, whole)
        for count in (0, 1, 17, rows // 2, rows):
            # beyond the count the table holds what would be an illegal access
            neighbours = torch.full((27, rows + 100), 1 << 30, dtype=torch.int32)
            neighbours[:, :count] = table.neighbours[:, :count]
            bounded = Table(neighbours.cuda(), torch.tensor([count]).int().cuda())
            out = sparse_conv(features, weight, KernelMap(bounded, None))
            # the sum of an offset's shares may be grouped otherwise for another number of rows
            assert error(out[:count], expected[:count]) <= 4e-4


def test_stream_and_graph_capture():
    generator = torch.Generator().manual_seed(7)
    coords = random_coords(generator, (5, 50, 50), 1, 0.2)
    kernel_map = on_cuda(submanifold_map(coords, (5, 50, 50), 1))
    features = torch.randn(len(coords), 32, generator=generator).half().cuda()
    weight = torch.randn(27, 32, 32, generator=generator).half().cuda()
    with torch.no_grad():
        expected = sparse_conv(features, weight, kernel_map)
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            torch.cuda._sleep(10_000_000)
            late = features.clone()  # on the side stream, so wrong unless the kernel follows it
            assert torch.equal(sparse_conv(late, weight, kernel_map), expected)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        static = features.clone()
        with torch.cuda.graph(graph):
            out = sparse_conv(static, weight, kernel_map)
        static.copy_(2 * features)
        graph.replay()
        assert error(out, 2 * expected) <= 1e-3


def test_mistakes_name_the_tensor():
    kernel_map = KernelMap(Table(torch.zeros(27, 8, dtype=torch.int32, device="cuda")), None)
    features = torch.zeros(8, 16, device="cuda")
    weight = torch.zeros(27, 16, 16, device="cuda")
    with torch.no_grad():
        with pytest.raises((ValueError, RuntimeError), match=r"weight.*cpu"):
            sparse_conv(features, weight.cpu(), kernel_map)
        with pytest.raises((ValueError, RuntimeError), match=r"weight.*float16"):
            sparse_conv(features, weight.half(), kernel_map)
        with pytest.raises((ValueError, RuntimeError), match="features must be contiguous"):
            sparse_conv(torch.zeros(16, 8, device="cuda").T, weight, kernel_map)
        with pytest.raises((ValueError, RuntimeError), match=r"residual.*\[8, 15\]"):
            wrong = torch.zeros(8, 15, device="cuda")
            sparse_conv(features, weight, kernel_map, residual=wrong)
    around = KernelMap.around(kernel_map.forward)
    for message, call in {
        "features: 7 rows, the kernel map has 8 inputs": (features[1:], weight, around),
        "weight must be of 27 offsets and 15 input": (features[:, 1:].contiguous(), weight, around),
        "kernel_map: backward is None": (features.clone().requires_grad_(), weight, kernel_map),
    }.items():
        with pytest.raises((ValueError, RuntimeError), match=message) as failure:
            mixed_conv(*call, None)
        assert "\n" not in str(failure.value)


@pytest.fixture
def opcheck_case():
    """The operators loaded; features [N, 16], weight [27, 16, 16], bias, a table, its coords."""
    generator = torch.Generator().manual_seed(9)
    coords = random_coords(generator, (5, 20, 20), 1, 0.2)
    table = submanifold_map(coords, (5, 20, 20), 1).forward.neighbours.cuda()
    features = torch.randn(len(coords), 16, device="cuda")
    weight = torch.randn(27, 16, 16, device="cuda")
    sparse_conv(features, weight, KernelMap(Table(table), None))  # loads the operators
    return features, weight, torch.randn(16, device="cuda"), table, coords.cuda().contiguous()


def test_opcheck_of_the_convolution(opcheck_case):
    features, weight, _, table, _ = opcheck_case
    torch.library.opcheck(
        torch.ops.millisecond.conv.default,
        (features, weight, False, table, None, False, None, None, True),
    )
    torch.library.opcheck(
        torch.ops.millisecond.conv_weight_gradient.default,
        (features, features, table, None, False),
    )
    as_spconv = weight.permute(2, 0, 1).reshape(16, 3, 3, 3, 16)
    torch.library.opcheck(
        torch.ops.millisecond.conv_weight_gradient.default,
        (features, features, table, None, False, False, as_spconv),
    )
    tables = table, None, False, None, table, None, True, None
    for kernel in (weight, as_spconv):
        leaves = [t.clone().requires_grad_() for t in (features, kernel)]
        torch.library.opcheck(
            torch.ops.millisecond.train_conv.default, (*leaves, None, None, True, *tables, False)
        )


@pytest.mark.parametrize("changed", ["features", "weight", "result"])
def test_a_change_of_what_the_way_back_reads_is_noticed(opcheck_case, changed):
    features, weight, _, table, _ = opcheck_case
    tensors = {"features": 2 * features.requires_grad_(), "weight": 2 * weight.requires_grad_()}
    kernel_map = KernelMap.around(Table(table))
    tensors["result"] = sparse_conv(*tensors.values(), kernel_map, relu=True)
    tensors[changed].mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        tensors["result"].sum().backward()
    sparse_conv(features, weight, kernel_map).relu_().sum().backward()  # it reads no result
    assert features.grad.any() and weight.grad.any()


def test_a_gradient_cannot_be_differentiated(opcheck_case):
    features, weight, _, table, _ = opcheck_case
    leaves = [features.requires_grad_(), weight.requires_grad_()]
    result = sparse_conv(*leaves, KernelMap.around(Table(table)))
    for gradient in torch.autograd.grad(result.square().sum(), leaves, create_graph=True):
        with pytest.raises(NotImplementedError, match="its gradient cannot be differentiated"):
            gradient.sum().backward()


def test_opcheck_of_the_chain(opcheck_case):
    features, weight, bias, table, _ = opcheck_case
    packed = torch.ops.millisecond.pack_weight(weight, True)
    torch.library.opcheck(torch.ops.millisecond.pack_weight.default, (weight, True))
    torch.library.opcheck(
        torch.ops.millisecond.conv_chain.default,
        (features, [packed, packed], [bias, bias], [table, table], [], [], [], True),
    )


@pytest.mark.parametrize("added", [False, True])
def test_opcheck_of_the_blocks(opcheck_case, added):
    features, weight, bias, table, _ = opcheck_case
    residual = torch.rand_like(features) if added else None
    scale, mean, variance = (torch.rand(16, device="cuda") for _ in range(3))
    blocks = ([weight] * 2, [scale] * 2, [bias] * 2)
    batches = [torch.tensor(n).cuda() for n in (2, 5)]
    statistics = ([mean.clone(), mean.clone()], [variance.clone(), variance.clone()], batches)
    checks = ("test_schema", "test_autograd_registration", "test_faketensor")  # never compiled
    torch.library.opcheck(
        torch.ops.millisecond.conv_blocks.default,
        (features, *blocks, *statistics, [table, table], [], [], 0.01, 1e-3, False, residual),
        test_utils=checks,
    )
    saved = torch.ops.millisecond.conv_blocks(
        features, *blocks, *statistics, [table, table], [], [], 0.01, 1e-3, False, residual
    )
    back = features, features, *blocks, saved, *[[table] * 2, []] * 2, [], [1, 1], 1e-3, True
    torch.library.opcheck(
        torch.ops.millisecond.conv_blocks_backward.default,
        (*back, False, False, residual is not None),
        test_utils=checks,
    )
    tables = [table, table], [], []
    rest = [1, 1], 0.01, 1e-3, False, [bias] * 2, residual
    torch.library.opcheck(
        torch.ops.millisecond.train_blocks.default,
        (features, *blocks, *statistics, *tables, *tables, *rest),
        test_utils=checks,
    )
