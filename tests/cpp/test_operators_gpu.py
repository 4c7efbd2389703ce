"""Operators of libmillisecond on a GPU: as the plain torch ones on the CPU."""

import ctypes
import re
from ctypes import c_float, c_int64
from types import SimpleNamespace

import pytest
import torch

from millisecond.ops import (
    ConvGeometry,
    SparseTensor,
    TransposedConv,
    bev_map,
    block_diagonal,
    sparse_conv,
    strided_map,
    submanifold_map,
)
from millisecond.ops.boxes import iou_3d, iou_bev, nms, overlap_bev, select_boxes
from millisecond.ops.max_pool import PlainMaxPool
from millisecond.ops.points import interpolate
from tests.conftest import CONVOLUTION, OVERLAP
from tests.cpp.structures import TYPES, Predictions, Table, Window, at, on_stream, table_of, three
from tests.helpers.sparse import error, poison_bits, random_coords

pytestmark = pytest.mark.gpu

DTYPES = list(TYPES)
SHAPE = (9, 20, 30)
DOWN = ConvGeometry.of(3, 2, 1)


def sites(seed=1, density=0.1, batch=2):
    return random_coords(torch.Generator().manual_seed(seed), SHAPE, batch, density).contiguous()


def like(tensor, dtype=None):
    """Room on the GPU that holds anything."""
    poison_bits()
    return torch.empty(tensor.shape, dtype=dtype or tensor.dtype, device="cuda")


def boxes_of(seed, count):
    generator = torch.Generator().manual_seed(seed)
    spread = torch.tensor([12.0, 12, 2, 4, 2, 2, 6])
    return torch.rand(count, 7, generator=generator) * spread + 0.1


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("per_class", [False, True])
def test_select_boxes(library, dtype, per_class):
    generator = torch.Generator().manual_seed(1)
    logits, residuals, directions = (
        (torch.randn(2, 900, width, generator=generator) * scale - mean).to(dtype)
        for width, scale, mean in ((3, 1.0, 2.0), (7, 0.3, 0.0), (2, 1.0, 0.0))
    )
    anchors = boxes_of(2, 900)
    limits = 0.2, 300, 0.1, 50
    wanted = select_boxes(logits, residuals, directions, anchors, *limits, per_class)
    on_gpu = [tensor.cuda() for tensor in (logits, residuals, directions, anchors)]
    score, before, iou, after = limits
    given = Predictions(
        TYPES[dtype], 2, 900, 3, *map(at, on_gpu), score, iou, before, after, per_class
    )
    found = [like(tensor) for tensor in wanted]
    library("ms_select_boxes", ctypes.byref(given), *map(at, found), on_stream())
    boxes, scores, labels, count = (tensor.cpu() for tensor in found)
    assert torch.equal(count, wanted[3]) and count.min() > 5
    assert torch.equal(labels, wanted[2])
    torch.testing.assert_close(scores, wanted[1], rtol=1e-6, atol=0)
    torch.testing.assert_close(boxes, wanted[0], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("channels", [3, 64])
def test_interpolate(library, dtype, channels):
    generator = torch.Generator().manual_seed(channels)
    features = torch.randn(2, 500, channels, generator=generator).to(dtype)
    rows = torch.randint(-1, 500, (2, 70, 3), generator=generator)
    weights = torch.rand(2, 70, 3, generator=generator)
    wanted = interpolate(features, rows, weights)
    given, places, shares = features.cuda(), rows.cuda(), weights.cuda()
    found = like(wanted)
    library(
        "ms_interpolate", TYPES[dtype], at(given), 2, 500, channels, at(places), at(shares), 70,
        at(found), on_stream(),
    )  # fmt: skip
    assert torch.equal(found.cpu(), wanted)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_max_pool(library, dtype):
    coords = sites()
    generator = torch.Generator().manual_seed(2)
    # many are equal, so the source tells which of them was taken
    features = torch.randint(-4, 5, (len(coords), 16), generator=generator).to(dtype)
    _, _, kernel_map = strided_map(coords, SHAPE, 2, DOWN)
    sources = []
    context = SimpleNamespace(save_for_backward=sources.append)
    wanted = PlainMaxPool.forward(context, features, kernel_map)
    given, neighbours = features.cuda(), kernel_map.forward.neighbours.cuda()
    found, source = like(wanted), like(sources[0])
    table = table_of(neighbours)
    library(
        "ms_max_pool", TYPES[dtype], at(given), 16, ctypes.byref(table), at(found), at(source),
        on_stream(),
    )  # fmt: skip
    assert torch.equal(found.cpu(), wanted)
    assert torch.equal(source.cpu(), sources[0])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_bev_map(library, dtype):
    coords = sites()
    features = torch.randn(len(coords), 24, generator=torch.Generator().manual_seed(3)).to(dtype)
    count = torch.tensor([len(coords) - 40], dtype=torch.int32)
    wanted = bev_map(features, coords, SHAPE, 2, count).permute(0, 2, 3, 1)  # channels last
    given, places, counted, found = features.cuda(), coords.cuda(), count.cuda(), like(wanted)
    library(
        "ms_bev_map", TYPES[dtype], at(given), at(places), at(counted), c_int64(len(coords)), 24, 2,
        three(*SHAPE), at(found), on_stream(),
    )  # fmt: skip
    assert torch.equal(found.cpu(), wanted)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("c_in", "c_out"), [(4, 16), (32, 64)])
