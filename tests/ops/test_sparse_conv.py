"""Sparse convolution and pooling against dense ones read at the active sites."""

import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F

from ops import (
    ConvGeometry,
    KernelMap,
    SparseTensor,
    bev_map,
    dense,
    sparse_conv,
    sparse_max_pool,
    strided_map,
    submanifold_map,
)

CONV = {2: F.conv2d, 3: F.conv3d}
CONV_TRANSPOSE = {2: F.conv_transpose2d, 3: F.conv_transpose3d}
MAX_POOL = {2: F.max_pool2d, 3: F.max_pool3d}
SUBMANIFOLD = [  # grid, kernel, dilation
    ((5, 6, 7), (3, 3, 3), (1, 1, 1)),
    ((5, 6, 7), (1, 3, 5), (1, 2, 1)),
    ((5, 9, 8), (3, 3, 3), (1, 2, 3)),
    ((8, 9), (3, 3), (1, 1)),
    ((8, 9), (5, 3), (1, 2)),
]
STRIDED = [  # grid, kernel, stride, padding, dilation
    ((5, 6, 7), (3, 3, 3), (2, 2, 2), (1, 1, 1), (1, 1, 1)),
    ((5, 6, 7), (3, 1, 1), (2, 1, 1), (0, 0, 0), (1, 1, 1)),
    ((5, 6, 7), (1, 2, 4), (3, 1, 2), (0, 1, 2), (1, 1, 1)),
    ((9, 8, 7), (2, 3, 3), (1, 2, 3), (1, 0, 1), (3, 2, 1)),
    ((8, 9), (3, 3), (2, 2), (1, 1), (1, 1)),
    ((8, 9), (4, 2), (2, 3), (2, 0), (2, 1)),
]


def random_sites(seed: int, batch_size: int, shape, density=0.3) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (torch.rand(batch_size, *shape, generator=generator) < density).nonzero().int()


def draws(seed: int, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)

    return draw


def scatter(features, coords, shape, batch_size):
    """[B, C, *shape], by plain indexing."""
    grid = features.new_zeros(batch_size, *shape, features.shape[1])
    return grid.index_put(tuple(coords.long().T), features).movedim(-1, 1)


def read(grid, coords):
    return grid.movedim(1, -1)[tuple(coords.long().T)]


def dense_weight(weight, kernel):
    """[V, C_in, C_out] -> [C_out, C_in, *kernel]."""
    return weight.view(*kernel, *weight.shape[1:]).movedim((-1, -2), (0, 1))


def assert_same(got, expected, tolerance=1e-11):
    torch.testing.assert_close(got, expected, rtol=tolerance, atol=tolerance)


def gradients(result, leaves, seed=9):
    return torch.autograd.grad(result, leaves, draws(seed)(*result.shape).to(result.dtype))


def assert_same_gradients(got, expected, leaves):
    """Both are functions of the leaves: equal values, equal gradients."""
    assert_same(got, expected)
    for a, b in zip(gradients(got, leaves), gradients(expected, leaves), strict=True):
        assert_same(a, b)


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


@pytest.mark.parametrize("dtype, unit", [(torch.float16, 2**-11), (torch.bfloat16, 2**-8)])
def test_half_types_round_once(dtype, unit):
    """Sums in float32 over 27 * 64 products of half numbers, which are exact in float64."""
    shape, coords, draw = (6, 7, 8), random_sites(12, 1, (6, 7, 8), 0.8), draws(13, dtype)
    kernel_map = submanifold_map(coords, shape, 1)
    features = draw(len(coords), 64).requires_grad_()
    weight = (draw(27, 64, 16) / 32).requires_grad_()
    bias, residual = draw(16).requires_grad_(), draw(len(coords), 16).requires_grad_()
    leaves = (features, weight, bias, residual)
    wide = [leaf.detach().double().requires_grad_() for leaf in leaves]
    got = sparse_conv(*leaves[:2], kernel_map, *leaves[2:])
    exact = sparse_conv(*wide[:2], kernel_map, *wide[2:])
    assert got.dtype == dtype
    torch.testing.assert_close(got.double(), exact, rtol=1.01 * unit, atol=1e-5)
    grad = draw(*got.shape)
    expected = torch.autograd.grad(exact, wide, grad.double())
    for leaf, a, b in zip(leaves, torch.autograd.grad(got, leaves, grad), expected, strict=True):
        assert a.dtype == leaf.dtype
        torch.testing.assert_close(a.double(), b, rtol=1.01 * unit, atol=2e-4)


def test_float32_is_near_float64():
    shape, coords, draw = (6, 7, 8), random_sites(14, 2, (6, 7, 8), 0.5), draws(15)
    kernel_map = submanifold_map(coords, shape, 2)
    features, weight = draw(len(coords), 32), draw(27, 32, 16)
    got = sparse_conv(features.float(), weight.float(), kernel_map)
    assert got.dtype == torch.float32
    torch.testing.assert_close(
        got.double(), sparse_conv(features, weight, kernel_map), rtol=0, atol=2e-4
    )


def test_autocast_computes_in_its_dtype():
    coords, draw = random_sites(16, 1, (4, 5, 6)), draws(17, torch.float32)
    kernel_map = submanifold_map(coords, (4, 5, 6), 1)
    features = draw(len(coords), 8).requires_grad_()
    weight = draw(27, 8, 8).requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        got = sparse_conv(features, weight, kernel_map)
        grads = gradients(got, (features, weight))
    assert got.dtype == torch.bfloat16
    half = [leaf.detach().bfloat16().requires_grad_() for leaf in (features, weight)]
    expected = sparse_conv(*half, kernel_map)
    assert torch.equal(got, expected)
    for a, b in zip(grads, gradients(expected, half), strict=True):
        assert a.dtype == torch.float32 and torch.equal(a, b.float())


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
    monkeypatch.setattr("ops.reference.sparse_conv.NUMBERS_A_BLOCK", numbers)
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


