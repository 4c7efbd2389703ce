"""millisecond tune: a folder of scans to a file that layers read."""

import pytest
import torch

from millisecond.ops import index_pyramid
from millisecond.ops.lab import dataflow_times, read_tuned, tuner
from millisecond.ops.lab.networks import same_sites
from millisecond.ops.row_order import ALL, row_order
from millisecond.tools import tune


@pytest.mark.skipif(torch.cuda.is_available(), reason="a machine with a GPU")
def test_without_a_gpu_it_says_so(tmp_path, capsys):
    assert tune.main([str(tmp_path), "--output", str(tmp_path / "tuned.json")]) == 2
    assert "needs a CUDA device" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("fetch", "pairs", "ordered", "expected"),
    [
        (99.0, 0.0, None, ("implicit_gemm", "implicit_gemm")),
        (90.0, 0.0, None, ("fetch_on_demand", "fetch_on_demand")),
        (90.0, 50.0, None, ("fetch_on_demand", "implicit_gemm")),
        (20.0, 50.0, None, ("fetch_on_demand", "fetch_on_demand")),
        (20.0, 50.0, 60.0, ("fetch_on_demand", "implicit_gemm")),
    ],
)
def test_what_is_hardly_faster_is_not_taken(fetch, pairs, ordered, expected):
    us = {"implicit_gemm": 100.0, "fetch_on_demand": fetch, "gather_scatter symmetric": 120.0}
    us |= {tuner.PAIRS: pairs} | ({tuner.ORDERED: ordered} if ordered else {})
    assert tuple(map(str, tuner.choose(us))) == expected


def test_rows_are_in_the_order_of_ops_spconv(monkeypatch):
    monkeypatch.setattr(dataflow_times, "gains_by_order", lambda *_: True)  # as on a GPU
    coords = (torch.rand(1, 5, 32, 32, generator=torch.Generator().manual_seed(0)) < 0.2).nonzero()
    (level,) = index_pyramid(coords.int(), (5, 32, 32), 1, [], last_submanifold=True).levels
    ordered = dataflow_times.in_order(same_sites(level, 0, 256, 256), "fp16").kernel_map
    for table, plain in zip(ordered, level.submanifold, strict=True):
        assert torch.equal(table.order, row_order(plain, ALL)) and plain.order is None


@pytest.mark.gpu
def test_writes_what_layers_read(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(tuner, "CANDIDATES", tuner.CANDIDATES[::7])  # two of them
    points = torch.rand(5000, 4) * torch.tensor([60, 40, 2, 1]) - torch.tensor([0, 20, 2, 0])
    (tmp_path / "scan.bin").write_bytes(points.numpy().tobytes())
    output = tmp_path / "tuned.json"
    arguments = [str(tmp_path), "--output", str(output), "--batch", "1", "--count", "1"]
    assert tune.main(arguments) == 0
    assert "submanifold 27 x 64-64 fp16 training" in capsys.readouterr().out
    found = read_tuned(output).fastest
    assert {work.kind for work in found} == {"submanifold", "strided"}
    assert {work.training for work in found} == {False, True}
