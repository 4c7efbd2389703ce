"""Captions at places of Open3D's window."""

import numpy as np

from detector.draw.style import Colour
from detector.draw.viewpoint import Viewpoint, extent


class WindowCaptions:
    """Texts in a SceneWidget; those that are not needed any more wait for the next ones."""

    def __init__(self, gui, widget):
        """gui: the module open3d.visualization.gui."""
        self._gui, self._widget = gui, widget
        self._labels: list = []
        self._used = 0

    def clear(self) -> None:
        """Begin anew: none is shown."""
        for label in self._labels[: self._used]:
            label.text = ""
        self._used = 0

    def put(
        self, text: str, colour: Colour, view: Viewpoint, place: np.ndarray, depth: float
    ) -> None:
        """Write around a pixel; Open3D begins a text at its point, downwards and to the right."""
        if self._used == len(self._labels):
            self._labels.append(self._widget.add_3d_label(np.zeros(3, np.float32), ""))
        label = self._labels[self._used]
        self._used += 1
        corner = place - extent(text) / 2 + np.array([3, 0])
        label.text, label.color = text, self._gui.Color(*(c / 255 for c in colour))
        label.position = view.point(corner, depth).astype(np.float32)
