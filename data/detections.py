"""The boxes that were found in a frame, on the host and with names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np


class NamedDetections(NamedTuple):
    """N boxes of one frame, as they are written, drawn and scored."""

    boxes: np.ndarray  # [N, 7] (x, y, z, l, w, h, yaw), LiDAR frame, metres and radians
    scores: np.ndarray  # [N]
    names: Sequence[str]  # N class names

    def select(self, rows: np.ndarray) -> NamedDetections:
        """Those with the given indices."""
        names = tuple(self.names[row] for row in rows)
        return NamedDetections(self.boxes[rows], self.scores[rows], names)
