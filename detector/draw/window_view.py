"""What a `Window`'s process does: Open3D's own window, its keys and the texts on it."""

import time
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import NamedTemporaryFile

import numpy as np
from PIL import Image

from detector.draw.captions import FreeSpace
from detector.draw.overlay import Overlay, framed, lay_over
from detector.draw.scene import EYE, prepare_scene, ring_marks
from detector.draw.scene_content import COLOUR_BY, SceneContent, material
from detector.draw.strips import SIZE, legend, line, panel, table
from detector.draw.style import EMPTY, FAINT, TEXT, BoxSet
from detector.draw.text import shortened
from detector.draw.tubes import RINGS
from detector.draw.viewpoint import Viewpoint, take
from detector.draw.window_camera import WindowCamera
from detector.draw.window_captions import WindowCaptions
from detector.draw.window_text import WindowText

NAME = "millisecond"
AT_FIRST = (1280, 720)  # pixels
MARGIN = 16  # pixels between the texts and the window's edges
TITLE = 17  # pixels, size of its letters
POINT_SIZES = (2.5, 4.0, 0.0, 1.5)  # pixels, in the order in which `p` shows them; 0 is none
# Seconds after a change at which the window is drawn. Once is not enough: while the renderer is
# behind, as it is at the start, it drops frames without a word.
DRAWN_AFTER = (0.0, 0.2, 0.5, 1.0, 2.0, 4.0)
HELP = "h: keys     q: quit"
KEYS = {
    "mouse": "turn; with Ctrl: move; wheel: nearer",
    "r": "view from behind, as at first",
    "t": "view from above",
    "p": "points larger, none, smaller",
    "c": "points by height, by intensity",
    "g": "ground truth off, on",
    "d": "detections off, on",
    "h": "this list off, on",
    "q": "quit",
}
TRACK_KEYS = {"f": "follow a track, the next one, none", "l": "trails off, on"}
SCREENSHOT = "s"  # where it is a key of the program, the picture comes with it
TOGGLES = {"g": "ground truth", "d": "detections", "l": "trails"}
CLOSED = "closed"  # what is sent when the user has closed the window
SIGNS = {"[": "LEFT_BRACKET", "]": "RIGHT_BRACKET"} | {
    str(digit): name
    for digit, name in enumerate(
        ("ZERO", "ONE", "TWO", "THREE", "FOUR", "FIVE", "SIX", "SEVEN", "EIGHT", "NINE")
    )
}


def serve(pipe: Connection, keys: Mapping[str, str], colour_by: str) -> None:
    """Show the scenes that come through the pipe; send back the keys that are the program's, and
    screenshots."""
    import open3d.visualization.gui  # noqa: F401 - its slowness is not the display's

    pipe.send("imported")
    view = WindowView({**keys, **KEYS}, pipe.send, colour_by)
    view.tick()
    pipe.send("opened")
    while view.tick():
        scene = None
        while pipe.poll():
            scene = pipe.recv()
        if scene is not None:  # of several the last
            view.show(*scene)
    pipe.send(CLOSED)


def names_of(shown: str) -> list[str]:
    """The keys of a row of the list, such as "left, right" or "0 to 9, enter"."""
    names = []
    for part in shown.split(", "):
        first, _, last = part.partition(" to ")
        names += [str(i) for i in range(int(first), int(last) + 1)] if last else [part]
    return names


