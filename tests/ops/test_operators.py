"""Every operator has a fake, a definition, a test and an example."""

import ast
import importlib
import inspect
import re
from pathlib import Path

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from millisecond import ops
from millisecond.ops import library
from millisecond.ops.kernel_map import Plan
from millisecond.ops.lab.examples import EXAMPLES
from millisecond.ops.library import FAKES, register_fakes

ROOT = Path(__file__).resolve().parents[2]
OPS = ROOT / "ops"
DEFINITION = re.compile(r'm\.def\(\s*((?:"[^"]*"\s*)+)[,)]')


def read_schemas(folder: Path) -> dict[str, str]:
    """The schemas that the bindings in the folder register, by the operator's name."""
    found = {}
    for path in sorted(folder.rglob("*.cpp")):
        for match in DEFINITION.finditer(path.read_text(encoding="utf-8")):
            schema = "".join(re.findall(r'"([^"]*)"', match[1]))
            found[schema.partition("(")[0]] = schema
    return found


def arguments_of(schema: str) -> list[str]:
    inside = schema[schema.index("(") + 1 : schema.rindex("->")].strip().removesuffix(")")
    return [part.split()[1].partition("=")[0] for part in inside.split(", ")]


def callers_of(operator: str) -> list[Path]:
    """Files of ops that call it."""
    call = re.compile(rf"\bmillisecond\.{operator}\b")
    paths = sorted(OPS.glob("*.py"))
    return [path for path in paths if call.search(path.read_text(encoding="utf-8"))]


SCHEMAS = read_schemas(ROOT / "ops" / "csrc")
ON_TENSORS = [name for name, schema in SCHEMAS.items() if "Tensor " in schema]
CALLERS = sorted({path for operator in ON_TENSORS for path in callers_of(operator)})
NAMES = [path.stem for path in CALLERS]


def test_schemas_are_found():
    assert {"conv", "nms", "index_bounded", "index_workspace_words"} <= SCHEMAS.keys()
    assert arguments_of(SCHEMAS["voxelize"])[:3] == ["points", "offsets", "workspace"]


@pytest.mark.parametrize("operator", ON_TENSORS)
def test_there_is_a_fake_of_the_same_arguments(operator):
    fakes = FAKES[library.NAME]
    assert operator in fakes, f"ops: no @fake({operator!r})"
    inspect.signature(fakes[operator]).bind(*arguments_of(SCHEMAS[operator]))


def test_there_are_no_fakes_of_operators_that_are_gone():
    assert FAKES[library.NAME].keys() <= SCHEMAS.keys()


@pytest.mark.parametrize("operator", ON_TENSORS)
def test_a_function_calls_it(operator):
    assert callers_of(operator), "nothing in ops calls it"


@pytest.mark.parametrize("name", NAMES)
def test_a_definition_in_plain_torch_stands_beside(name):
    """`f_definition` in the file, with the arguments of `f`."""
    module = importlib.import_module(f"millisecond.ops.{name}")
    functions = {
        key: list(inspect.signature(getattr(module, key)).parameters) for key in defined(module)
    }
    definitions = {key for key in functions if key.endswith("_definition")}
    assert definitions
    for key in definitions:
        public = functions.get(key.removesuffix("_definition"))
        # a public function may take more, e.g. what it chooses by
        assert public is None or public[: len(functions[key])] == functions[key], key


@pytest.mark.parametrize("operator", SCHEMAS)
def test_a_test_names_it(operator):
    named = re.compile(rf"\b(millisecond|operators)\.{operator}\b")
    if operator not in ON_TENSORS:
        named = re.compile(rf"\b{operator.removeprefix('index_')}\(")
    tests = [path for path in (ROOT / "tests").rglob("test_*.py") if path != Path(__file__)]
    assert any(named.search(path.read_text(encoding="utf-8")) for path in tests)


@pytest.mark.parametrize("operator", SCHEMAS)
def test_an_example_is_sanitized_and_timed(operator):
    assert operator in sum(EXAMPLES, ()), "ops/lab/examples.py: no @example of it"


def defined(module) -> set[str]:
    tree = ast.parse(inspect.getsource(module))
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


def test_a_plan_is_what_the_operators_of_the_index_take():
    arguments = arguments_of(SCHEMAS["index_bounded"])
    first = arguments.index("batch_size")
    assert arguments[first : first + len(Plan._fields)] == list(Plan._fields)
    assert arguments_of(SCHEMAS["index_exact"])[3:] == list(Plan._fields)
    assert arguments_of(SCHEMAS["index_clear"])[1:] == list(Plan._fields[:2])


