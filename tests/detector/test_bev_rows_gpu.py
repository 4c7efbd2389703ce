"""The BEV network on rows on the CUDA kernels, against the dense network."""

from pathlib import Path

import numpy as np
import pytest
import torch

from millisecond.detector.config import load_config
from millisecond.detector.import_openpcdet import convert
from millisecond.detector.inference import build_postprocessor
from millisecond.detector.models import bev_rows
from millisecond.detector.models.bev_rows import BevRows
from millisecond.detector.models.second import build_second
from millisecond.detector.weights import restore
from millisecond.ops import BevCells, Level, Table, bev, bev_map
from millisecond.ops.bev import bev_cells_definition
from millisecond.ops.capture import captured
from tests.detector.test_bev_rows import NETWORKS, network

pytestmark = pytest.mark.gpu

CONFIGS = Path(__file__).resolve().parents[2] / "configs"
LAYOUTS = {**NETWORKS, "wide": ([1, 1], [128, 128], [1, 2], [128, 256])}
# at most fourteen layers, each rounded
ROUNDING = {torch.float16: 14 * 2**-11, torch.bfloat16: 14 * 2**-8}


def sites(batch_size: int, shape, channels: int, density: float) -> tuple[torch.Tensor, Level]:
    """Rows with room behind them."""
    random = torch.Generator().manual_seed(int(1000 * density))
    coords = (torch.rand(batch_size, 2, *shape, generator=random) < density).nonzero().int()
    rows = torch.randn(len(coords) + 9, channels, generator=random).relu()
    room = torch.full((9, 4), -1, dtype=torch.int32)
    count = torch.tensor([len(coords)], dtype=torch.int32)
    level = Level(torch.cat((coords, room)).cuda(), count.cuda(), (2, *shape), None, None)
    return rows.cuda(), level


def parts(name: str, dtype: torch.dtype):
    """Backbone and head of a network, and its channels of a row."""
    channels = 128 if name == "wide" else 4
    backbone, head = network(LAYOUTS[name], channels)
    return backbone.to("cuda", dtype), head.to("cuda", dtype), channels


@pytest.mark.parametrize("dtype", ROUNDING, ids=str)
@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize("shape", [(40, 44), (12, 100)])
@torch.inference_mode()
def test_it_is_the_dense_network(name, shape, dtype):
    backbone, head, channels = parts(name, dtype)
    network_of_rows = BevRows(backbone, head, channels)
    for batch_size, density in ((1, 0.0), (1, 0.01), (4, 0.05), (8, 1.0)):
        rows, level = sites(batch_size, shape, channels, density)
        got = network_of_rows.predict(rows.to(dtype), level, batch_size)
        bev = bev_map(rows.to(dtype), level.coords, level.spatial_shape, batch_size, level.count)
        wanted = head(backbone(bev.contiguous(memory_format=torch.channels_last)))
        for a, b in zip(got, wanted, strict=True):
            assert a.shape == b.shape and a.dtype == b.dtype
            assert (a - b).abs().max() <= ROUNDING[dtype] * b.abs().max()


def every_cell(level, batch_size, plan) -> BevCells:
    """As ops.bev_cells, by its definition: a test makes that compute every cell."""
    found = bev_cells_definition(level, batch_size, plan)
    return BevCells([Table(table.neighbours) for table in found.tables], found.rows)


@pytest.mark.parametrize("dtype", ROUNDING, ids=str)
@pytest.mark.parametrize("name", ["wide", "second"])
@torch.inference_mode()
def test_computing_every_cell_gives_the_same_bits(monkeypatch, name, dtype):
    backbone, head, channels = parts(name, dtype)
    network_of_rows = BevRows(backbone, head, channels)
    rows, level = sites(2, (80, 72), channels, 0.002)
    skipping = network_of_rows.predict(rows.to(dtype), level, 2)
    reached = bev.reached
    monkeypatch.setattr(bev, "reached", lambda *given: torch.ones_like(reached(*given)))
    monkeypatch.setattr(bev_rows, "bev_cells", every_cell)
    whole = network_of_rows.predict(rows.to(dtype), level, 2)
    assert all(torch.equal(a, b) for a, b in zip(skipping, whole, strict=True))


@torch.inference_mode()
def test_a_graph_follows_its_input():
    backbone, head, channels = parts("wide", torch.float16)
    network_of_rows = BevRows(backbone, head, channels)
    scenes = [sites(2, (40, 44), channels, density) for density in (0.02, 0.05, 0.0)]
    size = max(len(rows) for rows, _ in scenes)
    rows = torch.zeros(size, channels, device="cuda").half()
    coords = torch.full((size, 4), -1, dtype=torch.int32).cuda()
    count = torch.zeros(1, dtype=torch.int32).cuda()
    held = Level(coords, count, scenes[0][1].spatial_shape, None, None)
    graph, got = captured(lambda: network_of_rows.predict(rows, held, 2))
    for features, level in scenes:
        rows[: len(features)], coords[: len(features)] = features.half(), level.coords
        count.copy_(level.count)
        graph.replay()
        wanted = network_of_rows.predict(features.half(), level, 2)
        assert all(torch.equal(a, b) for a, b in zip(got, wanted, strict=True))


@pytest.mark.parametrize(
    ("dtype", "score", "metres"), [(torch.float16, 0.01, 0.01), (torch.bfloat16, 0.03, 0.05)]
)
@torch.inference_mode()
def test_golden_detections(golden, dtype, score, metres):
    config = load_config(CONFIGS / "second_kitti.yaml")
    folder = golden / "openpcdet_second"
    with np.load(folder / "weights_fp16.npz") as file:
        state = {name: torch.from_numpy(file[name]) for name in file.files}
    model = build_second(config)
    restore(model, convert(state, config, "weights_fp16.npz"), "weights_fp16.npz")
    model = model.fold().to("cuda", dtype)
    wanted = np.load(folder / "infer_0.npz")
    points = torch.from_numpy(wanted["points"]).cuda()
    voxels = model.voxelize(points, torch.tensor([0, len(points)], dtype=torch.int32).cuda())
    pyramid = model.index(voxels)
    rows = model.encoder.rows(voxels.features, pyramid)
    predictions = BevRows.of(model).predict(rows, pyramid.levels[-1], 1)
    (found,) = build_postprocessor(config).cuda()(predictions)
    nearest = torch.cdist(torch.from_numpy(wanted["det_boxes"]), found.boxes.cpu()).argmin(dim=1)
    assert sorted(nearest.tolist()) == list(range(len(wanted["det_scores"])))
    # a box whose score is the least one, within the tolerance, may be on either side of it
    others = found.scores.cpu()[len(nearest) :]
    assert (others <= config.postprocess.score + score).all()
    assert found.labels.cpu()[nearest].tolist() == wanted["det_labels"].tolist()
    np.testing.assert_allclose(found.scores.cpu()[nearest], wanted["det_scores"], atol=score)
    np.testing.assert_allclose(found.boxes.cpu()[nearest], wanted["det_boxes"], atol=metres)
