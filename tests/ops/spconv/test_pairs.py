"""Pairs of rows as functions hand them out, and layers of a program's own that use them."""

from itertools import product

import numpy as np
import pytest
import torch

import millisecond.ops.spconv as spconv
from millisecond.ops.spconv.core import ImplicitGemmIndiceData, IndiceData
from millisecond.ops.spconv.functional import _indice_to_scalar
from millisecond.ops.spconv.ops import get_indice_pairs, get_indice_pairs_implicit_gemm
from tests.helpers.dense_oracle import assert_same, draws, random_sites

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
SHAPE = (5, 6, 4)
NATIVE = spconv.ConvAlgo.Native
WINDOWS = {  # kernel, stride, padding, dilation, output padding; submanifold, transposed
    "submanifold": ([3, 1, 3], [1] * 3, [0] * 3, [1, 1, 2], [0] * 3, True, False),
    "strided": ([3, 2, 3], [2, 1, 2], [1, 0, 1], [1] * 3, [0] * 3, False, False),
    "one": (1, 1, 0, 1, 0, False, False),
    "transposed": ([2, 3, 2], [2, 1, 2], [0, 1, 0], [1] * 3, [1, 0, 0], False, True),
}


def sites(seed=0):
    indices = random_sites(seed, 2, SHAPE)
    return indices[torch.randperm(len(indices), generator=torch.Generator().manual_seed(seed))]


