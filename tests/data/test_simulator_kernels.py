"""The kernels that cast rays against plain numpy, by bits."""

import numpy as np
import pytest
import torch

from data.simulator import casting
from data.simulator.scenes import make_street
from data.simulator.windows import Grid
from ops import ray_casting

AROUND = Grid.of(np.radians(np.linspace(-24, 14, 24)), np.radians(np.arange(-180, 180, 1.1)))
SEEDS = [0, 4, 5, 13, 17]  # bends, banks, bridges, crossings

needs_kernels = pytest.mark.skipif(not ray_casting.has_kernels(), reason="no C++ compiler")


@needs_kernels
@pytest.mark.parametrize("seed", SEEDS)
def test_kernels_give_the_bits_of_plain_numpy(seed, monkeypatch):
    hits = []
    for kernels in (True, False):
        monkeypatch.setattr(casting, "has_kernels", lambda kernels=kernels: kernels)
        rng = np.random.default_rng(seed)
        hits.append(casting.cast(make_street(rng), 1.0, AROUND, 80.0, rng))
    for fast, plain in zip(*([*h.solid, *h.glass, h.reachable] for h in hits), strict=True):
        np.testing.assert_array_equal(fast, plain)
    assert np.isfinite(hits[0].solid.depth).mean() > 0.3


@needs_kernels
def test_kernels_take_only_what_fits():
    grid = ray_casting.RayGrid(*map(torch.from_numpy, (AROUND.directions, *AROUND[1::-1])))
    with pytest.raises(ValueError, match=r"contiguous \[2, 5\] torch.float64"):
        ray_casting.cylinder_windows(torch.zeros(2, 4, dtype=torch.float64), grid)
    with pytest.raises(ValueError, match="float32 on cpu"):
        ray_casting.cylinder_windows(torch.zeros(2, 5), grid)
    with pytest.raises(ValueError, match="contiguous"):
        short = grid._replace(directions=grid.directions[:, :-1])
        ray_casting.cylinder_windows(torch.zeros(2, 5, dtype=torch.float64), short)
