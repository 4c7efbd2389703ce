"""Things that stand or move in a street: what they are made of, and the box that labels them."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from data.simulator.solids import Solids

Extent = tuple[float, float, float, float, float, float]  # x, y, z, x, y, z: lowest, highest


@dataclass(eq=False)  # frozen, it would take four times as long to make
class Thing:
    """A thing in its own frame: x along the heading, y left, z up from the ground below the origin.

    Its solids are made when something needs them: most things of a street are never in sight.
    """

    make: Callable[[], Solids]
    extent: Extent  # no solid reaches out of it
    kind: str | None = None  # KITTI type, None for scenery
    box: Extent | None = None  # as an annotator draws it; None where there is no label
    # what annotators leave out of its tail, nose or side where the sensor never sees that, metres
    unseen: tuple[float, float, float] = (0.0, 0.0, 0.0)
    stem: tuple[float, float] | None = None  # length, width of what stands on the ground, metres

    @cached_property
    def solids(self) -> Solids:
        """Made once."""
        return self.make()

    @property
    def foot(self) -> tuple[float, float, float, float]:
        """What it takes of the ground: x_min, y_min, x_max, y_max."""
        if self.stem is not None:
            x, y = self.stem[0] / 2, self.stem[1] / 2
            return -x, -y, x, y
        return self.extent[0], self.extent[1], self.extent[3], self.extent[4]

    def bounds(self) -> np.ndarray:
        """Where the thing is, [2, 3]: lowest and highest corner, metres."""
        return np.array(self.extent).reshape(2, 3)

    def label_bounds(self) -> np.ndarray:
        """The box of the label where all was seen, [2, 3]: lowest and highest corner, metres."""
        return np.array(self.box if self.box is not None else self.extent).reshape(2, 3)


def upright(length: float, width: float, height: float, bottom: float = 0.0) -> Extent:
    """A box of this size around the origin."""
    return (-length / 2, -width / 2, bottom, length / 2, width / 2, bottom + height)