def test_weight_gradient(library, dtype, c_in, c_out):
    coords = sites(density=0.3)
    generator = torch.Generator().manual_seed(4)
    _, _, kernel_map = strided_map(coords, SHAPE, 2, DOWN)
    neighbours = kernel_map.forward.neighbours
    features = torch.randn(len(coords), c_in, generator=generator).to(dtype)
    gradient = torch.randn(neighbours.shape[1], c_out, generator=generator).to(dtype)
    weight = torch.zeros(27, c_in, c_out, dtype=torch.float64, requires_grad=True)
    sparse_conv(features.double(), weight, kernel_map).backward(gradient.double())
    given, of, places = features.cuda(), gradient.cuda(), neighbours.cuda()
    table = table_of(places)
    found = [like(weight, torch.float32) for _ in range(2)]
    for out in found:
        library(
            "ms_sparse_conv_weight_gradient", TYPES[dtype], at(given), c_int64(len(coords)), c_in,
            at(of), c_out, ctypes.byref(table), at(out), on_stream(),
        )  # fmt: skip
    assert torch.equal(*found)
    assert error(found[0], weight.grad) <= CONVOLUTION[torch.float32, "highest"]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_convolution_with_all_that_may_follow_it(library, dtype):
    """And the gradient of the features of a submanifold convolution, by flipped and transposed."""
    coords = sites(density=0.3)
    generator = torch.Generator().manual_seed(5)
    kernel_map = submanifold_map(coords, SHAPE, 2)
    features, residual = (torch.randn(len(coords), 32, generator=generator) for _ in range(2))
    weight, bias = (
        torch.randn(27, 32, 32, generator=generator) / 30,
        torch.randn(32, generator=generator),
    )
    features, residual, weight = (x.to(dtype) for x in (features, residual, weight))
    leaf = features.double().requires_grad_()
    plain = sparse_conv(leaf, weight.double(), kernel_map)
    wanted = torch.relu(plain + bias + residual)
    plain.backward(residual.double())
    given, more, of, shift = (x.cuda() for x in (features, residual, weight, bias))
    places, found = kernel_map.forward.neighbours.cuda(), like(features)

    def call(table, rows, transposed, *rest):
        library(
            "ms_sparse_conv", TYPES[dtype], at(rows), 32, at(of), transposed, 32,
            ctypes.byref(table), *rest, at(found), on_stream(),
        )  # fmt: skip
        return found

    limit = CONVOLUTION[dtype, "highest"]
    assert error(call(table_of(places), given, 0, at(shift), at(more), 1), wanted) <= limit
    flipped = table_of(places, flipped=True)
    assert error(call(flipped, more, 1, None, None, 0), leaf.grad) <= limit


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_transposed_convolution_with_groups(library, dtype):
    """As docs/cpp.md makes one of a strided map."""
    coords = sites()
    torch.manual_seed(6)
    layer = TransposedConv(32, 16, 3, stride=2, padding=1, groups=4).to(dtype)
    features = torch.randn(len(coords), 32).to(dtype)
    with torch.no_grad():
        weight = block_diagonal(layer.weight, 4).cuda()
        wanted = layer.double()(SparseTensor(features.double(), coords, SHAPE, 2))
    count, room = len(wanted.coords), len(wanted.coords) + 9
    apart = (coords * torch.tensor([1, 2, 2, 2], dtype=torch.int32)).cuda()
    reached, places, state = (apart.new_empty(shape) for shape in ((room, 4), (27, room), (4,)))
    given = features.cuda()
    window, grid = Window(three(3), three(1), three(1), three(1)), [2 * n - 1 for n in SHAPE]
    library(
        "ms_strided_map", at(apart), None, c_int64(len(coords)), 2, three(*grid),
        ctypes.byref(window), c_int64(room), at(reached), at(places), at(state), on_stream(),
    )  # fmt: skip
    assert state.tolist() == [len(coords), count, 0, 0]
    assert torch.equal(reached[:count].cpu(), wanted.coords)
    table, found = table_of(places, state[1:2], flipped=True), given.new_empty(room, 16)
    library(
        "ms_sparse_conv", TYPES[dtype], at(given), 32, at(weight), 0, 16, ctypes.byref(table), None,
        None, 0, at(found), on_stream(),
    )  # fmt: skip
    assert error(found[:count], wanted.features) <= CONVOLUTION[dtype, "highest"]


