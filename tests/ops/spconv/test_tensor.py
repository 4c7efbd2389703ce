"""SparseConvTensor, functions of several of them, and what layers share by indice_key."""

import copy
import pickle
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import millisecond.ops.spconv as spconv
from millisecond.ops.spconv.functional import sparse_add
from tests.helpers.dense_oracle import assert_same, draws, random_sites, scatter

SHAPE = (5, 6, 7)


def tensor(seed=0, channels=4, batch=2, **options):
    sites = random_sites(seed, batch, SHAPE)
    order = torch.randperm(len(sites), generator=torch.Generator().manual_seed(seed))
    features = draws(seed)(len(sites), channels)
    return spconv.SparseConvTensor(features, sites[order], SHAPE, batch, **options)


def grid_of(x):
    return scatter(x.features, x.indices, x.spatial_shape, x.batch_size)


class Numbers(SimpleNamespace):
    """An array of another library: it has a length and gives numbers that int() takes."""

    def __len__(self):
        return len(self.values)

    def __iter__(self):
        return iter(self.values)


@pytest.mark.parametrize(
    "shape",
    [
        *(list(SHAPE), SHAPE, torch.tensor(SHAPE), torch.tensor(SHAPE) * 1.0, torch.Size(SHAPE)),
        Numbers(values=(5.0, 6.0, 7.0)),
    ],
)
def test_shapes_and_batch_sizes_of_any_kind(shape):
    x = tensor()
    y = spconv.SparseConvTensor(x.features, x.indices.long(), shape, torch.tensor(2))
    assert y.spatial_shape == list(SHAPE)
    assert type(y.batch_size) is int
    assert_same(y.dense(), grid_of(x))
    assert_same(y.dense(channels_first=False), grid_of(x).movedim(1, -1))
    assert y.spatial_size == 210
    assert y.sparity == len(x.indices) / 420


def test_from_dense():
    x = tensor()
    x.features[::2, 1:] = 0  # one channel is enough for a site
    grid = grid_of(x).movedim(1, -1)
    y = spconv.SparseConvTensor.from_dense(grid)
    assert y.indices.dtype == torch.int32
    assert len(y.indices) == len(x.indices)
    assert_same(y.dense(False), grid)


def test_features_change_in_place_and_by_copy():
    x = tensor()
    conv = spconv.SubMConv3d(4, 4, 3, indice_key="a").double()
    y = conv(x)
    before = y.features
    y.features = torch.relu(y.features)
    copied, replaced = y.shadow_copy(), y.replace_feature(2 * before)
    assert_same(copied.features, torch.relu(before))
    assert copied.indice_dict is replaced.indice_dict is y.indice_dict
    assert y.find_indice_pair("a").is_subm
    assert y.find_indice_pair("b") is None is y.find_indice_pair(None)
    assert_same((y + replaced).features, y.features + 2 * before)
    assert_same(conv(replaced).features, conv(x.replace_feature(2 * before)).features)
    y += before
    assert_same(y.features, torch.relu(before) + before)
    assert_same(y.minus().features, -y.features)


def test_indices_that_change_are_seen():
    """As VoxelNeXt changes them: in place, and by another tensor with more rows."""
    x = tensor()
    conv = spconv.SubMConv3d(4, 4, 3).double()
    conv(x)
    x.indices[:, 1:] = x.indices[:, [1, 2, 3]].flip(1) % 5
    kept = torch.unique(x.indices, dim=0, return_inverse=True)[1]
    first = torch.stack([(kept == k).nonzero()[0, 0] for k in range(int(kept.max()) + 1)])
    chosen = x.select_by_index(first)
    fresh = spconv.SparseConvTensor(x.features[first], x.indices[first].clone(), SHAPE, 2)
    assert_same(conv(chosen).features, conv(fresh).features)
    chosen.indices[:, 0] = 1 - chosen.indices[:, 0]
    swapped = spconv.SparseConvTensor(chosen.features, chosen.indices.clone(), SHAPE, 2)
    assert_same(conv(chosen).features, conv(swapped).features)


def test_outputs_that_change_in_inference_mode():
    down = spconv.SparseConv3d(4, 4, 3, 2, 1).double()
    conv = spconv.SubMConv3d(4, 4, 3).double()
    for _ in range(2):  # the second input's maps are foreseen
        with torch.inference_mode():
            y = down(conv(tensor()))
            conv(y)
            y.indices[:, 1:] *= 2
            y.spatial_shape = [2 * size for size in y.spatial_shape]
            fresh = spconv.SparseConvTensor(y.features, y.indices.clone(), y.spatial_shape, 2)
            assert_same(conv(y).features, conv(fresh).features)


@pytest.mark.parametrize("dims", [1, 3])
def test_outputs_that_change_are_not_those_of_another_branch(dims):
    shape = SHAPE[:dims]
    indices = random_sites(0, 2, shape, 0.4)
    x = spconv.SparseConvTensor(draws(0)(len(indices), 4), indices, shape, 2)
    first, second = (
        getattr(spconv, f"SparseConv{dims}d")(4, 4, 3, 2, 1, indice_key=key).double()
        for key in "ab"
    )
    wanted = second(x).dense()
    first(x).indices[:, 1:] *= 2
    assert_same(second(x).dense(), wanted)