def pairs_by_hand(indices, window):
    """(offset, input site, output site) of all pairs, by trying every output."""
    kernel, stride, padding, dilation, more, subm, transposed = (
        [n] * 3 if type(n) is int else n for n in window
    )
    inputs = {tuple(site) for site in indices.tolist()}
    axes = range(3)
    if transposed:
        shape = [(SHAPE[a] - 1) * stride[a] - 2 * padding[a] + kernel[a] + more[a] for a in axes]
    else:
        reach = [dilation[a] * (kernel[a] - 1) + 1 for a in axes]
        shape = [(SHAPE[a] + 2 * padding[a] - reach[a]) // stride[a] + 1 for a in axes]
    found = set()
    for number, offset in enumerate(product(*map(range, kernel))):
        for site in inputs:
            for out in inputs if subm else product(range(2), *map(range, shape)):
                if subm:  # the window is centred
                    read = [out[1 + a] + (offset[a] - kernel[a] // 2) * dilation[a] for a in axes]
                    hit = read == list(site[1:])
                elif transposed:
                    read = [site[1 + a] * stride[a] - padding[a] + offset[a] for a in axes]
                    hit = read == list(out[1:])
                else:
                    read = [out[1 + a] * stride[a] - padding[a] + offset[a] for a in axes]
                    hit = read == list(site[1:])
                if hit and out[0] == site[0]:
                    found.add((number, site, tuple(out)))
    return found


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", WINDOWS)
def test_pairs_are_those_by_hand(name, device):
    indices, window = sites().to(device), WINDOWS[name]
    outputs, pairs, number = get_indice_pairs(indices, 2, list(SHAPE), NATIVE, *window)
    expected = pairs_by_hand(indices, window)
    assert {out for _, _, out in expected} == {tuple(site) for site in outputs.tolist()}
    found = [
        (offset, tuple(indices[i].tolist()), tuple(outputs[o].tolist()))
        for offset in range(len(number))
        for i, o in pairs[:, offset, : number[offset]].T.tolist()
    ]
    assert len(found) == len(expected)
    assert set(found) == expected
    same, count, forward, backward, *masks = get_indice_pairs_implicit_gemm(
        indices, 2, list(SHAPE), spconv.ConvAlgo.MaskImplicitGemm, *window
    )
    assert torch.equal(same, outputs)
    assert torch.equal(count, number)
    assert masks == [[]] * 5
    rows = {tuple(site): row for row, site in enumerate(outputs.tolist())}
    for offset, site, out in found:
        row = indices.tolist().index(list(site))
        assert forward[offset, rows[out]] == row
        assert backward[offset, row] == rows[out]
    assert (forward >= 0).sum() == (backward >= 0).sum() == len(found)


def test_numbers_of_any_kind():
    wanted = get_indice_pairs(sites(), 2, list(SHAPE), NATIVE, *WINDOWS["transposed"])
    window = [np.array(n) if isinstance(n, list) else n for n in WINDOWS["transposed"]]
    for shape in (np.array(SHAPE), torch.tensor(SHAPE)):
        found = get_indice_pairs(sites(), 2, shape, NATIVE, *window)
        for a, b in zip(found, wanted, strict=True):
            assert torch.equal(a, b)


MISTAKES = {  # what is not as in a right call: the line
    "indices: expected .N, 4. .* got .3.": {"indices": torch.zeros(3, dtype=torch.int32)},
    "indices: expected int32 or int64": {"indices": sites().float()},
    "indices: row . is .*, outside of 2 grids": {"spatial_shape": [2, 2, 2]},
    "indices: expected .N, 3. for a spatial_shape of .5, 6.": {"spatial_shape": [5, 6]},
    "batch_size: expected at least 1, got 0": {"batch_size": 0},
    "kernel_size: expected 3 whole numbers from 1 up, got .3, 3.": {"ksize": [3, 3]},
    "kernel_size: a submanifold kernel has odd sizes": {"ksize": 2, "subm": True},
    "kernel_size: .9, 9, 9. does not fit": {"ksize": 9},
    "stride: expected 3 whole numbers from 1 up, got 0": {"stride": 0},
    "padding: expected 3 whole numbers from 0 up, got -1": {"padding": -1},
    "out_padding: expected 3 .* got .1.": {"out_padding": [1], "transpose": True},
}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("line", MISTAKES)
def test_mistakes_get_one_line(line, device):
    numbers = {"ksize": 3, "stride": 1, "padding": 0, "dilation": 1, "out_padding": 0}
    call = {"indices": sites(), "batch_size": 2, "spatial_shape": SHAPE, "algo": NATIVE} | numbers
    call |= MISTAKES[line]
    call["indices"] = call["indices"].to(device)
    for function in (get_indice_pairs, get_indice_pairs_implicit_gemm):
        with pytest.raises(ValueError, match=f"^{line}[^\n]*$"):
            function(**call)


def test_grids_of_windows_that_are_wrong():
    ones = [1, 1, 1]
    with pytest.raises(ValueError, match="stride: expected 3 whole numbers"):
        spconv.ops.get_conv_output_size(SHAPE, ones, [1, 1], ones, ones)
    with pytest.raises(ValueError, match="output_padding: expected 3 whole numbers"):
        spconv.ops.get_deconv_output_size(SHAPE, ones, ones, [0] * 3, ones, [0, 0])


class Summed(spconv.SparseModule):
    """A program's own layer: the sum of the inputs of each window."""

    def forward(self, x):
        window = [3] * 3, [2] * 3, [1] * 3, [1] * 3, [0] * 3
        found = get_indice_pairs(x.indices, x.batch_size, x.spatial_shape, NATIVE, *window)
        outputs, pairs, number = found
        shape = spconv.ops.get_conv_output_size(x.spatial_shape, *window[:4])
        summed = x.features.new_zeros(len(outputs), x.features.shape[1])
        for offset, count in enumerate(number.tolist()):
            inputs, rows = pairs[:, offset, :count].long()
            summed.index_add_(0, rows, x.features[inputs])
        y = x.shadow_copy().replace_feature(summed)
        geometry = {"ksize": [3] * 3, "stride": [2] * 3, "padding": [1] * 3, "dilation": [1] * 3}
        shapes = x.spatial_shape, shape
        data = IndiceData(
            outputs, x.indices, pairs, number, *shapes, is_subm=False, algo=NATIVE, **geometry
        )
        y.indices, y.spatial_shape = outputs, shape
        y.indice_dict = x.indice_dict | {"own": data}
        return y


def test_a_layer_of_a_programs_own():
    x = spconv.SparseConvTensor(draws(0)(len(sites()), 4), sites(), SHAPE, 2)
    y = Summed()(x)
    ones = spconv.SparseConv3d(4, 4, 3, 2, 1, bias=False).double()
    with torch.no_grad():
        ones.weight.copy_(torch.eye(4)[:, None, None, None].expand_as(ones.weight))
    assert_same(y.dense(), ones(x).dense())
    assert y.find_indice_pair("own").ksize == [3] * 3
    spconv.SubMConv3d(4, 4, 3, indice_key="a").double()(y)  # the layers here go on from it
    with pytest.raises(ValueError, match="indice_key 'own': IndiceData that a layer of the progr"):
        spconv.SparseInverseConv3d(4, 4, 3, "own").double()(y)


def test_what_layers_leave_is_of_both_kinds():
    x = spconv.SparseConvTensor(torch.ones(len(sites()), 4), sites(), SHAPE, 2)
    data = spconv.SubMConv3d(4, 4, 3, indice_key="a")(x).find_indice_pair("a")
    assert isinstance(data, IndiceData)
    assert isinstance(data, ImplicitGemmIndiceData)
    assert data.algo == spconv.ConvAlgo.MaskImplicitGemm
    assert spconv.SubMConv3d(4, 4, 5).algo == NATIVE
    assert spconv.SubMConv3d(4, 4, 3, algo=NATIVE).algo == NATIVE


def test_indices_as_numbers():
    indices = sites()
    expected = np.ravel_multi_index(indices.numpy().T, (2, *SHAPE))
    for rows in (indices, indices.long()):  # programs make a HashTable of this type
        scalars = _indice_to_scalar(rows, [2, *SHAPE])
        assert scalars.dtype == rows.dtype
        assert scalars.tolist() == expected.tolist()
