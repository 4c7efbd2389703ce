"""One convolution beside other engines: equal work is compared, and one that fails ends alone."""

import pytest
import torch

from millisecond.tools.benchmarks import engines
from millisecond.tools.benchmarks.timing import Scans


def small_case(kernel=3, batch=2):
    taken = torch.rand(batch, 5, 6, 7, generator=torch.Generator().manual_seed(0)) < 0.3
    return engines.Case(kernel, 16, taken.nonzero().int(), (5, 6, 7), batch, torch.float32)


@pytest.mark.parametrize("kernel", [3, 5])
def test_the_reference_is_the_dense_convolution(kernel):
    case = small_case(kernel)
    b, z, y, x = case.coords.long().unbind(1)
    features = case.given["sorted"].features.double().requires_grad_()
    weight = case.weight.double().requires_grad_()
    grid = features.new_zeros(case.batch, *case.shape, 16).index_put((b, z, y, x), features)
    window = weight.unflatten(0, (kernel,) * 3).permute(4, 3, 0, 1, 2)
    dense = torch.conv3d(grid.movedim(-1, 1), window, padding=kernel // 2)
    out = dense.movedim(1, -1)[b, z, y, x]
    out.backward(case.gradient.double())
    for mine, theirs in zip(
        engines.reference(case), (out, features.grad, weight.grad), strict=True
    ):
        torch.testing.assert_close(mine, theirs.detach())


class Weak(engines.Native):
    index = None

    def convolve(self, x):
        if torch.is_grad_enabled():
            raise RuntimeError("no kernel\nfor gradients")
        return super().convolve(x)


class Wrong(engines.Native):
    """Others rows, and other bits at each call."""

    def convolve(self, x):
        return super().convolve(x).roll(1, 0) + torch.rand(())


def test_engines_are_compared():
    kinds = {"ops": engines.Native, "ops.spconv": engines.Shim, "Spira": Weak, "FlexGEMM": Wrong}
    rows = list(engines.rows_of(small_case(), kinds, repeats=2))
    assert [row["work"] for row in rows] == [work.name for work in engines.WORKS]
    for row in rows:
        for name in engines.OURS:
            found = row["engines"][name]
            assert found["same"] and found.get("error", 0.0) < 1e-5
            assert 0 < found["low"] <= found["ms"] <= found["high"]
        if "alone" in row["work"]:
            assert "Spira" not in row["engines"]
            continue
        wrong = row["engines"]["FlexGEMM"]
        assert wrong["error"] > 0.1 and not wrong["same"]
        failed = {"failed": "for gradients"} if "training" in row["work"] else None
        assert (row["engines"]["Spira"] == failed) == bool(failed)
    text = engines.verdicts(rows)
    assert text[0].endswith("the same bits") and "other bits in 5 of 5 rows" in text[-1]


def row(beside, work, **ms):
    case = {"batch": 1, "voxels": 9, "kernel": 3, "channels": 16, "work": work}
    return case | {"beside": beside, "engines": {name: {"ms": time} for name, time in ms.items()}}


def test_ratios_are_with_ours_of_the_same_process():
    rows = [
        row("", "forward", ops=1.0),
        row("Spira", "forward", ops=2.0, Spira=3.0),
        row("FlexGEMM", "forward", ops=1.0, FlexGEMM=1.2),
        row("", "training", ops=1.0),
        row("FlexGEMM", "training", ops=1.0, FlexGEMM=0.5),
        row("", "map alone", ops=0.1),
    ]
    forward, training, alone = engines.summary(rows)
    assert forward["ms"] == {"ops": 1.0, "Spira": 3.0, "FlexGEMM": 1.2}
    assert forward["best"] == {"ops": 1.2} and training["best"] == {"ops": 0.5}
    assert alone["best"] == {}
    table = engines.table([forward, training, alone])
    assert max(map(len, table.splitlines())) <= 100
    assert "ops: faster than the best peer in 1 of 2 rows, 0.85 times in the median" in table


def test_processes_end_alone(monkeypatch, capfd):
    """One has no module, and one breaks its process: rows of the others are kept."""
    monkeypatch.setattr(engines, "MOST", 40)
    monkeypatch.setitem(engines.PEERS, "Spira", ("no_such_module", None))
    monkeypatch.setitem(engines.PEERS, "Broken", ("torch", None))  # unknown in the new process
    points = torch.rand(60, 4, generator=torch.Generator().manual_seed(0)) * 0.4
    kept = []
    options = [1], ["Spira", "Broken"], 1, 60, lambda result: kept.append(len(result["rows"]))
    result = engines.measure(Scans([points], "points"), *options, "cpu", [(3, 16)])
    assert kept == [len(engines.WORKS)] * 2
    assert all("ms" in found for row in result["rows"] for found in row["engines"].values())
    printed = capfd.readouterr().out
    assert "Spira: no module no_such_module, left out" in printed
    assert "ended with exit code 1" in printed
