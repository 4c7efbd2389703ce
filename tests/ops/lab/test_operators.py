"""Each operator of the lab has a fake, a caller, a test and an example."""

import importlib
import inspect
import re

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from millisecond import ops
from millisecond.ops import lab, library
from millisecond.ops.lab import naive
from millisecond.ops.lab.dense_conv3d import RUNGS
from millisecond.ops.lab.examples import EXAMPLES
from millisecond.ops.lab.library import LAB
from millisecond.ops.lab.locations import kernel_map as searched
from millisecond.ops.library import FAKES, register_fakes
from tests.ops.test_operators import ROOT, arguments_of, read_schemas
from tests.ops.test_operators import SCHEMAS as MAIN

SCHEMAS = read_schemas(LAB.folder)
MODULES = [path.stem for path in (ROOT / "ops" / "lab").glob("*.py")]


def source_of(name: str) -> str:
    return (ROOT / "ops" / "lab" / f"{name}.py").read_text(encoding="utf-8")


def test_schemas_are_found():
    assert {"conv_naive", "conv_direct", "list_pairs", "dense_conv3d"} <= SCHEMAS.keys()
    assert not SCHEMAS.keys() & MAIN.keys()


def test_fakes_have_the_arguments_of_the_operators():
    assert FAKES[LAB.name].keys() == SCHEMAS.keys()
    for operator, schema in SCHEMAS.items():
        inspect.signature(FAKES[LAB.name][operator]).bind(*arguments_of(schema))


@pytest.mark.parametrize("operator", SCHEMAS)
def test_it_is_called_and_tested_and_has_an_example(operator):
    assert any(f"torch.ops.millisecond_lab.{operator}(" in source_of(name) for name in MODULES)
    named = re.compile(rf"\b(millisecond_lab|operators)\.{operator}\b")
    tests = (ROOT / "tests" / "ops" / "lab").glob("test_*_gpu.py")
    assert any(named.search(path.read_text(encoding="utf-8")) for path in tests)
    assert operator in sum(EXAMPLES, ()), "ops/lab/examples.py: no @example of it"


@pytest.mark.parametrize("name", ["dense_conv3d", "locations", "pairs"])
def test_definitions_take_what_the_functions_take(name):
    module = importlib.import_module(f"millisecond.ops.lab.{name}")
    definitions = [key for key in vars(module) if key.endswith("_definition")]
    assert definitions
    for key in definitions:
        functions = getattr(module, key), getattr(module, key.removesuffix("_definition"))
        definition, public = (list(inspect.signature(f).parameters) for f in functions)
        assert definition == public, key


@pytest.fixture
def on_fakes(monkeypatch):
    """Operators that are schemas and fakes alone, called with tensors that say they are on CUDA."""
    libraries = []
    for name, schemas in ((LAB.name, SCHEMAS), (library.NAME, MAIN)):
        libraries.append(torch.library.Library(name, "FRAGMENT"))
        for schema in schemas.values():
            libraries[-1].define(schema)
        register_fakes(name)
    monkeypatch.setattr(library, "_outcome", lambda annex: None)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(torch.Tensor, "is_cuda", property(lambda self: True), raising=False)
    yield
    for definitions in libraries:
        definitions._destroy()


@pytest.mark.skipif(torch.cuda.is_available(), reason="the operators themselves are there")
@pytest.mark.usefixtures("on_fakes")
class TestWrappersOnFakes:
    """What a wrapper hands over is what the schema takes, and the fake answers in the right shape:
    tests of the kernels see that only where there is a GPU."""

    def tensors(self, volume):
        """Features of 10 rows, and a weight."""
        sizes = (10, 16), (volume, 16, 8)
        return [torch.zeros(*size, requires_grad=True) for size in sizes]

    @pytest.mark.parametrize("kind", ["gather_scatter", "fetch_on_demand"])
    @pytest.mark.parametrize("shared", ["by all", "with the centre", "by none"])
    def test_dataflows_over_pairs(self, kind, shared):
        # the lists are real: their sizes depend on values
        rows = torch.arange(10, dtype=torch.int32).expand(3, 10)
        if shared == "by none":  # each row has one pair
            rows = torch.where(rows % 3 == torch.arange(3)[:, None], rows, -1)
        symmetric, table = shared == "with the centre", ops.Table(rows.contiguous())
        back = table.reversed() if symmetric else ops.Table(table.neighbours.clone())
        pairs = [lab.pairs.list_pairs_definition(side, symmetric) for side in (table, back)]
        assert pairs[0].single == (shared == "by none")
        with FakeTensorMode(allow_non_fake_inputs=True):
            features, weight = self.tensors(3)
            bias, residual = torch.zeros(8, requires_grad=True), torch.zeros(10, 8)
            taken = lab.PairMap(table, back, *pairs)
            flow = lab.Dataflow(kind)
            out = lab.sparse_conv(features, weight, taken, bias, residual, True, flow)
            assert out.shape == (10, 8)
            out.sum().backward()
            assert features.grad.shape == (10, 16) and weight.grad.shape == (3, 16, 8)
            with torch.no_grad():
                assert lab.sparse_conv(features, weight, taken, dataflow=flow).shape == (10, 8)

    def test_direct(self):
        sites, offsets = torch.zeros(12).long(), torch.zeros(27).long()
        with FakeTensorMode(allow_non_fake_inputs=True):
            forward = lab.locations.Locations(*lab.locations.store(sites, None), sites, offsets, 10)
            assert forward.keys.shape == forward.rows.shape == (32,)
            backward = lab.locations.Locations(forward.keys, forward.rows, sites[:10], offsets, 12)
            features, weight = self.tensors(27)
            found = lab.LocationMap(forward, backward)
            out = lab.sparse_conv(features, weight, found, torch.zeros(8), relu=True)
            assert out.shape == (12, 8)
            out.sum().backward()
            assert features.grad.shape == (10, 16) and weight.grad.shape == (27, 16, 8)
            assert searched(found).backward.neighbours.shape == (27, 10)

    def test_naive_and_dense(self):
        with FakeTensorMode(allow_non_fake_inputs=True):
            offsets, sites = torch.zeros(27).long(), torch.zeros(5).long()
            tables = naive.Tables(torch.zeros(99).int(), offsets, sites)
            out = naive.sparse_conv(torch.zeros(4, 3), torch.zeros(27, 3, 6), tables)
            assert out.shape == (5, 6)
            volume, weight = torch.zeros(2, 3, 4, 5, 6), torch.zeros(7, 3, 3, 3, 3)
            for rung in RUNGS:
                assert lab.dense_conv3d(volume, weight, rung).shape == (2, 7, 4, 5, 6)
