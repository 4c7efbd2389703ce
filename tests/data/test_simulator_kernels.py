"""The kernels that cast rays against plain numpy, by bits."""

import numpy as np
import pytest

from millisecond.data.simulator import casting, fast_casting
from millisecond.data.simulator.rays import Grid
from millisecond.data.simulator.scenes import make_street
from millisecond.data.simulator.statistics import Anywhere

AROUND = Grid.of(np.radians(np.linspace(-24, 14, 24)), np.radians(np.arange(-180, 180, 1.1)))
SEEDS = [0, 4, 5, 13, 17]  # bends, banks, bridges, crossings

needs_kernels = pytest.mark.skipif(not fast_casting.has_kernels(), reason="no C++ compiler")


@needs_kernels
@pytest.mark.parametrize("place", [np.random.Generator, Anywhere])
@pytest.mark.parametrize("seed", SEEDS)
def test_kernels_give_the_bits_of_plain_numpy(seed, place, monkeypatch):
    hits = []
    for kernels in (True, False):
        monkeypatch.setattr(casting, "has_kernels", lambda kernels=kernels: kernels)
        rng = place(np.random.PCG64(seed))
        hits.append(casting.cast(make_street(rng), 1.0, [(0.0, AROUND)], 80.0, rng))
    for fast, plain in zip(*([*h.solid, *h.glass, h.reachable] for h in hits), strict=True):
        np.testing.assert_array_equal(fast, plain)
    assert np.isfinite(hits[0].solid.depth).mean() > 0.3


@needs_kernels
def test_kernels_take_only_what_fits():
    centre, radius = np.zeros((3, 2)), np.ones(2)
    with pytest.raises(ValueError, match=r"float32: the kernel takes contiguous \[2, 5\] float64"):
        fast_casting.met_cylinders(AROUND, *(a.astype("f4") for a in (centre, radius, radius)))
    with pytest.raises(ValueError, match=r"contiguous \[3, 7872\] float32"):
        short = AROUND._replace(directions=AROUND.directions[:, :-1])
        fast_casting.met_cylinders(short, centre, radius, radius)
    with pytest.raises(ValueError, match="contiguous"):
        turned = AROUND._replace(directions=np.asfortranarray(AROUND.directions))
        fast_casting.met_cylinders(turned, centre, radius, radius)
