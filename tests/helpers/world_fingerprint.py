"""A hash of some simulated streets: where the rays of a sensor end, and the boxes of labels."""

import hashlib

import numpy as np

from millisecond.data.simulator.casting import cast
from millisecond.data.simulator.rays import Grid
from millisecond.data.simulator.scenes import make_street

STREETS = 12


def fingerprint() -> str:
    """Of depths and boxes in centimetres and the names of hits, in streets of nearly all scenes."""
    grid = Grid.of(np.radians(np.linspace(-24, 3, 24)), np.radians(np.arange(-180, 180, 1.0)))
    digest = hashlib.sha256()
    for seed in range(STREETS):
        rng = np.random.default_rng(seed)
        street = make_street(rng)
        boxes = [placed.label_bounds() for placed in street.placed if placed.thing.kind]
        digest.update(np.round(np.array(boxes) * 100).astype(np.int64).tobytes())
        hits = cast(street, 1.0, [(0.0, grid)], 80.0, rng)
        for layer in hits[:2]:
            depth = np.where(np.isfinite(layer.depth), layer.depth, 0).astype(np.float64)
            digest.update(np.round(depth * 100).astype(np.int64).tobytes())
            digest.update(layer.owner.astype(np.int64).tobytes())
            digest.update(layer.material.astype(np.int64).tobytes())
    return digest.hexdigest()


if __name__ == "__main__":
    print(fingerprint())
