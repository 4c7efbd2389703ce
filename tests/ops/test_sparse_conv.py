"""Sparse convolution and pooling against dense ones read at the active sites."""

import sys

import pytest
import torch
import torch.nn.functional as F

from millisecond.ops import (
    ConvGeometry,
    KernelMap,
    SparseTensor,
    dense,
    sparse_conv,
    sparse_max_pool,
    strided_map,
    submanifold_map,
)
from millisecond.ops.sparse_conv import pack_weight
from tests.helpers.dense_oracle import (
    STRIDED,
    assert_same,
    assert_same_gradients,
    dense_weight,
    draws,
    gradients,
    random_sites,
    read,
    scatter,
)

CONV = {2: F.conv2d, 3: F.conv3d}
CONV_TRANSPOSE = {2: F.conv_transpose2d, 3: F.conv_transpose3d}
SUBMANIFOLD = [  # grid, kernel, dilation
    ((5, 6, 7), (3, 3, 3), (1, 1, 1)),
    ((5, 6, 7), (1, 3, 5), (1, 2, 1)),
    ((5, 9, 8), (3, 3, 3), (1, 2, 3)),
    ((8, 9), (3, 3), (1, 1)),
    ((8, 9), (5, 3), (1, 2)),
]


@pytest.mark.parametrize("shape, kernel, dilation", SUBMANIFOLD)
def test_submanifold_is_the_dense_convolution_at_its_sites(shape, kernel, dilation):
    coords, draw = random_sites(0, 2, shape), draws(1)
    features = draw(len(coords), 3).requires_grad_()
    weight = draw(torch.tensor(kernel).prod(), 3, 4).requires_grad_()
    kernel_map = submanifold_map(coords, shape, 2, kernel, dilation)
    got = sparse_conv(features, weight, kernel_map)

    padding = tuple(k // 2 * d for k, d in zip(kernel, dilation, strict=True))
    grid = scatter(features, coords, shape, 2)
    filtered = CONV[len(shape)](
        grid, dense_weight(weight, kernel), padding=padding, dilation=dilation
    )
    expected = read(filtered, coords)
    assert_same_gradients(got, expected, (features, weight))


@pytest.mark.parametrize("shape, kernel, stride, padding, dilation", STRIDED)
def test_strided_is_the_dense_convolution_everywhere(shape, kernel, stride, padding, dilation):
    coords, draw = random_sites(2, 2, shape, 0.15), draws(3)
    features = draw(len(coords), 3).requires_grad_()
    weight = draw(torch.tensor(kernel).prod(), 3, 4).requires_grad_()
    out_coords, out_shape, kernel_map = strided_map(
        coords, shape, 2, ConvGeometry(kernel, stride, padding, dilation)
    )
    rows = sparse_conv(features, weight, kernel_map)
    got = dense(rows, out_coords, out_shape, 2)
    expected = CONV[len(shape)](
        scatter(features, coords, shape, 2),
        dense_weight(weight, kernel),
        None,
        stride,
        padding,
        dilation,
    )
    assert_same_gradients(got, expected, (features, weight))


@pytest.mark.parametrize("shape, kernel, stride, padding, dilation", STRIDED)
def test_inverse_is_the_transposed_convolution_at_its_sites(
    shape, kernel, stride, padding, dilation
):
    coords, draw = random_sites(4, 2, shape, 0.15), draws(5)
    out_coords, out_shape, kernel_map = strided_map(
        coords, shape, 2, ConvGeometry(kernel, stride, padding, dilation)
    )
    features = draw(len(out_coords), 3).requires_grad_()
    weight = draw(torch.tensor(kernel).prod(), 3, 4).requires_grad_()
    got = sparse_conv(features, weight, kernel_map.reversed())

    grid = CONV_TRANSPOSE[len(shape)](
        scatter(features, out_coords, out_shape, 2),
        dense_weight(weight, kernel).transpose(0, 1),
        None,
        stride,
        0,
        0,
        1,
        dilation,
    )
    for axis, (n, p) in enumerate(zip(shape, padding, strict=True)):
        missing = max(n + p - grid.shape[2 + axis], 0)
        grid = F.pad(grid.movedim(2 + axis, -1), (0, missing)).narrow(-1, p, n)
        grid = grid.movedim(-1, 2 + axis)
    expected = read(grid, coords)
    assert_same_gradients(got, expected, (features, weight))


def test_reversed_submanifold_has_flipped_weights():
    shape, coords, draw = (4, 5, 6), random_sites(6, 1, (4, 5, 6)), draws(7)
    features, weight = draw(len(coords), 3), draw(27, 3, 2).requires_grad_()
    kernel_map = submanifold_map(coords, shape, 1)
    got = sparse_conv(features, weight, kernel_map.reversed())
    expected = sparse_conv(features, weight.flip(0), kernel_map)
    assert_same(got, expected)
    assert_same(gradients(got, [weight])[0], gradients(expected, [weight])[0])


def test_worked_example_of_the_tutorials():
    """Sites (1, 2) and (2, 3), 3 channels 0.1 and 0.2; offset v weighs v + 1 and -10 (v + 1)."""
    coords = torch.tensor([[0, 1, 2], [0, 2, 3]], dtype=torch.int32)
    features = torch.tensor([[0.1] * 3, [0.2] * 3], dtype=torch.float64)
    weight = torch.arange(1.0, 10, dtype=torch.float64)[:, None, None].repeat(1, 3, 2)
    weight[:, :, 1] *= -10
    scale = torch.tensor([1.0, -10], dtype=torch.float64)

    rows = sparse_conv(features, weight, submanifold_map(coords, (5, 5), 1))
    assert_same(rows, torch.tensor([[6.9], [3.3]], dtype=torch.float64) * scale)

    out_coords, out_shape, kernel_map = strided_map(coords, (5, 5), 1, ConvGeometry.of(3, dims=2))
    image = SparseTensor(sparse_conv(features, weight, kernel_map), out_coords, out_shape, 1)
    expected = [[1.8, 6.9, 6.0], [0.9, 4.2, 3.3], [0.0, 1.8, 1.2]]
    assert_same(image.dense(), torch.tensor(expected, dtype=torch.float64) * scale.view(1, 2, 1, 1))


@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("strided", [False, True])
def test_gradcheck(strided, relu):
    shape, coords, draw = (3, 4, 5), random_sites(8, 1, (3, 4, 5), 0.2), draws(9)
    kernel_map = submanifold_map(coords, shape, 1)
    if strided:
        kernel_map = strided_map(coords, shape, 1, ConvGeometry.of(3, 2, 1))[2]
    rows = kernel_map.forward.neighbours.shape[1]
    leaves = [draw(len(coords), 2), draw(27, 2, 3), draw(3), draw(rows, 3)]
    leaves = [leaf.requires_grad_() for leaf in leaves]
    torch.autograd.gradcheck(lambda x, w, b, r: sparse_conv(x, w, kernel_map, b, r, relu), leaves)


def test_epilogue_is_bias_residual_relu():
    coords, draw = random_sites(10, 1, (4, 4, 4)), draws(11)
    kernel_map = submanifold_map(coords, (4, 4, 4), 1)
    features, weight = draw(len(coords), 3), draw(27, 3, 4)
    bias, residual = draw(4), draw(len(coords), 4)
    plain = sparse_conv(features, weight, kernel_map)
    assert_same(sparse_conv(features, weight, kernel_map, bias), plain + bias)
    assert_same(
        sparse_conv(features, weight, kernel_map, bias, residual, relu=True),
        (plain + bias + residual).clamp(min=0),
    )


def padded(table, rows: int, garbage: int):
    """The table with rows beyond its count, which hold garbage."""
    neighbours = torch.full((len(table.neighbours), rows), garbage, dtype=torch.int32)
    length = table.neighbours.shape[1]
    neighbours[:, :length] = table.neighbours
    count = torch.tensor([length], dtype=torch.int32)
    return table._replace(neighbours=neighbours, count=count)


@pytest.mark.parametrize("garbage", [-1, 0])
def test_rows_from_the_count_on_hold_nothing(garbage):
    shape, coords, draw = (5, 6, 7), random_sites(18, 1, (5, 6, 7), 0.2), draws(19)
    out_coords, _, exact = strided_map(coords, shape, 1, ConvGeometry.of(3, 2, 1))
    n_in, n_out = len(coords), len(out_coords)
    kernel_map = KernelMap(
        padded(exact.forward, n_out + 5, garbage), padded(exact.backward, n_in + 3, garbage)
    )
    features, weight, bias = draw(n_in + 3, 4), draw(27, 4, 5), draw(5)
    leaves = [leaf.requires_grad_() for leaf in (features, weight, bias)]
    whole, part = sparse_conv(*leaves[:2], kernel_map, bias, None, True), leaves[0][:n_in]
    expected = sparse_conv(part, weight, exact, bias, None, True)
    assert_same(whole[:n_out], expected)
    assert not whole[n_out:].any()
    grad = draw(n_out + 5, 5)
    for a, b in zip(
        torch.autograd.grad(whole, leaves, grad),
        torch.autograd.grad(expected, leaves, grad[:n_out]),
        strict=True,
    ):
        assert_same(a, b)
    pooled = sparse_max_pool(features, kernel_map)
    assert torch.equal(pooled[:n_out], sparse_max_pool(part, exact)) and not pooled[n_out:].any()


def test_same_bits_on_every_run():
    shape, coords, draw = (8, 20, 20), random_sites(20, 2, (8, 20, 20), 0.4), draws(21)
    features = draw(len(coords), 16).float().requires_grad_()
    weight = draw(27, 16, 32).float().requires_grad_()
    results = []
    for _ in range(3):
        kernel_map = submanifold_map(coords, shape, 2)
        out = sparse_conv(features, weight, kernel_map)
        results.append((out, *gradients(out, (features, weight))))
    for again in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], again, strict=True))


