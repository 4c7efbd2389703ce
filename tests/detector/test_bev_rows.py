"""The BEV network on rows, for cells that are not constant, against the dense network."""

import pytest
import torch

from millisecond.detector.models.bev_backbone import BevBackbone, ConvBlock
from millisecond.detector.models.bev_rows import BevRows
from millisecond.detector.models.second import AnchorHead
from millisecond.ops import Level, bev, bev_cells, bev_map
from millisecond.ops.bev import SquareWindow, planned

NETWORKS = {  # layers, channels, strides, upsample_channels
    "second": ([5, 5], [12, 16], [1, 2], [8, 8]),
    "unequal": ([1, 2], [6, 10], [2, 1], [5, 9]),
    "three": ([0, 1, 2], [4, 6, 8], [1, 2, 2], [3, 4, 5]),
    "one": ([2], [8], [2], [6]),
}
CHANNELS, DEPTH = 4, 2


def network(layout, channels: int = CHANNELS, seed: int = 0) -> tuple[BevBackbone, AnchorHead]:
    """Folded, with statistics that make the value of an empty map differ from layer to layer."""
    torch.manual_seed(seed)
    backbone = BevBackbone(channels * DEPTH, *layout)
    head = AnchorHead(backbone.out_channels, 2, 3)
    for block in backbone.modules():
        if isinstance(block, ConvBlock):
            torch.nn.init.normal_(block.norm.running_mean, std=0.2)
            torch.nn.init.normal_(block.norm.bias, mean=0.2, std=0.5)
            block.fold()
    torch.nn.init.normal_(head.boxes.weight, std=0.1)
    return backbone.eval(), head.eval()


def sites(seed: int, batch_size: int, shape, density: float) -> tuple[torch.Tensor, Level]:
    random = torch.Generator().manual_seed(seed)
    occupied = torch.rand(batch_size, DEPTH, *shape, generator=random) < density
    coords = occupied.nonzero().int()
    rows = torch.randn(len(coords), CHANNELS, generator=random).relu()
    return rows, Level(coords, None, (DEPTH, *shape), None, None)


@torch.inference_mode()
def both(name, rows, level, batch_size):
    """Predictions on rows and by the dense network."""
    backbone, head = network(NETWORKS[name])
    got = BevRows(backbone, head, CHANNELS).predict(rows, level, batch_size)
    bev = bev_map(rows, level.coords, level.spatial_shape, batch_size)
    return got, head(backbone(bev))


def assert_near(got, wanted):
    for a, b in zip(got, wanted, strict=True):
        assert a.shape == b.shape and a.dtype == b.dtype
        assert (a - b).abs().max() <= 1e-5 * b.abs().max()


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("shape", [(4, 8), (12, 36), (40, 44), (64, 8)])
@pytest.mark.parametrize("density", [0.0, 0.002, 0.05, 1.0])
def test_it_is_the_dense_network(name, shape, density):
    rows, level = sites(len(name), 2, shape, density)
    assert_near(*both(name, rows, level, 2))


@pytest.mark.parametrize("cell", [(0, 0), (0, 20), (31, 43), (17, 1), (16, 22)])
def test_one_site_anywhere(cell):
    coords = torch.tensor([[1, 0, *cell]], dtype=torch.int32)
    level = Level(coords, None, (DEPTH, 32, 44), None, None)
    assert_near(*both("second", torch.ones(1, CHANNELS), level, 3))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@torch.inference_mode()
def test_computing_every_cell_gives_the_same_bits(monkeypatch, dtype):
    rows, level = sites(3, 2, (32, 40), 0.01)
    backbone, head = (part.to(dtype) for part in network(NETWORKS["second"]))
    network_of_rows = BevRows(backbone, head, CHANNELS)
    skipping = network_of_rows.predict(rows.to(dtype), level, 2)

    reached = bev.reached
    monkeypatch.setattr(bev, "reached", lambda *given: torch.ones_like(reached(*given)))
    whole = network_of_rows.predict(rows.to(dtype), level, 2)
    assert all(torch.equal(a, b) for a, b in zip(skipping, whole, strict=True))
    assert skipping.class_logits.dtype == dtype


def test_few_cells_are_computed_where_little_is_seen():
    coords = torch.tensor([[0, 0, 100, 80]], dtype=torch.int32)
    plan = planned([[SquareWindow(3, 1, 1)] * 5], (200, 176), coords.device)
    cells = bev_cells(Level(coords, None, (DEPTH, 200, 176), None, None), 1, plan)
    for reach, table in enumerate(cells.tables, start=1):
        kinds = (2 * reach - 1) ** 2
        assert table.neighbours.shape[1] == (2 * reach + 1) ** 2 + kinds