@pytest.fixture(scope="module")
def on_fakes():
    """Operators that are schemas and fakes alone, called with tensors that say they are on CUDA."""
    with pytest.MonkeyPatch.context() as patch:
        definitions = torch.library.Library("millisecond", "FRAGMENT")
        for schema in SCHEMAS.values():
            definitions.define(schema)
        definitions.impl("index_workspace_words", lambda *_: 64, "CompositeExplicitAutograd")
        register_fakes(library.NAME)
        patch.setattr(library, "_outcome", lambda annex: None)
        patch.setattr(torch.Tensor, "is_cuda", property(lambda self: True), raising=False)
        with FakeTensorMode():
            yield
        definitions._destroy()


@pytest.mark.skipif(torch.cuda.is_available(), reason="the operators themselves are there")
@pytest.mark.usefixtures("on_fakes")
class TestWrappersOnFakes:
    """What a wrapper hands over is what the schema takes, and the fake answers in the right shape:
    tests of the kernels see that only where there is a GPU."""

    def pyramid(self) -> tuple[ops.Level, ops.Level]:
        coords, count = torch.zeros(10, 4, dtype=torch.int32), torch.zeros(1, dtype=torch.int32)
        downs = [ops.ConvGeometry.of((3, 1, 1), 2, 1)]
        options = {"capacities": (10, 20), "count": count}
        pyramid = ops.index_pyramid(coords, (5, 16, 14), 2, downs, 3, True, **options)
        assert pyramid.overflow.shape == (1,)
        return pyramid.levels

    def test_index(self):
        above, below = self.pyramid()
        assert (above.coords.shape, below.coords.shape) == ((10, 4), (20, 4))
        assert above.count.shape == below.count.shape == (1,)
        assert above.down is None
        assert above.submanifold.forward.neighbours.shape == (27, 10)
        assert above.submanifold.backward.flipped
        assert below.down.forward.neighbours.shape == (3, 20)
        assert below.down.backward.neighbours.shape == (3, 10)
        assert below.submanifold.forward.neighbours.shape == (27, 20)

    def test_convolution_and_pooling(self):
        above, below = self.pyramid()
        features = torch.zeros(10, 16, requires_grad=True)
        for grad in (True, False):
            with torch.set_grad_enabled(grad):
                weight = torch.zeros(3, 16, 8)
                out = ops.sparse_conv(features, weight, below.down, torch.zeros(8), relu=True)
            assert out.shape == (20, 8)  # its autograd is C++, which is not here
        pooled = ops.sparse_max_pool(features, below.down)
        assert pooled.shape == (20, 16)
        pooled.sum().backward()
        weights = [torch.zeros(27, 16, 16, requires_grad=True) for _ in range(2)]
        norms = [torch.nn.BatchNorm1d(16) for _ in range(2)]
        out = ops.conv_blocks(features, weights, [above.submanifold] * 2, norms, features)
        assert out.shape == (10, 16)  # as its autograd

    @pytest.mark.parametrize("grad", [True, False])
    def test_layers_fill_channels_up(self, grad):
        above, below = self.pyramid()
        features = torch.zeros(10, 5, dtype=torch.half)
        x = ops.SparseTensor(features, above.coords, above.spatial_shape, 2)
        around = ops.SubmanifoldConv(5, 7, bias=True)
        narrowing = ops.StridedConv(7, 33, (3, 1, 1), 2, 1)
        for layer in (around, narrowing):
            layer.weight = torch.nn.Parameter(layer.weight.detach().half())
        with torch.set_grad_enabled(grad):
            out = around(x, above.submanifold)
            assert out.features.shape == (10, 7)
            out = narrowing(out, below.coords, below.spatial_shape, below.down)
            assert out.features.shape == (20, 33)
        with pytest.raises(ValueError, match=r"weight: expected \[3, 5, C_out\]"):
            around(x, below.down)

    def test_chain_and_maps(self):
        above, _ = self.pyramid()
        chain = ops.ConvChain([torch.zeros(27, 4, 16)], [torch.zeros(16)])
        features = torch.zeros(10, 4)
        assert chain(features, [above.submanifold]).shape == (10, 16)
        rows = torch.zeros(10, 16, requires_grad=True)
        for function, shape in ((ops.dense, (2, 16, 5, 16, 14)), (ops.bev_map, (2, 80, 16, 14))):
            out = function(rows, above.coords, above.spatial_shape, 2, above.count)
            assert out.shape == shape
            out.sum().backward()

    def test_the_birds_eye_view_network(self):
        _, below = self.pyramid()
        z, y, x = below.spatial_shape
        kinds = torch.zeros(3, y + x, dtype=torch.int32)
        plan = ops.CellPlan(((3, 1, 1),), ((y, x),), (), (9,), kinds, (0,))
        cells = ops.bev_cells(below, 2, plan)
        assert cells.tables[0].neighbours.shape == (9 * z, 2 * y * x + 9)
        assert cells.tables[0].count.shape == (1,) and cells.rows[0].shape == (2, y, x)
        weights = (torch.zeros(size) for size in ((8, 64), 64, (16, 9), 9))
        values = ops.BevHeads(*weights, parts=4)(torch.zeros(50, 8), cells.tables[0].count)
        assert values.shape == (200, 128)
        first, second = ops.bev_spread([values], cells.rows, [2], [2, 7])
        assert first.shape == (2, 2 * y, 2 * x, 2) and second.shape == (2, 2 * y, 2 * x, 7)
        sums = ops.CellValues([values], cells.rows, [2], [1, 7, 2])
        boxes = ops.select_boxes_of_cells(sums, torch.zeros(4 * y * x, 7), 0.1, 9, 0.1, 5).boxes
        assert boxes.shape == (2, 5, 7)

    def test_voxels_boxes_and_points(self):
        grid = ops.VoxelGrid((0, 0, 0, 4, 4, 4), (1, 1, 1))
        offsets = torch.zeros(3, dtype=torch.int32)
        voxels = ops.voxelize(torch.zeros(9, 4), offsets, grid, capacity=6)
        assert voxels.features.shape == (6, 4) and voxels.dropped.shape == (2,)
        boxes = torch.zeros(5, 7)
        for function in (ops.overlap_bev, ops.iou_bev, ops.iou_3d):
            assert function(boxes, boxes[:3]).shape == (5, 3)
        assert ops.paired_overlap_bev(boxes, boxes).shape == (5,)
        assert ops.nms(boxes, torch.zeros(5), 0.1, 4).indices.shape == (4,)
        assert ops.furthest_point_sampling(torch.zeros(2, 9, 3), 4).shape == (2, 4)

    def test_points_and_their_features(self):
        points, queries = torch.zeros(2, 9, 3), torch.zeros(2, 6, 3)
        assert ops.ball_query(points, queries, 1.0, 4).shape == (2, 6, 4)
        rows, distances = ops.three_nearest(points, queries)
        assert rows.shape == distances.shape == (2, 6, 3)
        features = torch.zeros(2, 9, 5, requires_grad=True)
        grouped, blended = (
            ops.group_points(features, rows),
            ops.interpolate(features, rows, distances),
        )
        assert grouped.shape == (2, 6, 3, 5) and blended.shape == (2, 6, 5)
        (grouped.sum() + blended.sum()).backward()
        assert features.grad.shape == features.shape
        table = torch.zeros(8).long(), torch.zeros(8).int(), torch.zeros(5).int()
        voxels = ops.PointVoxels(torch.zeros(4, 4), torch.zeros(9).long(), *table, batch_size=1)
        each = torch.zeros(9, 5, requires_grad=True)
        for reduction in ("max", "mean"):
            pooled = ops.voxel_pool(each, voxels, reduction)
            assert pooled.shape == (4, 5)
            pooled.sum().backward()
        assert each.grad.shape == each.shape

    def test_anchors_and_losses(self):
        anchors, boxes = torch.zeros(3, 4, 2, 2, 7), torch.zeros(2, 0, 7)
        sides, labels = ops.anchor_sides(anchors), torch.zeros(2, 0, dtype=torch.int64)
        match = ops.match_anchors(*sides, torch.zeros(2, 2), boxes, labels)
        assert match.rows.shape == (2, 48) and match.positives.shape == (2,)
        predictions = [torch.zeros(2, 48, n, requires_grad=True) for n in (2, 7, 2)]
        total, *others = ops.anchor_losses(*predictions, anchors, boxes, *match, (1, 2, 0.2))
        assert [tuple(loss.shape) for loss in others] == [(), (), (), (3, 2)]
        total.backward()
        assert [p.grad.shape for p in predictions] == [p.shape for p in predictions]