@pytest.mark.parametrize("numbers", [1, 500, 10**9])
def test_blocks_of_any_size_give_the_same(numbers, monkeypatch):
    shape, coords, draw = (5, 6, 7), random_sites(22, 1, (5, 6, 7)), draws(23)
    features, weight = draw(len(coords), 3).requires_grad_(), draw(27, 3, 4).requires_grad_()
    expected = sparse_conv(features, weight, submanifold_map(coords, shape, 1))
    module = sys.modules[sparse_conv.__module__]  # a function has its name
    monkeypatch.setattr(module, "NUMBERS_A_BLOCK", numbers)
    got = sparse_conv(features, weight, submanifold_map(coords, shape, 1))
    assert_same_gradients(got, expected, (features, weight))


def test_tensors_need_not_be_contiguous():
    coords, draw = random_sites(28, 1, (4, 5, 6)), draws(29)
    rows = len(coords)
    features, weight = draw(rows, 3), draw(27, 3, 4)
    table = submanifold_map(coords, (4, 5, 6), 1).forward
    wide = torch.full((27, 2 * rows), -1, dtype=torch.int32)
    wide[:, ::2] = table.neighbours
    strewn = table._replace(neighbours=wide[:, ::2])
    got = sparse_conv(features.T.contiguous().T, weight.mT.contiguous().mT, KernelMap(strewn, None))
    assert torch.equal(got, sparse_conv(features, weight, KernelMap(table, None)))