@pytest.mark.parametrize("shape, kernel, stride, padding, dilation", STRIDED)
def test_max_pool_is_the_dense_one_on_positive_features(shape, kernel, stride, padding, dilation):
    padding = tuple(min(p, k // 2) for p, k in zip(padding, kernel, strict=True))
    coords, draw = random_sites(24, 2, shape), draws(25)
    features = (draw(len(coords), 3).abs() + 0.1).requires_grad_()
    out_coords, _, kernel_map = strided_map(
        coords, shape, 2, ConvGeometry(kernel, stride, padding, dilation)
    )
    got = sparse_max_pool(features, kernel_map)
    grid = MAX_POOL[len(shape)](
        scatter(features, coords, shape, 2), kernel, stride, padding, dilation
    )
    expected = read(grid, out_coords)
    assert torch.equal(got, expected)
    assert_same(gradients(got, [features])[0], gradients(expected, [features])[0])
    torch.autograd.gradcheck(lambda x: sparse_max_pool(x, kernel_map), [features])


def test_max_pool_sees_only_inputs_that_exist():
    coords = torch.tensor([[0, 0, 1], [0, 0, 2]], dtype=torch.int32)
    features = torch.tensor([[-3.0, 1.0], [-5.0, 1.0]], requires_grad=True)
    out = sparse_max_pool(features, submanifold_map(coords, (1, 4), 1))
    assert out.tolist() == [[-3, 1], [-3, 1]]
    out.sum().backward()
    assert features.grad.tolist() == [[2, 2], [0, 0]]  # of equal inputs the first


def test_dense_leaves_out_what_is_beyond_the_count():
    coords = torch.tensor([[0, 1, 1], [1, 0, 2], [-1, -1, -1]], dtype=torch.int32)
    features = torch.ones(3, 2, requires_grad=True)
    count = torch.tensor([2], dtype=torch.int32)
    grid = dense(features, coords, (2, 3), 2, count)
    assert grid.sum() == 4 and grid[0, :, 1, 1].eq(1).all() and grid[1, :, 0, 2].eq(1).all()
    grid.sum().backward()
    assert features.grad.tolist() == [[1, 1], [1, 1], [0, 0]]


def test_bev_map_stacks_the_layers():
    shape, coords, draw = (3, 5, 6), random_sites(30, 2, (3, 5, 6)), draws(31)
    features = draw(len(coords), 4).requires_grad_()
    got, expected = bev_map(features, coords, shape, 2), dense(features, coords, shape, 2)
    assert got.is_contiguous(memory_format=torch.channels_last)
    assert_same_gradients(got, expected.flatten(1, 2), (features,))


def test_wrong_input_is_named():
    coords = random_sites(26, 1, (4, 4, 4))
    rows = len(coords)
    kernel_map = submanifold_map(coords, (4, 4, 4), 1)
    x, w = torch.zeros(rows, 3), torch.zeros(27, 3, 4)
    inference = kernel_map._replace(backward=None)
    table = kernel_map.forward
    elsewhere = KernelMap(table._replace(neighbours=table.neighbours.to("meta")), None)
    for message, call in {
        "features: expected a floating dtype, got torch.int64": lambda: (x.long(), w, kernel_map),
        r"features: expected \[N, C\], got": lambda: (x[0], w, kernel_map),
        f"features: {rows - 1} rows, the kernel map has {rows}": lambda: (x[1:], w, kernel_map),
        f"features: {rows - 1} rows, the kernel map reads": lambda: (x[1:], w, inference),
        r"weight: expected \[27, 3, C_out\], got \[9, 3, 4\]": lambda: (x, w[:9], kernel_map),
        "weight: torch.float64, features are torch.float32": lambda: (x, w.double(), kernel_map),
        r"bias: expected \[4\], got \[3\]": lambda: (x, w, kernel_map, torch.zeros(3)),
        r"residual: expected .* got": lambda: (x, w, kernel_map, None, torch.zeros(2, 4)),
        "backward is None": lambda: (x.clone().requires_grad_(), w, inference),
        "kernel_map: on meta, features on cpu": lambda: (x, w, elsewhere),
        "weight: on meta, features on cpu": lambda: (x, w.to("meta"), kernel_map),
    }.items():
        with pytest.raises(ValueError, match=message):
            sparse_conv(*call())
    with pytest.raises(ValueError, match=r"row 1 is \[0, 0, 4\], outside of 1 grids of \(2, 4\)"):
        dense(torch.zeros(2, 1), torch.tensor([[0, 0, 3], [0, 0, 4]]).int(), (2, 4), 1)
    with pytest.raises(ValueError, match=r"features: expected \[2, C\]"):
        SparseTensor(torch.zeros(3, 1), torch.zeros(2, 3).int(), (2, 4), 1)


@pytest.mark.skipif(
    not hasattr(torch.backends.cuda.matmul, "fp32_precision"), reason="an older torch"
)
def test_the_newer_setting_of_torch_is_read():
    """torch.get_float32_matmul_precision raises once torch.backends...fp32_precision was used."""
    program = (
        "import torch; from ops.cuda.precision import tf32_allowed; "
        "print(tf32_allowed()); torch.backends.cuda.matmul.fp32_precision = 'tf32'; "
        "print(tf32_allowed()); torch.backends.cuda.matmul.fp32_precision = 'ieee'; "
        "print(tf32_allowed())"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.split() == ["False", "True", "False"], done.stderr
