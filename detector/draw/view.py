"""Which part of the ground a bird's-eye view shows, and how large."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from data.boxes import box_corners

STEP, FARTHEST = 10.0, 100.0  # metres: what ranges are rounded to, and where they end
STRAY = 0.1  # percent of the points at each end that need not be seen
SMALL, LARGE = 700, 1400  # pixels: how wide the plot is; no side is larger
HIGH = 1000  # pixels: a narrow plot is not made higher than that
SCALE = 12.0  # pixels per metre, unless that is too small or too large


class View(NamedTuple):
    """Which metres the picture shows and how large."""

    x: tuple[float, float] = (0.0, 70.4)
    y: tuple[float, float] = (-40.0, 40.0)
    scale: float = SCALE  # pixels per metre

    @classmethod
    def of_range(cls, x: tuple[float, float], y: tuple[float, float]) -> View:
        """These metres, at a scale that makes the plot 700 to 1400 pixels wide, at most 1400 high.

        What is long and narrow is shown with more to both sides.
        """
        wide, high = y[1] - y[0], x[1] - x[0]
        scale = max(SCALE, min(SMALL / wide, HIGH / high))
        scale = min(scale, LARGE / wide, LARGE / high)
        missing = max(0.0, SMALL / scale - wide)
        return cls(x, (y[0] - missing / 2, y[1] + missing / 2), scale)

    @classmethod
    def of_grid(cls, grid: Sequence[float]) -> View:
        """The ground of a grid (x0, y0, z0, x1, y1, z1), metres."""
        return cls.of_range((grid[0], grid[3]), (grid[1], grid[4]))

    @classmethod
    def of_data(cls, points: np.ndarray, boxes: Sequence[np.ndarray]) -> View:
        """The sensor, nearly all points [P, 4] and all sets of boxes [M, 7], rounded up to 10 m;
        nothing beyond 100 m."""
        places = points[np.isfinite(points).all(axis=1), :2]
        within = [np.zeros((1, 2))]
        if len(places):
            within.append(np.percentile(places, (STRAY, 100 - STRAY), axis=0))
        ends = np.concatenate([*within, *(_corners(some) for some in boxes)])
        low = np.floor(ends.min(axis=0) / STEP) * STEP
        high = np.maximum(np.ceil(ends.max(axis=0) / STEP) * STEP, low + STEP)
        (x0, y0), (x1, y1) = np.clip([low, high], -FARTHEST, FARTHEST).tolist()
        return cls.of_range((x0, x1), (y0, y1))

    @property
    def size(self) -> tuple[int, int]:
        """(width, height) of the plot without its margins, pixels."""
        return round((self.y[1] - self.y[0]) * self.scale), round(
            (self.x[1] - self.x[0]) * self.scale
        )

    def pixels(self, points: np.ndarray) -> np.ndarray:
        """LiDAR points [..., 2 or more] -> [..., 2] pixels (right, down) from the plot's corner."""
        right = (self.y[1] - points[..., 1]) * self.scale
        return np.stack([right, (self.x[1] - points[..., 0]) * self.scale], axis=-1)


def _corners(boxes: np.ndarray) -> np.ndarray:
    """[M, 7] -> [4 M, 2] of the lower faces."""
    return box_corners(boxes)[:, :4, :2].reshape(-1, 2)
