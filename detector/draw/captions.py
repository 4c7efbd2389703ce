"""Where captions go: beside their boxes, where they cover nothing else."""

import numpy as np


class FreeSpace:
    """The part of a picture that nothing has taken yet; rectangles are (left, top, right, bottom)
    in pixels."""

    def __init__(self, area: tuple[float, float, float, float], taken: np.ndarray | None = None):
        """taken: [N, 4] rectangles that captions keep off."""
        self._area = area
        self._taken = np.zeros((0, 4)) if taken is None else taken

    def take(self, places: np.ndarray) -> np.ndarray | None:
        """The first of the rectangles [K, 4] that is free, which it then no longer is; or None."""
        left, top, right, bottom = self._area
        for place in places:
            inside = place[0] >= left and place[1] >= top and place[2] <= right
            apart = (place[:2] >= self._taken[:, 2:]) | (place[2:] <= self._taken[:, :2])
            if inside and place[3] <= bottom and apart.any(axis=1).all():
                self._taken = np.concatenate([self._taken, place[None]])
                return place
        return None
