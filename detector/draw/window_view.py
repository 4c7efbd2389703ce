"""What a `Window`'s process does: Open3D's own window, its keys and the texts on it."""

import time
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection

import numpy as np
from PIL import Image

from detector.draw.captions import FreeSpace
from detector.draw.scene import (
    EYE,
    FIELD_OF_VIEW,
    REACH,
    TARGET,
    fill_scene,
    material,
    prepare_scene,
    ring_marks,
)
from detector.draw.strips import SIZE, legend, line, table
from detector.draw.style import EMPTY, FAINT, TEXT, BoxSet, Colour
from detector.draw.text import shortened
from detector.draw.tubes import RINGS
from detector.draw.view import View
from detector.draw.viewpoint import CAPTION, Viewpoint, take
from detector.draw.window_text import WindowText

NAME = "millisecond"
AT_FIRST = (1280, 720)  # pixels
MARGIN = 16  # pixels between the texts and the window's edges
POINT_SIZES = (2.5, 4.0, 0.0, 1.5)  # pixels, in the order in which `p` shows them; 0 is none
# Seconds after a change at which the window is drawn. Once is not enough: while the renderer is
# behind, as it is at the start, it drops frames without a word.
DRAWN_AFTER = (0.0, 0.2, 0.5, 1.0, 2.0, 4.0)
HELP = "h: keys     q: quit"
KEYS = {
    "mouse": "turn; with Ctrl: move; wheel: nearer",
    "r": "view as at first",
    "t": "view from above",
    "p": "points larger, none, smaller",
    "g": "ground truth off, on",
    "d": "detections off, on",
    "h": "this list off, on",
    "q": "quit",
}
TOGGLES = {"g": "ground truth", "d": "detections"}
CLOSED = "closed"  # what is sent when the user has closed the window


def serve(pipe: Connection, keys: Mapping[str, str]) -> None:
    """Show the scenes that come through the pipe; send back the keys that are the program's."""
    import open3d.visualization.gui  # noqa: F401 - its slowness is not the display's

    pipe.send("imported")
    view = WindowView({**keys, **KEYS}, pipe.send)
    view.tick()
    pipe.send("opened")
    while view.tick():
        scene = None
        while pipe.poll():
            scene = pipe.recv()
        if scene is not None:  # of several the last
            view.show(*scene)
    pipe.send(CLOSED)