class WindowView:
    """The window. `show` replaces the scene, `tick` keeps it alive."""

    def __init__(
        self,
        keys: Mapping[str, str],
        send: Callable[[str | Path], None],
        colour_by: str,
    ):
        """keys: all that the list shows, see `names_of`. send: takes the name of each one that
        is not done here, and files (.npy) of the pictures that the user wants to keep."""
        from open3d.visualization import gui, rendering

        self._gui, self._send, self._open = gui, send, True
        names = {name for shown in keys for name in names_of(shown)} - {"mouse"}
        self._key_names = {
            int(getattr(gui.KeyName, SIGNS.get(name, name.upper()))): name for name in names
        }
        self._app = gui.Application.instance
        self._app.initialize()
        self._window = self._app.create_window(NAME, *AT_FIRST)
        self._widget = gui.SceneWidget()
        self._scene = self._widget.scene = rendering.Open3DScene(self._window.renderer)
        prepare_scene(self._scene)
        self._window.add_child(self._widget)
        self._content = SceneContent(self._scene, EYE, POINT_SIZES[0])
        self._camera, self._captions = WindowCamera(self._widget), WindowCaptions(gui, self._widget)
        self._title, self._legend = self._text(line("", SIZE, TEXT)), self._text(legend({}, 1))
        self._figures, self._inset = self._text(line("", SIZE, TEXT)), self._text(legend({}, 1))
        self._help, self._list = self._text(line(HELP, SIZE, TEXT)), self._text(table(keys))
        self._list.widget.visible = False
        self._points = np.zeros((0, 4), np.float32)
        self._overlay = Overlay({})
        self._hidden: set[str] = set()  # of TOGGLES
        self._point_size = 0  # place in POINT_SIZES
        self._colour_by = COLOUR_BY.index(colour_by)
        self._placed: Viewpoint | None = None  # from where the captions were placed
        self._redraws: list[float] = []  # when the window is to be drawn again, seconds
        self._screenshot = False  # whether one is on its way
        self._window.set_on_layout(self._layout)
        self._window.set_on_close(self._close)
        self._window.set_on_key(self._key)
        self._camera.look_from_behind()

    def tick(self) -> bool:
        """Handle what the user did and draw; False once the window is closed."""
        if not (self._app.run_one_tick() and self._open):
            return False
        view = self._camera.viewpoint()
        if self._placed is None or view.size != self._placed.size:
            self._refresh(view)
        elif not np.array_equal(view.matrix, self._placed.matrix):
            self._place_captions(view)
        if self._redraws and time.monotonic() >= self._redraws[0]:
            del self._redraws[0]
            self._window.post_redraw()
        if self._screenshot:  # it comes with one of the next drawings
            self._window.post_redraw()
        return True

    def show(
        self,
        points: np.ndarray,
        ground_truth: BoxSet | None,
        detections: BoxSet | None,
        title: str,
        figures: Mapping[str, str],
        inset: np.ndarray | None,
    ) -> None:
        """Replace what the window shows by points [P, 4] and boxes; the view stays as it is."""
        sets = {"ground truth": ground_truth, "detections": detections}
        given = {name: shown for name, shown in sets.items() if shown is not None}
        self._points, self._overlay = points, Overlay(given, title, figures, inset)
        self._window.title = f"{title} - {NAME}"
        self._camera.follow(given)
        self._fill()
        if inset is not None:
            self._inset.show(framed(inset))
        if figures:
            self._figures.show(panel(figures))
        self._placed = None

    def _fill(self) -> None:
        sets = self._overlay.sets
        ground_truth, found = sets.get("ground truth", EMPTY), sets.get("detections", EMPTY)
        self._content.show(self._points, ground_truth, found, COLOUR_BY[self._colour_by])

    def _shown(self) -> dict[str, BoxSet]:
        sets = self._overlay.sets
        return {name: shown for name, shown in sets.items() if name not in self._hidden}

    def _refresh(self, view: Viewpoint) -> None:
        """Show what the keys have not hidden, and the texts for it."""
        size, sets = POINT_SIZES[self._point_size], self._shown()
        for name in ("ground truth", "detections"):
            self._scene.show_geometry(name, name in sets)
        self._scene.show_geometry("trails", not self._hidden & {"trails", "detections"})
        self._scene.show_geometry("points", size > 0)
        if self._scene.has_geometry("points"):
            self._scene.modify_geometry_material("points", material(max(size, 1.0)))
        wide = round(view.size[0] / self._window.scaling) - 2 * MARGIN
        self._inset.widget.visible = self._overlay.inset is not None
        self._figures.widget.visible = bool(self._overlay.figures)
        room = wide - (self._inset.size[0] + MARGIN) * self._inset.widget.visible
        title = shortened(self._overlay.title, TITLE, room - 4)
        self._title.show(line(title, TITLE, TEXT))
        self._legend.show(legend(sets, wide - self._help.size[0] - MARGIN))
        self._place_captions(view)
        self._window.set_needs_layout()

    def _place_captions(self, view: Viewpoint) -> None:
        """Captions above their boxes and distances on the rings, as seen from where the view is."""
        self._placed = view
        found = self._shown().get("detections", EMPTY)
        space, texts = FreeSpace((0, 40, view.size[0], view.size[1] - 40)), found.captions()
        self._captions.clear()
        for i, place, depth in view.place_captions(found, space):
            self._captions.put(texts[i], found.colours[i], view, place, depth)
        for metres, place, depth in zip(RINGS, *view.project(ring_marks(AT_FIRST)), strict=True):
            if depth > 0 and take(space, place, f"{metres} m"):
                self._captions.put(f"{metres} m", FAINT, view, place, depth)
        self._redraws = [time.monotonic() + after for after in DRAWN_AFTER]

    def _key(self, event) -> bool:
        name = self._key_names.get(int(event.key))
        if event.type != self._gui.KeyEvent.Type.DOWN or name is None:
            return False
        if name == SCREENSHOT:
            self._screenshot = True
            self._scene.scene.render_to_image(self._send_screenshot)
        elif name in TOGGLES:
            self._hidden ^= {TOGGLES[name]}
        elif name == "q":
            self._open = False
        elif name == "r":
            self._camera.look_from_behind()
        elif name == "t":
            self._camera.look_down(self._points, self._overlay.sets)
        elif name == "f":
            self._camera.follow_next(self._overlay.sets)
        elif name == "p":
            self._point_size = (self._point_size + 1) % len(POINT_SIZES)
        elif name == "c":
            self._colour_by = (self._colour_by + 1) % len(COLOUR_BY)
            self._fill()
        elif name == "h":
            self._list.widget.visible = not self._list.widget.visible
        else:
            self._send(name)
        self._placed = None
        return True

    def _send_screenshot(self, image) -> None:
        """What the window shows, with the texts as on other pictures."""
        self._screenshot = False
        picture = np.array(image)[..., :3]
        view = self._camera.viewpoint()
        view = view._replace(size=(picture.shape[1], picture.shape[0]))
        overlay = self._overlay._replace(sets=self._shown())
        # Not through the pipe: both ends would wait if the program sends a scene at this moment.
        with NamedTemporaryFile(prefix=f"{NAME}_", suffix=".npy", delete=False) as file:
            np.save(file, lay_over(picture, view, ring_marks(AT_FIRST), overlay))
        self._send(Path(file.name))

    def _close(self) -> bool:
        self._open = False
        return True

    def _layout(self, _) -> None:
        area, scale = self._window.content_rect, self._window.scaling
        gap, list_gap = MARGIN * scale, 2 * (MARGIN + self._help.size[1]) * scale
        left, top = area.x + gap, area.y + gap
        right, bottom = area.x + area.width - gap, area.y + area.height
        self._widget.frame = area
        self._title.put(left, top, scale)
        self._figures.put(left, top + 1.5 * self._title.size[1] * scale, scale)
        self._inset.put(right - self._inset.size[0] * scale, top, scale)
        self._legend.put(left, bottom - gap - self._legend.size[1] * scale, scale)
        for text, above in ((self._help, gap), (self._list, list_gap)):
            wide, high = text.size
            text.put(right - wide * scale, bottom - above - high * scale, scale)

    def _text(self, image: Image.Image) -> WindowText:
        text = WindowText(self._gui, image)
        # A click on a text gives it the keys.
        text.widget.set_on_key(lambda event: int(self._key(event)))
        self._window.add_child(text.widget)
        return text
