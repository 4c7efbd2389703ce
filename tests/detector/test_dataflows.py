"""A tuned file in the detector and its training: what it names is taken, and finds the same."""

import warnings
from dataclasses import replace

import pytest
import torch

from detector import Detector
from detector.config import parse_config
from detector.models.sparse_encoder import SparseEncoder, no_graphs
from detector.training.identity import RunIdentity
from ops import Dataflow, Tuned, VoxelGrid, sparse_conv, use_tuned, voxelize
from ops.tuned import PairLists
from tests.helpers.minute_training import CONFIG as MINUTE
from tests.helpers.small_detector import build_small_network, cloud
from tests.helpers.tuned import every_size, write_tuned
from tools import train

GRID = VoxelGrid((0, -8, -3, 16, 8, 1), (0.2, 0.2, 0.1))
WIDE = [(27, 16, 16), (27, 8, 16)]  # of the second level
LAYERS = "strided 27 x 8-16 by fetch_on_demand, 0+ rows"


def encoder(folded: bool) -> SparseEncoder:
    torch.manual_seed(0)
    model = SparseEncoder(GRID.sparse_shape, (8, 16, 24, 24), 32)
    if folded:
        model.eval().fold()
    return model.requires_grad_(not folded)


@pytest.mark.parametrize("folded", [False, True])
def test_encoder_takes_what_is_named(monkeypatch, folded):
    points = torch.from_numpy(cloud(600)) * torch.tensor([0.4, 0.4, 1, 1])
    voxels = voxelize(points, torch.tensor([0, len(points)], dtype=torch.int32), GRID)
    listed, flows = [], []
    model = encoder(folded)
    pyramid = model.index(voxels)
    expected = model.encode(voxels.features, pyramid)
    model = encoder(folded)
    use_tuned(model, every_size(not folded, "fp32", WIDE))
    call = PairLists.__call__
    monkeypatch.setattr(PairLists, "__call__", lambda *a: listed.append(a[1]) or call(*a))
    monkeypatch.setattr(
        "detector.models.sparse_encoder.sparse_conv",
        lambda *a, dataflow=None, **k: flows.append(dataflow) or sparse_conv(*a, **k),
    )
    with torch.set_grad_enabled(not folded):
        got = model.encode(voxels.features, pyramid)
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)
    assert [flow is not None for flow in flows] == [0, 0, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0]
    level = pyramid.levels[1]
    assert [id(taken) for taken in listed] == [*map(id, (level.down, *[level.submanifold] * 2))]
    if folded:
        assert torch.equal(model.rows(voxels.features, pyramid), rows_of(got, pyramid))
    names = model.by_other_dataflows("fp32", training=not folded)
    assert LAYERS in names and "submanifold 27 x 16-16 by fetch_on_demand, 1024+ rows" in names
    assert model.by_other_dataflows("fp32", training=folded) == []
    assert model.by_other_dataflows("fp16", training=not folded) == []


def rows_of(bev, pyramid):
    """The last level's rows of a map, whose channel z * C + c is channel c at height z."""
    level = pyramid.levels[-1]
    b, z, y, x = level.coords.long().T
    heights = bev.unflatten(1, (level.spatial_shape[0], -1))
    return heights[b, z, :, y, x]


def test_detector_says_that_it_has_no_graphs(tmp_path):
    config, model = build_small_network()
    path = tmp_path / "tuned.json"
    shapes = [tuple(shape) for _, shape in model.encoder._layers()]
    tuned = every_size(False, "fp32", shapes)
    write_tuned(path, tuned)
    with pytest.warns(UserWarning, match=f"^{path}: .* by fetch_on_demand, .* a CUDA graph cannot"):
        detector = Detector(model, config, "cpu", dataflows=path)
    assert detector._inference.model.encoder.dataflow == tuned


def test_detector_says_nothing_of_implicit_gemms(tmp_path):
    config, model = build_small_network()
    path = tmp_path / "tuned.json"
    shapes = [tuple(shape) for _, shape in model.encoder._layers()]
    write_tuned(path, every_size(False, "fp32", shapes, Dataflow()))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Detector(model, config, "cpu", dataflows=path)
    with pytest.raises(FileNotFoundError, match=r"none\.json: no such file"):
        Detector(model, config, "cpu", dataflows=tmp_path / "none.json")


def test_training_says_what_it_does_not_take(tmp_path, capsys):
    path = tmp_path / "tuned.json"
    write_tuned(path, Tuned({}))
    path.write_text(path.read_text().replace('"device": "', '"device": "other '))
    group = type("Group", (), {"device": torch.device("cpu")})
    assert train._tuned(path, group) == Tuned({}) and train._tuned(None, group) is None
    error = capsys.readouterr().err
    assert error.startswith(f"warning: {path}: measured on other ") and error.count("\n") == 1


def test_training_with_other_dataflows_is_another_one():
    config = parse_config(MINUTE)
    plain = RunIdentity(config, 1, 9, 0, "data")
    other = replace(plain, dataflows=LAYERS)
    assert RunIdentity.from_metadata(other.to_metadata()) == other
    assert plain.changes(plain) == other.changes(other) == []
    assert plain.changes(other) == [f"dataflows: implicit GEMMs -> {LAYERS}"]


def test_a_warning_names_one_layer():
    assert no_graphs([LAYERS]).startswith(f"{LAYERS}: a CUDA graph cannot hold that")
    assert no_graphs([LAYERS] * 3).startswith(f"{LAYERS} and 2 more: a CUDA graph")