@pytest.mark.parametrize("of", [tuple, np.array, torch.tensor])
def test_a_shape_that_a_program_writes(of):
    x = tensor()
    x.spatial_shape = of([8, 8, 8])
    y = spconv.SparseConv3d(4, 4, 3, 2, 1, indice_key="a").double()(x)
    assert y.spatial_shape == [4, 4, 4]
    y.spatial_shape = of([4, 4, 4])
    z = spconv.SparseInverseConv3d(4, 4, 3, "a").double()(y)
    assert z.spatial_shape == [8, 8, 8]
    assert z.dense().shape == (2, 4, 8, 8, 8)


@pytest.mark.parametrize("seeds", [(0, 1), (0, 0), (0, 1, 2)])
def test_sparse_add_is_the_sum_of_the_grids(seeds):
    tensors = [tensor(seed) for seed in seeds]
    y = sparse_add(*tensors)
    assert_same(y.dense(), sum(grid_of(x) for x in tensors))
    everywhere = spconv.SparseConvTensor.from_dense(torch.ones(2, *SHAPE, 4).double())
    z = sparse_add(tensors[0], everywhere)
    assert z.indices is everywhere.indices  # one operand has all sites: its rows, its indice_dict
    assert z.indice_dict is everywhere.indice_dict
    assert_same(z.dense(), grid_of(tensors[0]) + 1)


def test_tables():
    x, y = tensor(), tensor(channels=4)
    assert_same(spconv.AddTable()([x, y]).features, x.features + y.features)
    joined = spconv.JoinTable()([x, y])
    assert_same(joined.features, torch.cat((x.features, y.features), 1))
    table = spconv.ConcatTable().add(spconv.Identity()).add(spconv.SubMConv3d(4, 4, 1).double())
    assert table(x)[0] is x
    assert len(table(x)) == 2
    with pytest.raises(ValueError, match="rows; sparse_add adds"):
        spconv.AddTable()([x, tensor(1)])


def test_layers_of_one_key_share_the_map():
    x = tensor()
    a = spconv.SubMConv3d(4, 4, 3, indice_key="a").double()(x)
    b = spconv.SubMConv3d(4, 4, 3, indice_key="a").double()(a)
    assert b.find_indice_pair("a").kernel_map is a.find_indice_pair("a").kernel_map
    assert x.indice_dict == {}  # another branch may use the key for itself
    down = spconv.SparseConv3d(4, 4, 3, 2, 1, indice_key="d").double()
    first, second = down(x), down(x)
    assert_same(first.features, second.features)
    data = first.find_indice_pair("d")
    assert data.out_spatial_shape == first.spatial_shape
    assert data.indices is x.indices
    assert (data.ksize, data.stride, data.padding) == ([3] * 3, [2] * 3, [1] * 3)


def cut_and_inverted(e, x):
    y = e.SparseConv3d(4, 4, 2, indice_key="c")(x)
    y.features, y.indices = y.features[:9], y.indices[:9]
    return e.SparseInverseConv3d(4, 4, 2, "c")(y)


WRONG = {
    "indice_key 'a': kernel_size is [5, 5, 5], the first layer": lambda e, x: e.SubMConv3d(
        4, 4, 5, indice_key="a"
    )(x),
    "indice_key 'a': dilation is [2, 2, 2]": lambda e, x: e.SubMConv3d(
        4, 4, 3, dilation=2, indice_key="a"
    )(x),
    "indice_key 'a': there already, only submanifold": lambda e, x: e.SparseConv3d(
        4, 4, 3, indice_key="a"
    )(x),
    "indice_key 'a': there already, pooling": lambda e, x: e.SparseMaxPool3d(2, indice_key="a")(x),
    "indice_key 'b': no layer of this name": lambda e, x: e.SparseInverseConv3d(4, 4, 3, "b")(x),
    "indice_key 'c': 9 rows of [4, 5, 6], the convolution to invert has": cut_and_inverted,
    "indice_key 'a': a submanifold layer": lambda e, x: e.SparseInverseConv3d(4, 4, 3, "a")(x),
    "features: 4 channels, SubMConv3d takes 5": lambda e, x: e.SubMConv3d(5, 4, 3)(x),
    "weight: expected [C_out, *kernel, 4], got [8, 3, 3, 3, 6]": lambda e, x: e.SubMConv3d(
        4, 8, 3
    )._conv_forward(False, x, torch.zeros(8, 3, 3, 3, 6), None),
    "kernel_size is [2, 2, 2], a submanifold kernel": lambda e, x: e.SubMConv3d(4, 4, 2),
    "spatial_shape: [5, 6, 7], SubMConv2d takes one of 2": lambda e, x: e.SubMConv2d(4, 4, 3)(x),
    "spatial_shape: [5, 6, 7], SubMConv1d takes one of 1": lambda e, x: e.SubMConv1d(4, 4, 1)(x),
    "spatial_shape: [5, 6, 7], SparseConv2d takes": lambda e, x: e.SparseConv2d(4, 4, 3)(x),
    "spatial_shape: [5, 6, 7], SparseMaxPool4d takes": lambda e, x: e.SparseMaxPool4d(2)(x),
    "groups: 3 does not divide 4 input and 6 output channels": lambda e, x: e.SubMConv2d(
        4, 6, 3, groups=3
    ),
    "indices: expected [N, 3]": lambda e, x: e.SparseConvTensor(x.features, x.indices, (5, 6), 2),
    "indices: expected int32 or int64": lambda e, x: e.SparseConvTensor(
        x.features, x.indices.float(), SHAPE, 2
    ),
    "batch_size: expected at least 1": lambda e, x: e.SparseConvTensor(
        x.features, x.indices, SHAPE, 0
    ),
    "indices: row 2 is [0, 0, 0, 0], as row 0": lambda e, x: e.SparseConvTensor(
        x.features[:3], torch.tensor([[0, 0, 0, 0], [0, 1, 1, 1], [0, 0, 0, 0]]), SHAPE, 2
    ).sites.ordered(),
    "indices: row 1 is [0, 5, 0, 0], outside of 2 grids of [5, 6, 7]": lambda e, x: (
        e.SparseConvTensor(
            x.features[:2], torch.tensor([[0, 0, 0, 0], [0, 5, 0, 0]]), SHAPE, 2
        ).sites.ordered()
    ),
    "spconv.SparseConv5d: not in ops.spconv": lambda e, x: e.SparseConv5d,
}