@pytest.mark.parametrize(("kind", "call"), [(0, overlap_bev), (1, iou_bev), (2, iou_3d)])
def test_overlap(library, kind, call):
    a, b = boxes_of(6, 90), boxes_of(7, 130)
    wanted = call(a, b)
    given, others, found = a.cuda(), b.cuda(), like(wanted)
    library(
        "ms_overlap", at(given), c_int64(90), at(others), c_int64(130), kind, at(found), on_stream()
    )
    torch.testing.assert_close(found.cpu(), wanted, rtol=0, atol=OVERLAP[torch.float32])
    assert (wanted > 0).sum() > 100


def test_nms_of_labels_in_an_order(library):
    boxes = boxes_of(8, 200)
    generator = torch.Generator().manual_seed(9)
    scores = torch.rand(200, generator=generator)
    labels = torch.randint(1, 4, (200,), generator=generator)
    wanted = nms(boxes, scores, 0.2, 300, None, labels)
    order = scores.argsort(descending=True, stable=True)
    given, by, of = boxes.cuda(), order.cuda(), labels.cuda()
    found, kept = like(wanted.indices), like(wanted.count)
    library(
        "ms_nms", at(given), at(by), at(of), None, c_int64(200), c_float(0.2), 300, at(found),
        at(kept), on_stream(),
    )  # fmt: skip
    assert torch.equal(kept.cpu(), wanted.count)
    assert torch.equal(found.cpu(), wanted.indices)


def test_output_shape(library):
    window, found = Window(three(3), three(2, 1, 2), three(1, 0, 1), three(1)), three(0)
    library("ms_output_shape", three(*SHAPE), ctypes.byref(window), found)
    geometry = ConvGeometry((3, 3, 3), (2, 1, 2), (1, 0, 1), (1, 1, 1))
    assert tuple(found) == geometry.output_shape(SHAPE)
    too_large = Window(three(11), three(1), three(0), three(1))
    with pytest.raises(OSError, match="window: does not fit the grid"):
        library("ms_output_shape", three(*SHAPE), ctypes.byref(too_large), found)


def test_mistakes_are_told(library):
    some, on = torch.zeros(64, 4, device="cuda"), on_stream()
    table = ctypes.byref(Table(27, None, None, 5, 0))
    half, one = c_float(0.5), c_int64(1)
    boxes = at(some), None, None, None
    cloud_of = at(some), 1, 8, 4, at(some)
    no_batch = at(some), 0, 9, at(some)
    map_of = at(some), at(some), None, c_int64(3), 4, 1
    calls = {
        "table.neighbours: is null": ("ms_max_pool", 0, at(some), 4, table, None, None, on),
        "batch: 0 is not from 1": ("ms_three_nearest", *no_batch, 3, at(some), at(some), on),
        "type: 9 is not an ms_type": ("ms_bev_map", 9, *map_of, three(1), at(some), on),
        "shape: 0 is not from 1": ("ms_bev_map", 0, *map_of, three(0), at(some), on),
        "is above 2^63 bytes": ("ms_bev_map", 0, *map_of, three(1 << 29), at(some), on),
        "10 is not from 1 to 9": ("ms_furthest_points", at(some), at(some), 1, 9, 10, at(some), on),
        "kept: is null": ("ms_nms", *boxes, c_int64(9), half, 9, at(some), None, on),
        "n: -1 is not from 0": ("ms_nms", *boxes, c_int64(-1), half, 9, at(some), at(some), on),
        "predictions: is null": ("ms_select_boxes", None, *[at(some)] * 4, on),
        "kind: 3 is not from 0": ("ms_overlap", at(some), one, at(some), one, 3, at(some), on),
        "weights: is null": ("ms_interpolate", 0, *cloud_of, None, 2, at(some), on),
    }  # fmt: skip
    for fault, (name, *arguments) in calls.items():
        with pytest.raises(OSError, match=re.escape(fault)):
            library(name, *arguments)
