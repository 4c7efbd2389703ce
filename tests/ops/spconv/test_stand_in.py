"""A program that imports spconv, run on ops.spconv without a change to it."""

import importlib
import sys
from importlib import util

import numpy as np
import pytest

from millisecond.ops.spconv import install
from millisecond.ops.spconv.__main__ import main

PROGRAM = """
import sys
import numpy as np
import torch
import spconv
assert float(spconv.__version__[2:]) >= 2.2
spconv.constants.SPCONV_USE_DIRECT_TABLE = False
import spconv.pytorch as spconv
from spconv.pytorch import SparseConv3d, functional as Fsp, ops
from spconv.pytorch.conv import SparseConvolution, SparseConvTensor, expand_nd
from spconv.pytorch.modules import SparseModule, is_spconv_module
from spconv.pytorch.utils import PointToVoxel
from spconv.core import ConvAlgo
from spconv.test_utils import TestCase, generate_sparse_data, params_grid
from spconv.utils import Point2VoxelCPU3d, nullcontext, rbbox_intersection, rbbox_iou
from spconv.pytorch.hash import HashTable
import cumm.tensorview as tv
from millisecond.ops.spconv import install

install()  # once more changes nothing
import beside

try:  # programs for spconv 1 and 2 ask for this to tell them apart
    from spconv.utils import VoxelGeneratorV2
except ImportError:
    from spconv.utils import Point2VoxelCPU3d as VoxelGenerator
assert VoxelGenerator is Point2VoxelCPU3d
assert SparseConvTensor is spconv.SparseConvTensor and expand_nd(2, 3) == [3, 3]
indices = torch.tensor([[0, 1, 1, 1], [0, 1, 1, 2]], dtype=torch.int32)
x = spconv.SparseConvTensor(torch.ones(2, 4), indices, [4, 4, 4], 1)
net = spconv.SparseSequential(
    SparseConv3d(4, 8, 3, 2, 1, indice_key="a", algo=ConvAlgo.Native), torch.nn.ReLU()
)
assert isinstance(net[0], SparseConvolution) and is_spconv_module(net)
assert "replace_feature" in x.__dir__()
assert ops.get_conv_output_size([4, 4, 4], [3] * 3, [2] * 3, [1] * 3, [1] * 3) == [2, 2, 2]
y = net(x)
assert net[0].act_type == tv.gemm.Activation.None_ != tv.gemm.Activation.ReLU
points = np.zeros((3, 4), np.float32)
made = Point2VoxelCPU3d([1, 1, 1], [0, 0, 0, 4, 4, 4], 4, 5, 5)
voxels, coordinates, number = (a.numpy() for a in made.point_to_voxel(tv.from_numpy(points)))
assert number.tolist() == [3]
print(__name__, sys.argv[1:], len(y.indices), spconv.pytorch.__name__)
"""


@pytest.fixture(autouse=True)
def no_spconv(monkeypatch):
    """Nothing has imported spconv yet, and what a test installs goes after it."""
    for name in [*sys.modules]:
        if name.split(".")[0] in ("spconv", "cumm"):
            monkeypatch.delitem(sys.modules, name)
    found = util.find_spec

    def find(name: str):
        return None if name == "cumm" and name not in sys.modules else found(name)

    monkeypatch.setattr("millisecond.ops.spconv.stand_in.find_spec", find)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    before = {*sys.modules}
    yield
    for name in {*sys.modules} - before:
        if name.split(".")[0] in ("spconv", "cumm", "beside"):
            del sys.modules[name]


def test_a_program_as_it_is(tmp_path, monkeypatch, capsys):
    script = tmp_path / "train.py"
    script.write_text(PROGRAM, encoding="utf-8")
    (tmp_path / "beside.py").write_text("import spconv.utils", encoding="utf-8")
    monkeypatch.setattr(sys, "argv", ["millisecond.ops.spconv", str(script), "--epochs", "3"])
    assert main() == 0
    printed = capsys.readouterr().out.split()
    assert printed == ["__main__", "['--epochs',", "'3']", "8", "millisecond.ops.spconv"]


def test_modules_that_are_not_here_get_one_line():
    install()
    for name in ("spconv.pytorch.quantization", "spconv.core_cc.csrc", "spconv.algo"):
        with pytest.raises(ModuleNotFoundError) as error:
            importlib.import_module(name)
        assert "not in ops.spconv; docs/from_spconv.md lists what is" in str(error.value)
        assert "\n" not in str(error.value)
    with pytest.raises(ModuleNotFoundError, match="No module named 'nothing_here'"):
        importlib.import_module("nothing_here")


def test_whether_a_module_is_there_can_be_asked():
    install()
    assert util.find_spec("spconv.pytorch.quantization") is None
    assert util.find_spec("spconv.nothing_here") is None
    for name in ("spconv", "spconv.pytorch", "spconv.pytorch.utils"):
        assert util.find_spec(name) is not None
    assert [finder.find_spec("os.path", None) for finder in sys.meta_path[-1:]] == [None]


def test_mistakes_get_one_line(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["millisecond.ops.spconv", str(tmp_path / "none.py")])
    assert main() == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "none.py: no such script" in said
    monkeypatch.setattr(sys, "argv", ["millisecond.ops.spconv"])
    assert main() == 2
    monkeypatch.setitem(sys.modules, "spconv", sys)
    with pytest.raises(RuntimeError, match="spconv: loaded already"):
        install()


def test_what_spconvs_own_tests_import():
    from millisecond.ops.spconv import test_utils  # a name that pytest would take for a test's

    np.random.seed(0)
    data = test_utils.generate_sparse_data([4, 6, 5], [7, 0, 9], 3, True, (1, 9), shape_scale=2)
    indices, dense = data["indices"], data["features_dense"]
    assert np.bincount(indices[:, 3], minlength=3).tolist() == [7, 0, 9]
    assert len(np.unique(indices, axis=0)) == 16
    assert (indices[:, :3] % 2 == 0).all()
    assert dense.shape == (3, 3, 4, 6, 5)
    np.testing.assert_array_equal(
        dense[(indices[:, 3], slice(None), *indices[:, :3].T)], data["features"]
    )
    assert np.count_nonzero(dense) == 48
    assert test_utils.params_grid([1, 2], "ab") == [[1, "a"], [1, "b"], [2, "a"], [2, "b"]]
    case = test_utils.TestCase()
    case.assertAllEqual(np.ones(2), [1, 1])
    case.assertAllClose({"a": np.ones(2)}, {"a": np.ones(2) + 1e-7})
    for a, b in ((np.ones(2), np.ones(1)), (np.ones(2), [1, 1.1]), ({"a": 1.0}, {"b": 1.0})):
        with pytest.raises(AssertionError):
            case.assertAllClose(a, b)
