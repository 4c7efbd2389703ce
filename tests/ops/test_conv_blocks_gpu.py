"""Training blocks in one call are their parts one after another."""

import copy
import itertools

import pytest
import torch

from millisecond.ops import (
    ConvGeometry,
    conv_blocks,
    index_pyramid,
    sparse_conv,
    strided_map,
    submanifold_map,
)
from millisecond.ops.conv_blocks import Normalisation, train_blocks
from tests.conftest import CONV_BLOCKS, CONVOLUTION
from tests.helpers.sparse import error, on_cuda, random_coords

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_conv_blocks_are_their_parts(dtype):
    generator = torch.Generator().manual_seed(11)
    coords = random_coords(generator, (9, 40, 40), 2, 0.2)
    geometry = ConvGeometry((3, 3, 3), (2, 2, 2), (1, 1, 1), (1, 1, 1))
    same = on_cuda(submanifold_map(coords, (9, 40, 40), 2))
    maps = [same, same, on_cuda(strided_map(coords, (9, 40, 40), 2, geometry)[2])]
    rows = maps[-1].forward.neighbours.shape[1]
    channels = (4, 16, 16, 32)
    features = torch.randn(len(coords), 4, generator=generator).to("cuda", dtype)
    weights = [
        torch.randn(27, c_in, c_out, generator=generator).cuda() / (5 * c_in) ** 0.5
        for c_in, c_out in itertools.pairwise(channels)
    ]
    grad = torch.randn(rows, 32, generator=generator).to("cuda", dtype)
    results = []
    for fused in (False, True):
        norms = [torch.nn.BatchNorm1d(c, eps=1e-3, momentum=0.01).cuda() for c in channels[1:]]
        x, own = features.clone().requires_grad_(), [w.clone().requires_grad_() for w in weights]
        if fused:
            out = conv_blocks(x, own, maps, norms)
        else:
            out = x
            for w, kernel_map, norm in zip(own, maps, norms, strict=True):
                out = torch.relu(norm(sparse_conv(out, w.to(dtype), kernel_map)))
        out.backward(grad)
        results.append([out, x.grad, *(w.grad for w in own)])
        for norm in norms:
            results[-1] += [norm.weight.grad, norm.bias.grad, norm.running_mean, norm.running_var]
            assert norm.num_batches_tracked == 1
    tolerance = CONV_BLOCKS[dtype]
    for one, other in zip(*results, strict=True):
        assert error(one, other) <= tolerance


@pytest.fixture
def precision(request):
    dtype, matmul = request.param
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(matmul)
    yield dtype, 10 * CONVOLUTION[request.param]  # three blocks and their gradients
    torch.set_float32_matmul_precision(before)


class Blocks:
    """Random blocks of modules: convolutions with or without a bias, batch norm and ReLU."""

    def __init__(self, draw, channels, biased, dtype):
        pairs = list(itertools.pairwise(channels))
        drawn = [draw(27, *pair) / (5 * pair[0]) ** 0.5 for pair in pairs]
        self.weights = [weight.to(dtype).float() for weight in drawn]
        self.biases = [draw(c) for _, c in pairs] if biased else []
        self.norms = [torch.nn.BatchNorm1d(c, eps=1e-3) for _, c in pairs]
        for norm in self.norms:
            norm.weight.data += 0.3 * draw(norm.num_features)
            norm.bias.data += 0.3 * draw(norm.num_features)

    def to(self, where):
        """The same with leaves of their own."""
        new = copy.copy(self)
        new.norms = [copy.deepcopy(norm).to(where) for norm in self.norms]
        new.weights, new.biases = (
            [t.to(where).requires_grad_() for t in tensors]
            for tensors in (self.weights, self.biases)
        )
        return new

    def parameters(self):
        """The biases last."""
        return [*self.weights, *(p for norm in self.norms for p in norm.parameters()), *self.biases]

    def statistics(self):
        return [t for norm in self.norms for t in (norm.running_mean, norm.running_var)]

    def train(self, x, kernel_map, residual):
        """By the kernels: the results of all blocks."""
        copies, count, results = copy.deepcopy(self.norms), len(self.norms), []
        for n in range(1, count + 1):
            last = n == count
            norms = [Normalisation.of(norm) for norm in (self.norms if last else copies)[:n]]
            parts = [kernel_map] * n, norms, self.biases[:n], residual if last else None
            results.append(train_blocks(x, self.weights[:n], *parts))
        return results

    def definition(self, x, kernel_map, residual, results):
        """By the modules. A ReLU passes what it has passed in `results`: a sign that rounding turns
        would be an error as large as the gradient."""
        biases = self.biases or [None] * len(self.norms)
        added = [None] * (len(self.norms) - 1) + [residual]
        blocks = zip(self.weights, biases, self.norms, added, results, strict=True)
        for weight, bias, norm, end, result in blocks:
            x = norm(sparse_conv(x, weight, kernel_map, bias))
            x = x if end is None else x + end
            x = torch.where(result.cpu() > 0, x, 0)
        return x


