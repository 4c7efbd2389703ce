"""An Open3D window that shows a scan and its boxes, and can show another one at any time."""

import ctypes
import ctypes.util
import os
import sys
from collections.abc import Callable

import numpy as np

from detector.draw.scene import (
    EYE,
    FIELD_OF_VIEW,
    TARGET,
    fill_scene,
    prepare_scene,
    ring_marks,
)
from detector.draw.style import (
    CLASS_COLOURS,
    EMPTY,
    FAINT,
    TEXT,
    BoxSet,
    Colour,
    colour_of,
)
from detector.draw.tubes import RINGS

SIZE = (1280, 720)  # pixels, at first
LINES = ("- - ground truth", "--- detections")  # how the two kinds of boxes are drawn
POINT_SIZE = 2.5  # pixels


def has_display() -> bool:
    """Whether a window can be opened: on Linux, whether an X server or Wayland answers."""
    if sys.platform != "linux" or os.environ.get("WAYLAND_DISPLAY"):
        return True
    library = ctypes.util.find_library("X11")
    if not os.environ.get("DISPLAY") or library is None:
        return False
    x11 = ctypes.CDLL(library)
    x11.XOpenDisplay.restype = ctypes.c_void_p
    display = x11.XOpenDisplay(None)
    if display:
        x11.XCloseDisplay(ctypes.c_void_p(display))
    return bool(display)


class Window:
    """Opens at once. `show` replaces the scene, `tick` keeps it alive; the mouse turns the view."""

    def __init__(
        self, title: str, help_text: str = "", on_key: Callable[[str], None] = lambda key: None
    ):
        """
        Args:
            help_text: one line at the lower right, such as what the keys do.
            on_key: called with "left", "right", "space" or "q" when that key goes down.
        """
        from open3d.visualization import gui, rendering

        self._gui = gui
        self._app = gui.Application.instance
        self._app.initialize()
        self._window = self._app.create_window(title, *SIZE)
        self._widget = gui.SceneWidget()
        self._widget.scene = rendering.Open3DScene(self._window.renderer)
        prepare_scene(self._widget.scene)
        self._title, self._help = self._label("", TEXT), self._label(help_text, FAINT)
        self._legend, self._legend_labels = gui.Horiz(1.2 * self._window.theme.font_size), {}
        self._captions: list = []
        self._open, self._on_key = True, on_key
        for child in (self._widget, self._title, self._help, self._legend):
            child.background_color = gui.Color(0, 0, 0, 0)
            self._window.add_child(child)
        self._window.set_on_layout(self._layout)
        self._window.set_on_close(self._close)
        self._window.set_on_key(self._key)
        self._aim()

    def show(
        self,
        points: np.ndarray,
        ground_truth: BoxSet | None = None,
        detections: BoxSet | None = None,
        title: str = "",
    ) -> None:
        """Replace what the window shows by points [P, 4] and boxes; the view stays as it is."""
        found = detections or EMPTY
        fill_scene(self._widget.scene, points, ground_truth or EMPTY, found, POINT_SIZE)
        for caption in self._captions:
            self._widget.remove_3d_label(caption)
        tops = found.boxes[:, :3] + (found.boxes[:, 5:6] / 2 + 0.8) * (0, 0, 1)
        self._captions = [
            self._caption(top, text, colour_of(name))
            for top, text, name in zip(tops, found.captions(), found.names, strict=True)
        ]
        for metres, mark in zip(RINGS, ring_marks(SIZE), strict=True):
            self._captions.append(self._caption(mark, f"{metres} m", FAINT))
        self._title.text = title
        known = dict(zip(LINES, (ground_truth, detections), strict=True))
        self._fill_legend({k: v for k, v in known.items() if v is not None})
        self._window.set_needs_layout()
        self._window.post_redraw()

    def tick(self) -> bool:
        """Handle what the user did and draw; False once the window is closed."""
        return self._app.run_one_tick() and self._open

    def close(self) -> None:
        """Close the window, as the user would."""
        if self._open:
            self._window.close()

    def _label(self, text: str, colour: Colour):
        label = self._gui.Label(text)
        label.text_color = self._gui.Color(*(c / 255 for c in colour))
        return label

    def _caption(self, place: np.ndarray, text: str, colour: Colour):
        caption = self._widget.add_3d_label(place.astype(np.float32), text)
        caption.color = self._gui.Color(*(c / 255 for c in colour))
        return caption

    def _fill_legend(self, sets: dict[str, BoxSet]) -> None:
        names = {name for shown in sets.values() for name in shown.names}
        colours = dict.fromkeys(LINES, TEXT) | CLASS_COLOURS
        colours |= {name: colour_of(name) for name in sorted(names)}
        for name, colour in colours.items():
            if name not in self._legend_labels:
                self._legend_labels[name] = self._label(name, colour)
                self._legend.add_child(self._legend_labels[name])
        for name, label in self._legend_labels.items():
            label.visible = name in names or name in sets

    def _aim(self) -> None:
        import open3d as o3d

        # What lies beyond these bounds is not drawn.
        bounds = o3d.geometry.AxisAlignedBoundingBox(np.full(3, -200.0), np.full(3, 200.0))
        self._widget.setup_camera(FIELD_OF_VIEW, bounds, np.zeros(3, np.float32))
        self._widget.look_at(TARGET, EYE, np.array([0.0, 0, 1]))

    def _layout(self, context) -> None:
        area, gui = self._window.content_rect, self._gui
        self._widget.frame = area
        line = round(1.6 * self._window.theme.font_size)
        wide = self._help.calc_preferred_size(context, gui.Widget.Constraints()).width
        self._title.frame = gui.Rect(area.x + 16, area.y + 12, area.width - 32, line)
        low = area.y + area.height - line - 10
        self._legend.frame = gui.Rect(area.x + 16, low, area.width - wide - 48, line)
        self._help.frame = gui.Rect(area.x + area.width - wide - 16, low, wide, line)

    def _close(self) -> bool:
        self._open = False
        return True

    def _key(self, event) -> bool:
        names = self._gui.KeyName
        known = {names.LEFT: "left", names.RIGHT: "right", names.SPACE: "space", names.Q: "q"}
        if event.type != self._gui.KeyEvent.Type.DOWN or event.key not in known:
            return False
        self._on_key(known[event.key])
        return True
