"""A strip of text on Open3D's window."""

import numpy as np
from PIL import Image


class WindowText:
    """An image on the window, in pixels of a screen without scaling."""

    def __init__(self, gui, image: Image.Image):
        """gui: the module open3d.visualization.gui."""
        self._gui, self.size = gui, image.size
        self.widget = gui.ImageWidget(_pixels(image))
        self.widget.background_color = gui.Color(0, 0, 0, 0)

    def show(self, image: Image.Image) -> None:
        """Replaces the image."""
        self.size = image.size
        self.widget.update_image(_pixels(image))

    def put(self, left: float, top: float, scale: float) -> None:
        """Moves the upper left corner to a pixel of the window; scale: that of the screen."""
        wide, high = self.size
        corner = round(left), round(top)
        self.widget.frame = self._gui.Rect(*corner, round(wide * scale), round(high * scale))


def _pixels(image: Image.Image):
    import open3d as o3d

    return o3d.geometry.Image(np.array(image))  # type: ignore[call-overload]  # takes any array