def leaves_of(kind, features, residual):
    """Features, residual, and which of them want a gradient."""
    wanted = {
        "none": (features,),
        "constant": (features,),
        "alone": (residual,),
        "apart": (features, residual),
        "shared": (features,),
    }[kind]
    for leaf in wanted:
        leaf.requires_grad_()
    added = {"none": None, "shared": features}.get(kind, residual)
    return features, added, list(wanted)


def gradients_twice(out, leaves, gradient):
    first = torch.autograd.grad(out, leaves, gradient, retain_graph=True)
    second = torch.autograd.grad(out, leaves, gradient)  # may overwrite what the first has kept
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    return list(first)


PRECISIONS = [(torch.float32, "highest"), (torch.float32, "high")]
PRECISIONS += [(torch.float16, "highest"), (torch.bfloat16, "highest")]


@pytest.mark.parametrize("precision", PRECISIONS, indirect=True, ids=str)
@pytest.mark.parametrize("kind", ["none", "constant", "alone", "apart", "shared"])
@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("biased", [False, True])
def test_blocks_with_residual_and_biases_are_their_modules(biased, count, kind, precision):
    dtype, tolerance = precision
    generator = torch.Generator().manual_seed(10 * count + biased)
    draw = lambda *shape: torch.randn(*shape, generator=generator)  # noqa: E731
    coords = random_coords(generator, (9, 30, 30), 2, 0.2)
    same = submanifold_map(coords, (9, 30, 30), 2)
    channels = [(5, 16, 32, 64)[n] for n in torch.randint(4, (count + 1,), generator=generator)]
    channels[-1] = channels[0] if kind == "shared" else channels[-1]
    blocks = Blocks(draw, channels, biased, dtype)
    on_gpu, exact = blocks.to("cuda"), blocks.to(torch.float64)
    shapes = [(len(coords), c) for c in (channels[0], channels[-1], channels[-1])]
    *sources, gradient = (draw(*shape).to(dtype) for shape in shapes)
    x, residual, leaves = leaves_of(kind, *(t.to("cuda") for t in sources))
    *before, out = on_gpu.train(x, on_cuda(same), residual)
    found = gradients_twice(out, [*leaves, *on_gpu.parameters()], gradient.to("cuda"))
    assert all(g.dtype == dtype for g in (out, *found[: len(leaves)]))
    x, residual, leaves = leaves_of(kind, *(t.double() for t in sources))
    reference = exact.definition(x, same, residual, [*before, out])
    wanted = gradients_twice(reference, [*leaves, *exact.parameters()], gradient.double())
    if biased:
        assert not any(g.any() for g in found[-count:])
        found, wanted = found[:-count], wanted[:-count]
    found, wanted = (
        [out, *found, *on_gpu.statistics()],
        [reference, *wanted, *exact.statistics()],
    )
    for number, (one, other) in enumerate(zip(found, wanted, strict=True)):
        assert error(one, other) <= tolerance, number


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("channels", [16, 33])
def test_a_residual_of_zeros_changes_no_bit(channels, dtype):
    generator = torch.Generator().manual_seed(5)
    coords = random_coords(generator, (9, 40, 40), 2, 0.2)
    maps = [on_cuda(submanifold_map(coords, (9, 40, 40), 2))] * 2
    features = torch.randn(len(coords), 16, generator=generator).to("cuda", dtype)
    pairs = (16, channels), (channels, channels)
    weights = [torch.randn(27, *pair, generator=generator).cuda() for pair in pairs]
    results = []
    for residual in (None, torch.zeros(len(coords), channels).to("cuda", dtype)):
        norms = [torch.nn.BatchNorm1d(channels).cuda() for _ in weights]
        x, own = features.clone().requires_grad_(), [w.clone().requires_grad_() for w in weights]
        out = conv_blocks(x, own, maps, norms, residual)
        leaves = [x, *own, *(p for norm in norms for p in norm.parameters())]
        gradient = torch.linspace(-1, 1, out.numel()).view_as(out).to("cuda", dtype)
        results.append([out, *torch.autograd.grad(out, leaves, gradient)])
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


