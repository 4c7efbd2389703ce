"""The vectorised kernels of a CPU against the reference in float64, and what builds them."""

import shutil

import pytest
import torch

from millisecond import ops
from millisecond.ops import (
    ConvChain,
    ConvGeometry,
    cpu,
    kernel_map,
    strided_map,
    submanifold_map,
)
from millisecond.ops.cpu import convolve, pack_weight
from millisecond.ops.dispatch import on_cpu_kernels
from millisecond.ops.rulebook import KernelMap, Table
from millisecond.ops.sparse_conv import sparse_conv, sparse_conv_definition
from tests.conftest import CONVOLUTION
from tests.helpers.dense_oracle import random_sites

DTYPES = (torch.float32, torch.bfloat16, torch.float16)

needs_kernels = pytest.mark.skipif(cpu.kernels() is None, reason="no C++ compiler")


def random_case(seed: int):
    """Features, weight, bias and table of random sizes, some of them on the limits of the kernel:
    256 rows in a task, 64 numbers or pairs multiplied together, panels of 16, 32 and 64."""
    random = torch.Generator().manual_seed(seed)

    def choose(*values: int) -> int:
        return values[int(torch.randint(len(values), (), generator=random))]

    sources, rows = choose(1, 30, 700), choose(1, 5, 255, 256, 257, 1000)
    offsets, c_out = choose(1, 3, 9, 27), choose(1, 7, 16, 33, 64, 72, 130)
    # sums of more products than an encoder has need another tolerance
    c_in = choose(1, 3, 4, 16, 64, 66, 66 if offsets == 27 else 130)
    full = choose(0, 20, 60, 100) / 100
    table = torch.randint(sources, (offsets, rows), generator=random, dtype=torch.int32)
    table[torch.rand(offsets, rows, generator=random) >= full] = -1
    features = torch.randn(sources, c_in, generator=random)
    weight = torch.randn(offsets, c_in, c_out, generator=random)
    count = torch.tensor([choose(0, rows // 2, rows)], dtype=torch.int32)
    table = Table(table, None if choose(0, 1) else count, bool(choose(0, 1)))
    return features, weight, torch.randn(c_out, generator=random), table


def expected(features, weight, bias, residual, table, relu: bool) -> torch.Tensor:
    double = (None if t is None else t.double() for t in (features, weight, bias, residual))
    features, weight, *added = double
    return sparse_conv_definition(features, weight, KernelMap(table, None), *added, relu)


@needs_kernels
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("seed", range(20))
def test_any_table_and_sizes(seed, dtype):
    features, weight, bias, table = random_case(seed)
    features, weight, relu = features.to(dtype), weight.to(dtype), seed % 2 == 1
    residual = None
    if seed % 3 == 0:
        rows = table.neighbours.shape[1]
        residual = torch.randn(rows, len(bias), generator=torch.Generator().manual_seed(seed))
        residual = residual.to(dtype)
    got = convolve(features, pack_weight(weight), table, bias, relu, dtype, residual)
    wanted = expected(features, weight, bias, residual, table, relu)
    assert got.dtype == dtype and got.shape == wanted.shape
    error = (got.double() - wanted).norm()
    assert error <= CONVOLUTION[dtype, "highest"] * wanted.norm()


@needs_kernels
@pytest.mark.parametrize("dtype", DTYPES[:2])
def test_neither_threads_nor_other_rows_change_a_bit(dtype):
    random = torch.Generator().manual_seed(0)
    features = torch.randn(900, 64, generator=random, dtype=dtype)
    weight = pack_weight(torch.randn(9, 64, 96, generator=random, dtype=dtype))
    table = torch.randint(-500, 900, (9, 2000), generator=random, dtype=torch.int32).clamp(min=-1)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        alone = convolve(features, weight, Table(table))
        torch.set_num_threads(2)
        for _ in range(3):
            assert torch.equal(convolve(features, weight, Table(table)), alone)
    finally:
        torch.set_num_threads(threads)
    some = torch.randperm(2000, generator=random)[:777].sort().values
    part = convolve(features, weight, Table(table[:, some].contiguous()))
    assert torch.equal(part, alone[some])


@needs_kernels
@pytest.mark.parametrize("strided", [False, True])
def test_gradients(strided):
    shape, coords = (6, 9, 10), random_sites(1, 2, (6, 9, 10), 0.3)
    maps = submanifold_map(coords, shape, 2)
    if strided:
        maps = strided_map(coords, shape, 2, ConvGeometry.of(3, 2, 1))[2]
    random = torch.Generator().manual_seed(2)
    sizes = (len(coords), 5), (27, 5, 7), (7,), (maps.forward.neighbours.shape[1], 7)
    leaves = [torch.randn(size, generator=random, requires_grad=True) for size in sizes]
    double = [leaf.detach().double().requires_grad_() for leaf in leaves]
    results = []
    for values in (leaves, double):
        out = sparse_conv(*values[:2], maps, *values[2:], relu=True)
        results.append((out, *torch.autograd.grad(out.square().sum(), values)))
    for got, wanted in zip(*results, strict=True):
        assert (got - wanted).norm() <= 4e-6 * wanted.norm()


@needs_kernels
@pytest.mark.parametrize("dtype", DTYPES[:2])
@pytest.mark.parametrize("seed", range(20))
def test_weights_are_taken_and_their_gradients_given_with_any_strides(seed, dtype):
    """As spconv has them, [C_out, V, C_in]; and for one table alone, in memory used before."""
    features, weight, bias, table = random_case(seed)
    turned = weight.to(dtype).permute(2, 0, 1).contiguous().permute(1, 2, 0)
    assert torch.equal(pack_weight(turned).panels, pack_weight(weight.to(dtype)).panels)
    wanted = convolve(features, pack_weight(turned), table, bias)
    pack_weight(torch.full_like(turned, torch.nan), Table(torch.zeros_like(table.neighbours)))
    assert torch.equal(convolve(features, pack_weight(turned, table), table, bias), wanted)

    grad = torch.randn(wanted.shape, generator=torch.Generator().manual_seed(seed))
    found = cpu.weight_gradient(features, grad, table, turned)
    assert found.stride() == turned.stride()
    same = cpu.weight_gradient(features, grad, table, weight)
    assert torch.equal(found, same)
    columns = table.neighbours.flip(0) if table.flipped else table.neighbours
    for offset, column in enumerate(columns.long()):
        row = (column >= 0).nonzero()[:, 0]
        row = row if table.count is None else row[row < table.count]
        exact = features[column[row]].double().T @ grad[row].double()
        assert (found[offset] - exact).norm() <= 2e-6 * exact.norm()


@needs_kernels
@pytest.mark.parametrize("seed", range(6))
def test_the_index_does_not_depend_on_the_threads(seed, monkeypatch):
    """More sites than one thread takes at once; the reference has no threads."""
    shape = [(30, 90, 100), (3, 200, 300), (1500, 70), (300, 3, 90)][seed % 4]
    coords = random_sites(seed, 2, shape, 0.02 + 0.05 * seed)
    downs = [ConvGeometry.of(3, 2, 1, dims=len(shape))] * 2
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        got = ops.index_pyramid(coords, shape, 2, downs, 3, True)
    finally:
        torch.set_num_threads(threads)
    monkeypatch.setattr(kernel_map, "on_cpu_kernels", lambda _: False)
    wanted = ops.index_pyramid(coords, shape, 2, downs, 3, True)
    for ours, theirs in zip(got.levels, wanted.levels, strict=True):
        assert torch.equal(ours.coords, theirs.coords)
        for one, other in ((ours.submanifold, theirs.submanifold), (ours.down, theirs.down)):
            assert (one is None) == (other is None)
            for a, b in zip(one or (), other or (), strict=True):
                assert torch.equal(a.neighbours, b.neighbours) and a.flipped == b.flipped


@needs_kernels
def test_no_rows_and_no_sources():
    weight, none = pack_weight(torch.ones(27, 3, 4)), torch.zeros(0, 3)
    assert convolve(none, weight, Table(torch.zeros(27, 0, dtype=torch.int32))).shape == (0, 4)
    nowhere = Table(torch.full((27, 5), -1, dtype=torch.int32))
    assert torch.equal(convolve(none, weight, nowhere, torch.ones(4)), torch.ones(5, 4))


@needs_kernels
def test_a_table_that_reads_beyond_the_features_is_an_error():
    weight, table = pack_weight(torch.ones(1, 2, 2)), torch.tensor([[0, 1, 2]], dtype=torch.int32)
    with pytest.raises(ValueError, match="features: 2 rows, the kernel map reads row 2"):
        convolve(torch.ones(2, 2), weight, Table(table))
    with pytest.raises(ValueError, match="features: 2 rows, the kernel map reads row 2"):
        cpu.weight_gradient(torch.ones(2, 2), torch.ones(3, 2), Table(table), torch.ones(1, 2, 2))


@needs_kernels
def test_what_would_be_read_beyond_its_end_is_an_error():
    """A chain is given its features and maps by the caller; the kernel knows addresses alone."""
    chain = ConvChain([torch.ones(3, 4, 5)], [torch.zeros(5)])
    rows, table = torch.ones(7, 4), torch.zeros(3, 7, dtype=torch.int32)
    wrong = {
        r"features: expected \[7, 4\], got \[7, 3\]": (rows[:, :3], table),
        r"kernel_map: expected \[3, 7\], got \[2, 7\]": (rows, table[:2]),
        "kernel_map: expected int32, got torch.int64": (rows, table.long()),
        "features: on meta": (rows.to("meta"), table),
    }
    for message, (features, neighbours) in wrong.items():
        with pytest.raises(ValueError, match=message):
            chain(features, [KernelMap(Table(neighbours), None)])
    with pytest.raises(ValueError, match="bias: expected"):
        ConvChain([torch.ones(3, 4, 5)], [torch.zeros(4)])(rows, [KernelMap(Table(table), None)])


@needs_kernels
@pytest.mark.parametrize("relu", [False, True])
def test_a_chain_adds_a_residual_at_its_end(relu):
    draw = torch.Generator().manual_seed(3)
    weights = [torch.randn(3, *pair, generator=draw) for pair in ((4, 8), (8, 6))]
    biases = [torch.randn(width, generator=draw) for width in (8, 6)]
    rows, residual = torch.randn(9, 4, generator=draw), torch.randn(9, 6, generator=draw)
    table = Table(torch.randint(-1, 9, (3, 9), generator=draw, dtype=torch.int32))
    chain, maps = ConvChain(weights, biases), [KernelMap(table, None)] * 2
    inner = expected(rows, weights[0], biases[0], None, table, True)
    wanted = expected(inner, weights[1], biases[1], residual, table, relu)
    torch.testing.assert_close(chain(rows, maps, residual, relu), wanted.float())
    with pytest.raises(ValueError, match=r"residual: .*16, weights are .*32"):
        chain(rows, maps, residual.half())


@needs_kernels
def test_what_is_not_finite_stays():
    features = torch.tensor([[torch.nan, 1], [torch.inf, 1], [-torch.inf, 1]])
    table = Table(torch.arange(3, dtype=torch.int32)[None])
    for dtype in (torch.float32, torch.bfloat16):
        weight = pack_weight(torch.ones(1, 2, 1, dtype=dtype))
        got = convolve(features.to(dtype), weight, table, None, True, dtype)
        assert got[0].isnan() and got[1] == torch.inf and got[2] == 0


def test_torch_compile_sees_the_reference():
    coords = random_sites(4, 1, (4, 5, 6))
    maps = submanifold_map(coords, (4, 5, 6), 1)
    chain = ConvChain([torch.randn(27, 4, 8), torch.randn(27, 8, 8)], [torch.ones(8)] * 2)
    features = torch.randn(len(coords), 4)
    wanted = chain(features, [maps] * 2)
    compiled = torch.compile(lambda x: chain(x, [maps] * 2), backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(features), wanted, rtol=1e-5, atol=1e-4)


def load_again(monkeypatch):
    """The library of the session, for the tests to come: they need not build one more."""
    monkeypatch.undo()
    cpu.kernels.cache_clear()
    cpu.kernels()


@needs_kernels
def test_a_built_library_needs_no_compiler_and_a_damaged_one_says_what_to_remove(
    monkeypatch, tmp_path, capfd
):
    built = cpu.library_path()
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    monkeypatch.setenv("CXX", "no-such-compiler")
    path = cpu.library_path()
    path.parent.mkdir(parents=True)
    cpu.kernels.cache_clear()
    try:
        path.write_text("not a library")
        assert cpu.kernels() is None
        assert f"cannot load {path}" in capfd.readouterr().err
        cpu.kernels.cache_clear()
        shutil.copy(built, path)
        assert cpu.kernels() is not None
        assert capfd.readouterr().err == ""
    finally:
        load_again(monkeypatch)


def test_without_a_compiler_it_is_said_once_and_plain_torch_computes(monkeypatch, tmp_path, capfd):
    coords = random_sites(3, 1, (4, 5, 6))
    maps = submanifold_map(coords, (4, 5, 6), 1)
    features, weight = torch.randn(len(coords), 4), torch.randn(27, 4, 8)
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    monkeypatch.setenv("CXX", "no-such-compiler")
    cpu.kernels.cache_clear()
    try:
        for _ in range(2):
            assert not on_cpu_kernels(features)
            got = ConvChain([weight], [torch.zeros(8)])(features, [maps])
            wanted = sparse_conv_definition(features, weight, maps, None, None, True)
            assert torch.equal(got, wanted)
        told = capfd.readouterr().err
        assert told.count("no C++ compiler (no-such-compiler): apt install g++") == 1
        monkeypatch.setenv("CXX", "false")
        cpu.kernels.cache_clear()
        assert cpu.kernels() is None and "false fails" in capfd.readouterr().err
    finally:
        load_again(monkeypatch)
    assert not list(tmp_path.rglob("*.so"))


def test_without_a_folder_to_build_in_it_is_said_which_variable_names_another(
    monkeypatch, tmp_path, capfd
):
    def nobody():
        raise RuntimeError("Could not determine home directory.")

    taken = tmp_path / "file"
    taken.write_text("")
    try:
        for cache in ("", str(taken)):
            monkeypatch.setenv("TORCH_EXTENSIONS_DIR", cache)
            monkeypatch.setenv("CXX", "")  # as if it were not set
            monkeypatch.setattr(cpu.Path, "home", nobody)
            monkeypatch.setattr(cpu.shutil, "which", lambda name: name)
            cpu.kernels.cache_clear()
            assert cpu.kernels() is None
            told = capfd.readouterr().err
            assert "export TORCH_EXTENSIONS_DIR" in told and told.count("\n") == 1
    finally:
        load_again(monkeypatch)