class WindowView:
    """The window. `show` replaces the scene, `tick` keeps it alive."""

    def __init__(self, keys: Mapping[str, str], on_key: Callable[[str], None]):
        """keys: all that the list shows, e.g. "left, right". on_key: called with the name of each
        one that is not in KEYS."""
        from open3d.visualization import gui, rendering

        self._gui, self._on_key, self._open = gui, on_key, True
        names = {name for shown in keys for name in shown.split(", ")} - {"mouse"}
        self._key_names = {int(getattr(gui.KeyName, name.upper())): name for name in names}
        self._app = gui.Application.instance
        self._app.initialize()
        self._window = self._app.create_window(NAME, *AT_FIRST)
        self._widget = gui.SceneWidget()
        self._scene = self._widget.scene = rendering.Open3DScene(self._window.renderer)
        prepare_scene(self._scene)
        self._window.add_child(self._widget)
        self._title, self._legend = self._text(line("", SIZE, TEXT)), self._text(legend({}, 1))
        self._help, self._list = self._text(line(HELP, SIZE, TEXT)), self._text(table(keys))
        self._list.widget.visible = False
        self._points, self._title_text = np.zeros((0, 4), np.float32), ""
        self._sets: dict[str, BoxSet] = {}
        self._hidden: set[str] = set()  # of the sets
        self._point_size = 0  # place in POINT_SIZES
        self._captions: list = []
        self._placed: Viewpoint | None = None  # from where the captions were placed
        self._redraws: list[float] = []  # when the window is to be drawn again, seconds
        self._window.set_on_layout(self._layout)
        self._window.set_on_close(self._close)
        self._window.set_on_key(self._key)
        self._look(TARGET, EYE, (0.0, 0.0, 1.0))

    def tick(self) -> bool:
        """Handle what the user did and draw; False once the window is closed."""
        if not (self._app.run_one_tick() and self._open):
            return False
        view = self._viewpoint()
        if self._placed is None or view.size != self._placed.size:
            self._refresh(view)
        elif not np.array_equal(view.matrix, self._placed.matrix):
            self._place_captions(view)
        if self._redraws and time.monotonic() >= self._redraws[0]:
            del self._redraws[0]
            self._window.post_redraw()
        return True

    def show(
        self,
        points: np.ndarray,
        ground_truth: BoxSet | None,
        detections: BoxSet | None,
        title: str,
    ) -> None:
        """Replace what the window shows by points [P, 4] and boxes; the view stays as it is."""
        sets = {"ground truth": ground_truth, "detections": detections}
        self._sets = {name: shown for name, shown in sets.items() if shown is not None}
        self._points, self._title_text = points, title
        self._window.title = f"{title} - {NAME}"
        fill_scene(self._scene, points, ground_truth or EMPTY, detections or EMPTY, POINT_SIZES[0])
        self._placed = None

    def _shown(self) -> dict[str, BoxSet]:
        return {name: shown for name, shown in self._sets.items() if name not in self._hidden}

    def _refresh(self, view: Viewpoint) -> None:
        """Show what the keys have not hidden, and the texts for it."""
        size, sets = POINT_SIZES[self._point_size], self._shown()
        for name in self._sets:
            self._scene.show_geometry(name, name in sets)
        self._scene.show_geometry("points", size > 0)
        if self._scene.has_geometry("points"):
            self._scene.modify_geometry_material("points", material(max(size, 1.0)))
        room = round(view.size[0] / self._window.scaling) - 2 * MARGIN
        self._title.show(line(shortened(self._title_text, 17, room - 4), 17, TEXT))
        self._legend.show(legend(sets, room - self._help.size[0] - MARGIN))
        for caption in self._captions:
            self._widget.remove_3d_label(caption)
        found = sets.get("detections", EMPTY)
        self._captions = [self._caption(colour) for colour in found.colours]
        self._captions += [self._caption(FAINT) for _ in RINGS]
        self._place_captions(view)
        self._window.set_needs_layout()

    def _place_captions(self, view: Viewpoint) -> None:
        """Scores above their boxes and distances on the rings, as seen from where the view is."""
        self._placed = view
        found = self._shown().get("detections", EMPTY)
        space, texts = FreeSpace((0, 40, view.size[0], view.size[1] - 40)), found.captions()
        for caption in self._captions:
            caption.text = ""
        for i, place, depth in view.place_scores(found, space):
            self._put(self._captions[i], texts[i], view, place, depth)
        marks = zip(
            self._captions[len(texts) :], RINGS, *view.project(ring_marks(AT_FIRST)), strict=True
        )
        for caption, metres, place, depth in marks:
            if depth > 0 and take(space, place):
                self._put(caption, f"{metres} m", view, place, depth)
        self._redraws = [time.monotonic() + after for after in DRAWN_AFTER]

    def _put(self, caption, text: str, view: Viewpoint, place: np.ndarray, depth: float) -> None:
        """Write around a pixel; Open3D begins a text at its point, downwards and to the right."""
        caption.text = text
        caption.position = view.point(place - CAPTION / 2 + np.array([3, 0]), depth).astype(
            np.float32
        )

    def _viewpoint(self) -> Viewpoint:
        camera, frame = self._scene.camera, self._widget.frame
        focal = camera.get_projection_matrix()[1, 1] * frame.height / 2
        matrix = np.asarray(camera.get_view_matrix(), np.float64)
        return Viewpoint(matrix, float(focal), (frame.width, frame.height))

    def _look(self, target: np.ndarray, eye: np.ndarray, up: tuple[float, float, float]) -> None:
        import open3d as o3d

        bounds = o3d.geometry.AxisAlignedBoundingBox(np.full(3, -REACH), np.full(3, REACH))
        self._widget.setup_camera(FIELD_OF_VIEW, bounds, np.zeros(3, np.float32))
        self._widget.look_at(target, eye, np.array(up))

    def _look_down(self) -> None:
        """From above onto all there is, forward being up."""
        view = View.of_data(self._points, [shown.boxes for shown in self._sets.values()])
        target = np.array([sum(view.x) / 2, sum(view.y) / 2, 0.0])
        reach = max((view.x[1] - view.x[0]), (view.y[1] - view.y[0]) * 9 / 16) / 2
        height = 1.2 * reach / np.tan(np.radians(FIELD_OF_VIEW) / 2)
        self._look(target, target + np.array([-0.01, 0.0, height]), (1.0, 0.0, 0.0))

    def _key(self, event) -> bool:
        name = self._key_names.get(int(event.key))
        if event.type != self._gui.KeyEvent.Type.DOWN or name is None:
            return False
        if name not in KEYS:
            self._on_key(name)
        elif name == "q":
            self._open = False
        elif name == "r":
            self._look(TARGET, EYE, (0.0, 0.0, 1.0))
        elif name == "t":
            self._look_down()
        elif name == "p":
            self._point_size = (self._point_size + 1) % len(POINT_SIZES)
        elif name == "h":
            self._list.widget.visible = not self._list.widget.visible
        else:
            self._hidden ^= {TOGGLES[name]}
        self._placed = None
        return True

    def _close(self) -> bool:
        self._open = False
        return True

    def _layout(self, _) -> None:
        area, scale = self._window.content_rect, self._window.scaling
        gap, list_gap = MARGIN * scale, 2 * (MARGIN + self._help.size[1]) * scale
        right, bottom = area.x + area.width, area.y + area.height
        self._widget.frame = area
        self._title.put(area.x + gap, area.y + gap, scale)
        self._legend.put(area.x + gap, bottom - gap - self._legend.size[1] * scale, scale)
        for text, above in ((self._help, gap), (self._list, list_gap)):
            wide, high = text.size
            text.put(right - gap - wide * scale, bottom - above - high * scale, scale)

    def _caption(self, colour: Colour):
        caption = self._widget.add_3d_label(np.zeros(3, np.float32), "")
        caption.color = self._gui.Color(*(c / 255 for c in colour))
        return caption

    def _text(self, image: Image.Image) -> WindowText:
        text = WindowText(self._gui, image)
        # A click on a text gives it the keys.
        text.widget.set_on_key(lambda event: int(self._key(event)))
        self._window.add_child(text.widget)
        return text