@pytest.mark.parametrize("residual", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("density", [0.02, 0.3])
def test_rows_that_do_not_count_change_no_bit(dtype, density, residual):
    """Tables of a fixed room against exact ones; the rows behind hold NaN. The numbers of rows are
    on either side of those at which sums are cut anew. In the room there are too many cuts for
    every block to merge them by itself."""
    generator = torch.Generator().manual_seed(3)
    shape, downs = (9, 64, 64), [ConvGeometry((3, 3, 3), (2, 2, 2), (1, 1, 1), (1, 1, 1))]
    coords = random_coords(generator, shape, 2, density).cuda()
    rows, room = len(coords), (len(coords) + 3000, 300_000)
    count = torch.tensor([rows], dtype=torch.int32).cuda()
    padded = torch.cat((coords, torch.full((3000, 4), -1).int().cuda()))
    exact = index_pyramid(coords, shape, 2, downs).levels
    bounded = index_pyramid(padded, shape, 2, downs, capacities=room, count=count).levels
    values = torch.randn(rows, 4, generator=generator).to("cuda", dtype)
    weights = [
        torch.randn(27, *n, generator=generator).cuda() for n in ((4, 16), (16, 16), (16, 32))
    ]
    results = []
    for levels in (exact, bounded):
        behind = len(levels[0].coords) - rows
        features = torch.cat((values, torch.full((behind, 4), torch.nan).to(values)))
        maps = [levels[0].submanifold, levels[0].submanifold, levels[1].down]
        norms = [torch.nn.BatchNorm1d(c, eps=1e-3, momentum=0.01).cuda() for c in (16, 16, 32)]
        own = [w.clone().requires_grad_() for w in weights]
        features.requires_grad_()
        grad = torch.linspace(-1, 1, len(exact[1].coords) * 32).view(-1, 32).to("cuda", dtype)
        behind = levels[1].down.forward.neighbours.shape[1] - len(grad)
        last = torch.cat((grad, torch.full((behind, 32), torch.nan).to(grad)))
        added = last.flip(1).requires_grad_() if residual else None
        out = conv_blocks(features, own, maps, norms, added)
        out.backward(last)
        results.append([out[: len(grad)], features.grad[:rows], *(w.grad for w in own)])
        for norm in norms:
            results[-1] += [norm.weight.grad, norm.bias.grad, norm.running_mean, norm.running_var]
        if residual:
            results[-1].append(added.grad[: len(grad)])
    for one, other in zip(*results, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("channels", [(4, 16, 64), (20, 32, 33), (64, 128, 128)])
def test_weights_in_the_order_of_spconv(channels):
    """[C_out, V, C_in] in memory: the same bits, and autograd takes the gradients as they are."""
    generator = torch.Generator().manual_seed(2)
    coords = random_coords(generator, (9, 40, 40), 2, 0.2)
    maps = [on_cuda(submanifold_map(coords, (9, 40, 40), 2))] * 2
    features = torch.randn(len(coords), channels[0], generator=generator).half().cuda()
    results = []
    weights = [
        torch.randn(27, *n, generator=generator).cuda() for n in itertools.pairwise(channels)
    ]
    for spconv in (False, True):
        norms = [torch.nn.BatchNorm1d(c, momentum=0.01).cuda() for c in channels[1:]]
        own = [w.permute(2, 0, 1).contiguous() if spconv else w.clone() for w in weights]
        own = [w.requires_grad_() for w in own]
        as_read = [w.permute(1, 2, 0) if spconv else w for w in own]
        x = features.clone().requires_grad_()
        out = conv_blocks(x, as_read, maps, norms)
        gradient = torch.linspace(-1, 1, out.numel()).view_as(out).to("cuda", out.dtype)
        # kept: the second pass finds what the first one has read
        first = torch.autograd.grad(out, [x, *own], gradient, retain_graph=True)
        second = torch.autograd.grad(out, [x, *own], gradient)
        assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
        assert all(g.stride() == w.stride() for g, w in zip(first[1:], own, strict=True))
        turned = [g.permute(1, 2, 0) if spconv else g for g in first[1:]]
        results.append([out, first[0], *turned])
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


def test_a_weight_may_begin_anywhere():
    """The way back reads a weight where it lies if the tensor cores do not take its channels."""
    generator = torch.Generator().manual_seed(3)
    coords = random_coords(generator, (5, 20, 20), 1, 0.2)
    maps = [on_cuda(submanifold_map(coords, (5, 20, 20), 1))]
    features = torch.randn(len(coords), 12, generator=generator).cuda().requires_grad_()
    room = torch.randn(1 + 27 * 12 * 4, generator=generator).cuda()
    results = []
    for weight in (room[1:].clone(), room[1:]):
        out = conv_blocks(
            features, [weight.view(27, 12, 4)], maps, [torch.nn.BatchNorm1d(4).cuda()]
        )
        results.append([out, *torch.autograd.grad(out.square().sum(), features)])
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


def test_gradients_of_parameters_are_apart():
    """They share an allocation: what is done to one leaves the others as they are."""
    generator = torch.Generator().manual_seed(4)
    coords = random_coords(generator, (5, 20, 20), 1, 0.2)
    maps = [on_cuda(submanifold_map(coords, (5, 20, 20), 1))] * 3
    channels = (4, 16, 128, 128)  # the last weight's gradient is too large to share
    features = torch.randn(len(coords), 4, generator=generator).half().cuda()
    weights = [
        (torch.randn(27, *n, generator=generator) / 10).cuda().requires_grad_()
        for n in itertools.pairwise(channels)
    ]
    norms = [torch.nn.BatchNorm1d(c).cuda() for c in channels[1:]]
    parameters = [*weights, *(p for norm in norms for p in norm.parameters())]

    def backward():
        conv_blocks(features, weights, maps, norms).float().square().sum().backward()

    backward()
    first = [p.grad.clone() for p in parameters]
    backward()  # adds in place
    for p, gradient in zip(parameters, first, strict=True):
        assert torch.equal(p.grad, 2 * gradient)
    for number, p in enumerate(parameters):
        p.grad.fill_(number)
    assert all((p.grad == number).all() for number, p in enumerate(parameters))
    weights[0].grad = None
    backward()
    assert torch.equal(weights[0].grad, first[0])