def test_no_rows():
    coords = torch.zeros(0, 4, dtype=torch.int32)
    features = torch.zeros(0, 3, requires_grad=True)
    weight = torch.ones(27, 3, 4, requires_grad=True)
    for kernel_map in (
        submanifold_map(coords, (4, 4, 4), 1),
        strided_map(coords, (4, 4, 4), 1, ConvGeometry.of(3, 2, 1))[2],
    ):
        out = sparse_conv(features, weight, kernel_map, torch.ones(4), relu=True)
        assert out.shape == (0, 4)
        out.sum().backward()
        assert features.grad.shape == (0, 3) and not weight.grad.any()
        assert sparse_max_pool(features, kernel_map).shape == (0, 3)
    assert dense(features, coords, (4, 4, 4), 2).shape == (2, 3, 4, 4, 4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])  # kernels, and plain torch
def test_wrong_input_is_named(dtype):
    coords = random_sites(26, 1, (4, 4, 4))
    rows = len(coords)
    kernel_map = submanifold_map(coords, (4, 4, 4), 1)
    x, w = torch.zeros(rows, 3, dtype=dtype), torch.zeros(27, 3, 4, dtype=dtype)
    inference = kernel_map._replace(backward=None)
    table = kernel_map.forward
    elsewhere = KernelMap(table._replace(neighbours=table.neighbours.to("meta")), None)
    for message, call in {
        "features: expected a floating dtype, got torch.int64": lambda: (x.long(), w, kernel_map),
        r"features: expected \[N, C\], got": lambda: (x[0], w, kernel_map),
        f"features: {rows - 1} rows, the kernel map has {rows}": lambda: (x[1:], w, kernel_map),
        f"features: {rows - 1} rows, the kernel map reads": lambda: (x[1:], w, inference),
        r"weight: expected \[27, 3, C_out\], got \[9, 3, 4\]": lambda: (x, w[:9], kernel_map),
        f"weight: torch.float16, features are {dtype}": lambda: (x, w.half(), kernel_map),
        r"bias: expected \[4\], got \[3\]": lambda: (x, w, kernel_map, torch.zeros(3)),
        r"residual: expected .* got": lambda: (x, w, kernel_map, None, torch.zeros(2, 4)),
        "backward is None": lambda: (x.clone().requires_grad_(), w, inference),
        "kernel_map: on meta, features on cpu": lambda: (x, w, elsewhere),
        "weight: on meta, features on cpu": lambda: (x, w.to("meta"), kernel_map),
    }.items():
        with pytest.raises(ValueError, match=message):
            sparse_conv(*call())
    with pytest.raises(ValueError, match="weight: on cpu, features on a GPU; move the layer there"):
        pack_weight(w)
    with pytest.raises(ValueError, match=r"row 1 is \[0, 0, 4\], outside of 1 grids of \(2, 4\)"):
        dense(torch.zeros(2, 1), torch.tensor([[0, 0, 3], [0, 0, 4]]).int(), (2, 4), 1)
    with pytest.raises(ValueError, match=r"features: expected \[2, C\]"):
        SparseTensor(torch.zeros(3, 1), torch.zeros(2, 3).int(), (2, 4), 1)
