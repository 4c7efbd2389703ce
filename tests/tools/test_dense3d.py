"""Where sparse convolution stops being the faster one, from times over occupancy."""

import pytest

from millisecond.ops.lab.dense_times import OCCUPANCIES, crossings
from millisecond.tools.benchmarks.dense3d import draw_occupancies


def curve(sparse_of_all: float, channels: int) -> list[dict]:
    """Sparse time in proportion to the sites; dense takes 1 ms."""
    kind = {"precision": "fp16", "channels": channels, "dense_ms": 1.0}
    return [{**kind, "occupancy": o, "sparse_ms": sparse_of_all * o} for o in OCCUPANCIES]


def test_crossings():
    rows = [*curve(5.0, 16), *curve(0.5, 32), *curve(5000.0, 64)]
    found = crossings(rows)
    assert [row["channels"] for row in found] == [16, 32, 64]
    assert [row["below"] for row in found] == [pytest.approx(1 / 5), 1.0, 0.0]
    picture = draw_occupancies(rows, found, "a GPU")
    assert picture.ndim == 3 and len({*map(tuple, picture.reshape(-1, 3).tolist())}) > 50