@pytest.mark.parametrize("message", WRONG)
def test_what_is_wrong_or_not_there_is_named_in_one_line(message):
    x = tensor()
    x = spconv.SubMConv3d(4, 4, 3, indice_key="a")(x.replace_feature(x.features.float()))
    with pytest.raises((ValueError, NotImplementedError, AttributeError)) as error:
        WRONG[message](spconv, x)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_copies_and_pickles_of_layers_and_tensors():
    x = tensor()
    net = spconv.SparseSequential(
        spconv.SubMConv3d(4, 16, 3, indice_key="a"),
        torch.nn.BatchNorm1d(16),
        torch.nn.ReLU(),
        spconv.SparseMaxPool3d(2),
    )
    net = net.double().eval()
    with torch.no_grad():
        expected = net(x).features
        for other in (copy.deepcopy(net), pickle.loads(pickle.dumps(net))):
            assert_same(other(x).features, expected)
            assert_same(net(pickle.loads(pickle.dumps(x))).features, expected)
    down = spconv.SparseConv3d(4, 4, 2, 2, bias=False, indice_key="down").double()(x)
    up = spconv.SparseInverseConv3d(4, 4, 2, "down", bias=False).double()
    assert_same(up(copy.copy(down)).features, up(down).features)


@pytest.mark.parametrize(
    "layer",
    [
        spconv.SubMConv3d(4, 6, (3, 1, 3), bias=False, indice_key="a"),
        spconv.SparseConv3d(4, 6, (2, 3, 1), (2, 1, 1), (0, 1, 0), bias=False, indice_key="a"),
    ],
)
def test_pairs_of_rows_are_those_of_the_layer(layer):
    x = tensor()
    y = layer.double()(x)
    data = y.find_indice_pair("a")
    assert layer.kernel_volume == len(data.indice_pair_num)
    weight = layer.weight.flatten(1, -2)
    out = torch.zeros_like(y.features)
    for offset, number in enumerate(data.indice_pair_num.tolist()):
        inputs, outputs = data.indice_pairs[:, offset, :number].long()
        out.index_add_(0, outputs, x.features[inputs] @ weight[:, offset].T)
        assert (data.indice_pairs[:, offset, number:] == -1).all()
        assert (data.pair_fwd[offset, outputs] == inputs).all()
        assert (data.pair_bwd[offset, inputs] == outputs).all()
    assert (data.pair_bwd >= 0).sum() == data.indice_pair_num.sum() == (data.pair_fwd >= 0).sum()
    torch.testing.assert_close(out, y.features)


def test_a_timer_of_spconv_is_taken_and_measures_nothing():
    x = tensor(enable_timer=True)
    with x._timer.namespace("network"), x._timer.record("layer"):
        pass
    assert x.replace_feature(x.features)._timer is x._timer
    assert x._timer.get_all_pair_time() == {}
    assert x._timer.collect_by_name("a", {"a.b": 1.0, "ab": 2.0}) == {"a.b": 1.0}


def test_dir_names_what_a_class_of_the_programs_own_adds():
    class Named(spconv.SparseConvTensor):
        def own(self):
            return self

    x = tensor()
    named = Named(x.features, x.indices, x.spatial_shape, x.batch_size)
    named.note = "kept"
    assert {"own", "note", "replace_feature"} <= {*dir(named)}
    assert "own" not in dir(x)
