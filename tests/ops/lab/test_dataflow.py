"""Dataflows: their values, the lists and location tables they read, all by one code on a CPU."""

import random

import pytest
import torch

from millisecond import ops
from millisecond.ops import KernelMap
from millisecond.ops.lab import Dataflow, location_map, naive, pair_map, sparse_conv
from millisecond.ops.lab.gather_scatter import gather_scatter, groups, weight_gradient
from millisecond.ops.lab.locations import kernel_map as searched
from millisecond.ops.lab.locations import output_sites
from millisecond.ops.lab.pairs import (
    add_products,
    conv_centre,
    fetch_on_demand,
    fetch_products,
    gather_rows,
)
from tests.helpers.dense_oracle import assert_same, assert_same_gradients
from tests.ops.lab.test_naive import problems

PROBLEMS = list(problems())
PAIR_DATAFLOWS = [Dataflow("gather_scatter", g) for g in ("symmetric", "fixed", "adaptive")]
PAIR_DATAFLOWS.append(Dataflow("fetch_on_demand"))


@pytest.mark.parametrize("table", ["array", "hash"])
@pytest.mark.parametrize("problem", PROBLEMS)
def test_search_in_location_tables_gives_the_kernel_map(problem, table):
    features, coords, weight, geometry, out_coords, shape, kernel_map = problem
    if geometry.stride != (1,) * len(shape):
        sites, out_shape = output_sites(coords, shape, 2, geometry)
        assert torch.equal(sites, out_coords) and out_shape == geometry.output_shape(shape)
    found = location_map(coords, shape, 2, geometry, out_coords, table)
    forward, backward = searched(found)
    assert torch.equal(forward.neighbours, kernel_map.forward.neighbours)
    wanted = kernel_map.backward
    neighbours = wanted.neighbours.flip(0) if wanted.flipped else wanted.neighbours
    assert torch.equal(backward.neighbours, neighbours)
    expected = naive.definition(features, coords, weight, geometry, out_coords)
    assert_same(sparse_conv(features, weight, found), expected)


@pytest.mark.parametrize("problem", PROBLEMS)
def test_lists_of_pairs_compute_the_convolution(problem):
    """Gather, multiply and add as the kernels do, in plain torch."""
    features, coords, weight, geometry, out_coords, _, kernel_map = problem
    features, weight = features.float(), weight.float()
    pairs = pair_map(kernel_map).pairs
    expected = naive.definition(features, coords, weight, geometry, out_coords)
    products = fetch_products(features, weight, pairs, None, False)
    begin = pairs.begin
    out = add_products(
        products, pairs, begin[:-1], range(len(weight)), torch.float32, None, None, False
    )
    assert_same(out, expected, 1e-5)
    if pairs.centre is not None:
        others = fetch_products(features, weight, pairs, pairs.centre, False)
        rest = pairs, pairs.centre, None, None, False, False
        assert_same(conv_centre(features, weight, others, *rest), expected, 1e-5)
    room = [10 * v for v in range(len(weight))]  # offset v from slot 10 v on
    few = pairs._replace(sources=pairs.sources[:0], begin=(0,) * len(begin))
    buffer = gather_rows(features, few.sources, few.begin, room, range(len(weight)), 50)
    assert buffer.shape == (50, features.shape[1]) and not buffer.any()


@pytest.mark.parametrize("problem", PROBLEMS)
def test_the_engines_over_lists_compute_the_convolution(problem):
    """Buffers, groups of offsets and products as on a GPU, forth and back, the definitions of the
    operators in place of the kernels."""
    features, coords, weight, geometry, out_coords, _, kernel_map = problem
    features, weight = features.float(), weight.float()
    listed = pair_map(kernel_map)
    back = torch.randn(len(out_coords), weight.shape[1])
    inverse = sparse_conv(back, weight, kernel_map.reversed())
    bias, residual = torch.randn(weight.shape[2]), torch.randn(len(out_coords), weight.shape[2])
    expected = naive.definition(features, coords, weight, geometry, out_coords)
    expected = (expected + bias + residual).relu()
    for dataflow in PAIR_DATAFLOWS:
        if dataflow.kind == "gather_scatter":
            engine, last = gather_scatter, dataflow
        else:
            engine, last = fetch_on_demand, False  # no tf32
        out = engine(features, weight, listed.pairs, bias, residual, True, last)
        assert_same(out, expected, 1e-5)
        out = engine(back, weight, listed.pairs_back, None, None, False, last)
        assert_same(out, inverse, 1e-5)


