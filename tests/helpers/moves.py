"""Random ways of clouds into a network's frame."""

import numpy as np
import torch

from millisecond.data.checks.leveling import Placement
from millisecond.data.checks.sensor import Mounting


def placement_of(rng: np.random.Generator) -> Placement:
    """A turn, a tilt and a rise, with intensities of one of several scales."""
    slopes = tuple(rng.uniform(-0.2, 0.2, 2).tolist())
    full = rng.choice([0.5, 1.0, 37.0, 255.0, 65535.0, np.inf])
    return Placement(Mounting(rng.uniform(-3, 3), rng.uniform(-180, 180), slopes), float(full))


def moves_of(rng: np.random.Generator, frames: int) -> torch.Tensor:
    """[frames, 13] float32, see `move_points`."""
    return torch.tensor([placement_of(rng).move for _ in range(frames)])