def test_gradients_of_the_weights_by_gathered_rows():
    for features, _, weight, _, out_coords, _, kernel_map in PROBLEMS:
        gradient = torch.randn(len(out_coords), weight.shape[2])
        features, leaf = features.float(), weight.float().requires_grad_()
        sparse_conv(features, leaf, kernel_map).backward(gradient)
        for dataflow in PAIR_DATAFLOWS[:3]:
            found = weight_gradient(features, gradient, pair_map(kernel_map).pairs, dataflow)
            assert_same(found, leaf.grad, 1e-5)


@pytest.mark.parametrize("dataflow", PAIR_DATAFLOWS, ids=str)
@pytest.mark.parametrize("problem", [PROBLEMS[0], PROBLEMS[4]])
def test_a_cpu_computes_every_dataflow_alike(problem, dataflow):
    features, coords, weight, geometry, out_coords, shape, kernel_map = problem
    leaves = features.clone().requires_grad_(), weight.clone().requires_grad_()
    listed, found = pair_map(kernel_map), location_map(coords, shape, 2, geometry, out_coords)
    for got in (
        sparse_conv(*leaves, listed, dataflow=dataflow),
        sparse_conv(*leaves, kernel_map, dataflow=dataflow),
        sparse_conv(*leaves, found),
    ):
        assert_same_gradients(got, sparse_conv(*leaves, kernel_map), leaves)
    back = torch.randn(len(out_coords), weight.shape[1], dtype=torch.float64)
    inverse = sparse_conv(back, weight, kernel_map.reversed())
    assert_same(sparse_conv(back, weight, listed.reversed(), dataflow=dataflow), inverse)
    assert_same(sparse_conv(back, weight, found.reversed()), inverse)


def test_groups_hold_every_offset_once():
    draw = random.Random(1)
    for _ in range(300):
        volume, submanifold = draw.choice([8, 9, 27]), draw.random() < 0.5
        sizes = [draw.choice([0, draw.randrange(1, 1000)]) for _ in range(volume)]
        centre = None
        if submanifold and volume % 2:
            centre = volume // 2
            sizes = [*sizes[:centre], 1000, *sizes[:centre][::-1]]
        grouping = draw.choice(["symmetric", "fixed", "adaptive"])
        dataflow = Dataflow("gather_scatter", grouping, draw.random() / 2, draw.randrange(1000))
        found = groups(sizes, centre, dataflow)
        assert sorted(sum(found, ())) == [v for v in range(volume) if sizes[v]]
        if centre is not None:
            assert found[-1] == (centre,)
            found = found[:-1]
        if grouping == "fixed":
            assert len(found) <= 3
        for group in found:
            most = max(sizes[v] for v in group)
            padding = 1 - sum(sizes[v] for v in group) / (len(group) * most)
            if grouping == "symmetric":
                assert padding == 0
            if grouping == "adaptive":
                assert padding <= dataflow.epsilon + 1e-12
                assert len(group) == 1 or most <= dataflow.threshold


def test_a_dataflow_is_read_as_it_is_written():
    several = [Dataflow(), Dataflow("direct"), Dataflow("gather_scatter", "adaptive", 0.15, 9)]
    for dataflow in several + PAIR_DATAFLOWS:
        assert Dataflow.parse(str(dataflow)) == dataflow
    for text in ("", "implicit", "gather_scatter adaptive 0.3", "gather_scatter odd", "direct  x"):
        with pytest.raises(ValueError, match="dataflow"):
            Dataflow.parse(text)
    with pytest.raises(ValueError, match="epsilon: 1 is not"):
        Dataflow(epsilon=1)


def test_mistakes():
    features, coords, weight, geometry, out_coords, shape, kernel_map = PROBLEMS[0]
    with pytest.raises(ValueError, match=r"direct takes the map of lab\.location_map"):
        sparse_conv(features, weight, kernel_map, dataflow=Dataflow("direct"))
    found = location_map(coords, shape, 2, geometry, out_coords)
    with pytest.raises(ValueError, match="LocationMap is for direct"):
        sparse_conv(features, weight, found, dataflow=Dataflow("fetch_on_demand"))
    with pytest.raises(ValueError, match=f"features: expected {len(coords)} rows"):
        sparse_conv(features[1:], weight, found)
    with pytest.raises(ValueError, match="'tree' is neither array nor hash"):
        location_map(coords, shape, 2, geometry, out_coords, "tree")
    with pytest.raises(ValueError, match="not sorted"):
        location_map(coords.flip(0), shape, 2, geometry, out_coords)
    big = (1 << 12, 1 << 12, 1 << 12)
    with pytest.raises(ValueError, match="more than 4 GiB; say hash"):
        location_map(coords, big, 2, ops.ConvGeometry.of(3), out_coords, "array")
    wide = KernelMap(kernel_map.forward._replace(neighbours=torch.zeros(343, 1).int()), None)
    with pytest.raises(ValueError, match="343 offsets"):
        pair_map(wide)
