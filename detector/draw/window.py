"""A window that shows a scan and its boxes, and can show another one at any time. `Window` is for
the program. The rest runs in Open3D's process: the camera, the keys, captions and texts.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

import numpy as np
from PIL import Image, ImageDraw

from millisecond.detector.draw.open3d_process import (
    REMEDY,
    Open3DProcess,
    display_problem,
    processor_draws,
    select_opengl,
)
from millisecond.detector.draw.scene import (
    AT_FIRST,
    EYE,
    FIELD_OF_VIEW,
    REACH,
    TARGET,
    SceneContent,
    framed,
    lay_over,
    material,
    placed_texts,
    prepare_scene,
    ring_marks,
)
from millisecond.detector.draw.style import EMPTY, TEXT, BoxSet, Shown, colourings
from millisecond.detector.draw.text import (
    SIZE,
    FreeSpace,
    legend,
    legible,
    line,
    panel,
    shortened,
    table,
    write,
)
from millisecond.detector.draw.view import View, Viewpoint

STARTING, OPENING = 120.0, 15.0  # seconds


class WindowText:
    """An image on the window, in pixels of a screen without scaling."""

    def __init__(self, gui, image: Image.Image, upside_down: bool):
        """gui: the module open3d.visualization.gui. upside_down: whether it shows images so."""
        self._gui, self._upside_down, self.size = gui, upside_down, image.size
        self.widget = gui.ImageWidget(self._pixels(image))
        self.widget.background_color = gui.Color(0, 0, 0, 0)

    def show(self, image: Image.Image) -> None:
        """Replaces the image."""
        self.size = image.size
        self.widget.update_image(self._pixels(image))

    def put(self, left: float, top: float, scale: float) -> None:
        """Moves the upper left corner to a pixel of the window; scale: the screen's scale."""
        wide, high = self.size
        corner = round(left), round(top)
        self.widget.frame = self._gui.Rect(*corner, round(wide * scale), round(high * scale))

    def place(self) -> tuple[int, int, int, int]:
        """Left, top, right and bottom, pixels of the window."""
        frame = self.widget.frame
        return frame.x, frame.y, frame.get_right(), frame.get_bottom()

    def _pixels(self, image: Image.Image):
        import open3d as o3d

        rows = np.array(image)[:: -1 if self._upside_down else 1]
        return o3d.geometry.Image(rows.copy())  # type: ignore[call-overload]  # takes any array


BEHIND = np.array([-12.0, 0.0, 7.0])  # metres from the object that is followed to the eye
UP, FORWARD = (0.0, 0.0, 1.0), (1.0, 0.0, 0.0)


class WindowCamera:
    """The camera of a SceneWidget."""

    def __init__(self, widget):
        self._widget = widget
        self._followed = 0  # number of a track

    def viewpoint(self, scale: float) -> Viewpoint:
        """The viewpoint of the scene now; scale: pixels of the screen in one of the view."""
        camera, frame = self._widget.scene.camera, self._widget.frame
        wide, high = round(frame.width / scale), round(frame.height / scale)
        focal = camera.get_projection_matrix()[1, 1] * high / 2
        matrix = np.asarray(camera.get_view_matrix(), np.float64)
        return Viewpoint(matrix, float(focal), (wide, high))

    def look_from_behind(self) -> None:
        """From behind and above the sensor, as at first."""
        self._followed = 0
        self._look(TARGET, EYE, UP)

    def look_down(self, shown: Shown) -> None:
        """From above onto everything, forward is up."""
        self._followed = 0
        view = View.of_data(shown.points, [boxes.boxes for boxes in shown.sets.values()])
        target = np.array([sum(view.x) / 2, sum(view.y) / 2, 0.0])
        reach = max((view.x[1] - view.x[0]), (view.y[1] - view.y[0]) * 9 / 16) / 2
        height = 1.2 * reach / np.tan(np.radians(FIELD_OF_VIEW) / 2)
        self._look(target, target + np.array([-0.01, 0.0, height]), FORWARD)

    def follow_next(self, found: BoxSet) -> None:
        """Follow the nearest track or, after one, the next farther one; after the last, none."""
        ids = np.zeros(0, np.int64) if found.ids is None else found.ids
        order = [i for i in np.argsort(np.hypot(*found.boxes[:, :2].T)) if i < len(ids) and ids[i]]
        numbers = [int(ids[i]) for i in order]
        place = numbers.index(self._followed) + 1 if self._followed in numbers else 0
        if place < len(numbers):
            self._followed = numbers[place]
            self.follow(found)
        else:
            self.look_from_behind()

    def follow(self, found: BoxSet, track: int = 0) -> None:
        """Move with the followed track, or with another one from now on; where it is lost, the
        camera stays."""
        self._followed = track or self._followed
        if not self._followed or found.ids is None:
            return
        for i in np.flatnonzero(found.ids == self._followed):
            target = np.asarray(found.boxes[i, :3], np.float64)
            self._look(target, target + BEHIND, UP)

    def _look(self, target: np.ndarray, eye: np.ndarray, up: tuple[float, float, float]) -> None:
        import open3d as o3d

        bounds = o3d.geometry.AxisAlignedBoundingBox(np.full(3, -REACH), np.full(3, REACH))
        self._widget.setup_camera(FIELD_OF_VIEW, bounds, np.zeros(3, np.float32))
        self._widget.look_at(target, eye, np.array(up))


NAME = "millisecond"
MARGIN = 16  # pixels between the texts and the window's edges
TITLE = 17  # pixels, size of its letters
POINT_SIZES = (2.5, 4.0, 0.0, 1.5)  # pixels, in the order in which `p` shows them; 0 is none
# Seconds after a change at which the window is drawn. Once is not enough: while the renderer is
# behind, as it is at the start, it drops frames without a notice.
DRAWN_AFTER = (0.0, 0.2, 0.5, 1.0, 2.0, 4.0)
HELP = "h: keys     q: quit"
# All keys of all windows, by the programs that have them; docs/visualize.md lists them too.
KEYS = {
    "all": {
        "mouse": "turn; with Ctrl: move; wheel: nearer",
        "r": "view from behind, as at first",
        "t": "view from above",
        "p": "points larger, none, smaller",
        "c": "points by height, intensity, camera, class, error",
        "g": "ground truth off, on",
        "d": "detections off, on",
        "h": "this list off, on",
        "q": "quit",
    },
    "visualize, demo": {"1 to 9": "a class off, on", "s": "save a picture"},
    "visualize": {
        "left, right": "scan before, after",
        "page_up, page_down": "ten scans back, on",
        "home, end": "first scan, last scan",
        "enter, 0 to 9, enter": "the scan of this number",
        "backspace": "take back a digit of it",
    },
    "visualize, ranked": {"n, b": "the next scan among the worst, back"},
    "visualize, judged": {"e": "boxes by class, by error"},
    "review": {
        "a, x": "accept, reject the object, go on",
        "k": "it has the next class",
        "v": "turn it round",
        "u": "undecided, as it was",
        "n, b": "the next object, back",
        "left, right": "scan before, after",
    },
    "demo": {
        "space": "pause, go on",
        "right": "one scan on, in a pause",
        "[, ]": "slower, faster",
        "up, down": "least score that is shown: more, less",
        "f": "follow a track, the next one, none",
        "l": "trails and arrows of speed off, on",
    },
}
SCREENSHOT = "s"  # where it is a key of the program, the picture comes with it
TOGGLES = {"g": "ground_truth", "d": "detections", "l": "trails"}
CLOSED = "closed"  # sent when the user has closed the window
SIGNS = {"[": "LEFT_BRACKET", "]": "RIGHT_BRACKET"} | {
    str(digit): name
    for digit, name in enumerate(
        ("ZERO", "ONE", "TWO", "THREE", "FOUR", "FIVE", "SIX", "SEVEN", "EIGHT", "NINE")
    )
}


def serve(pipe: Connection, keys: Mapping[str, str], colour_by: str, opengl: bool) -> None:
    """Show the scenes that come through the pipe; send back the keys that are the program's, and
    screenshots. opengl: draw with it, not with what Open3D takes by itself."""
    import open3d.visualization.gui  # noqa: F401 - its slowness is not the display's

    pipe.send("imported")
    # Open3D turns images over for Vulkan, and shows them upside down with OpenGL.
    upside_down = opengl and select_opengl()
    view = WindowView({**keys, **KEYS["all"]}, pipe.send, colour_by, upside_down)
    view.tick()
    pipe.send("opened")
    while view.tick():
        scene = None
        while pipe.poll():
            scene = pipe.recv()
        if scene is not None:  # of several the last
            view.show(scene)
    pipe.send(CLOSED)


def keys_for(classes: Sequence[str], *programs: str) -> dict[str, str]:
    """Rows of KEYS for a window that shows these classes, whose numbers are keys."""
    rows = {key: does for program in programs for key, does in KEYS[program].items()}
    if rows.pop("1 to 9", None) and classes:
        shown = classes[:9]
        rows[f"1 to {len(shown)}" if len(shown) > 1 else "1"] = f"{', '.join(shown)} off, on"
    return rows


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
        upside_down: bool,
    ):
        """keys: all that the list shows, see `names_of`. send: takes the name of each one that
        is not done here, and files (.npy) of the pictures that the user wants to keep.
        upside_down: whether Open3D shows images so."""
        from open3d.visualization import gui, rendering

        self._upside_down = upside_down
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
        # Of two widgets the mouse goes to the one added last, and the one that appeared last is
        # drawn on top. So the captions come before the scene, and appear after it.
        self._captions = self._text(Image.new("RGBA", (1, 1)))
        self._captions.widget.visible = False
        self._window.add_child(self._widget)
        self._content = SceneContent(self._scene, EYE, POINT_SIZES[0])
        self._camera = WindowCamera(self._widget)
        self._title, self._legend = self._text(line("", SIZE, TEXT)), self._text(legend({}, 1))
        self._figures, self._inset = self._text(line("", SIZE, TEXT)), self._text(legend({}, 1))
        self._help, self._list = self._text(line(HELP, SIZE, TEXT)), self._text(table(keys))
        self._list.widget.visible = False
        self._shown = Shown(title="loading")
        self._hidden: set[str] = set()  # of TOGGLES
        self._point_size = 0  # place in POINT_SIZES
        self._colour_by = colour_by
        self._placed: Viewpoint | None = None  # from where the captions were placed
        self._redraws: list[float] = []  # when the window is to be drawn again, seconds
        self._screenshot = False  # whether one is wanted
        self._window.set_on_layout(self._layout)
        self._window.set_on_close(self._close)
        self._window.set_on_key(self._key)
        self._content.show(self._shown, colour_by)  # the rings
        self._camera.look_from_behind()

    def tick(self) -> bool:
        """Handle the user's input and draw; False once the window is closed."""
        if not (self._app.run_one_tick() and self._open):
            return False
        view = self._view()
        if self._placed is None or view.size != self._placed.size:
            self._refresh(view)
        elif not np.array_equal(view.matrix, self._placed.matrix):
            self._place_captions(view)
        if self._redraws and time.monotonic() >= self._redraws[0]:
            del self._redraws[0]
            self._window.post_redraw()
        # It comes with the next drawing, or never: a request is lost with a frame that is dropped.
        if self._screenshot:
            self._scene.scene.render_to_image(self._send_screenshot)
            self._window.post_redraw()
        return True

    def show(self, shown: Shown) -> None:
        """Replace the content of the window; the view stays."""
        self._shown = shown
        self._window.title = f"{shown.title} - {NAME}"
        self._camera.follow(shown.detections or EMPTY, shown.follow)
        self._content.show(shown, self._colour_by)
        if shown.photo is not None:
            self._inset.show(framed(shown))
        if shown.figures:
            self._figures.show(panel(shown.figures))
        self._refresh(self._view())  # all of it before anything is drawn

    def _view(self) -> Viewpoint:
        """From where the user looks, in pixels of a screen without scaling."""
        return self._camera.viewpoint(self._window.scaling)

    def _visible(self) -> Shown:
        """All but the boxes that the keys have hidden."""
        hidden: dict[str, Any] = dict.fromkeys(self._hidden - {"trails"})
        return self._shown._replace(**hidden)

    def _refresh(self, view: Viewpoint) -> None:
        """Show all parts that the keys have not hidden, and their texts."""
        if not all(view.size):  # before the first drawing; `tick` comes again
            return
        size, shown = POINT_SIZES[self._point_size], self._visible()
        for name in ("ground truth", "detections"):
            self._scene.show_geometry(name, name in shown.sets)
        self._scene.show_geometry("trails", not self._hidden & {"trails", "detections"})
        self._scene.show_geometry("points", size > 0)
        if self._scene.has_geometry("points"):
            self._scene.modify_geometry_material("points", material(max(size, 1.0)))
        wide = view.size[0] - 2 * MARGIN
        self._inset.widget.visible = shown.photo is not None
        self._figures.widget.visible = bool(shown.figures)
        room = wide - (self._inset.size[0] + MARGIN) * self._inset.widget.visible
        title = shortened(shown.title, TITLE, room - 4)
        self._title.show(line(title, TITLE, TEXT))
        self._legend.show(legend(shown.sets, wide - self._help.size[0] - MARGIN))
        self._layout()
        self._place_captions(view)
        self._window.set_needs_layout()

    def _place_captions(self, view: Viewpoint) -> None:
        """Captions above their boxes and distances on the rings, as seen from where the view is."""
        self._placed = view
        others = (self._title, self._figures, self._inset, self._legend, self._help, self._list)
        taken = [text.place() for text in others if text.widget.visible]
        space = FreeSpace((0, 0, *view.size), np.array(taken) / self._window.scaling)
        texts = Image.new("RGBA", view.size)
        draw, marks = ImageDraw.Draw(texts), ring_marks(AT_FIRST)
        for text, colour, place, _ in placed_texts(view, marks, self._visible(), space):
            write(draw, tuple(place), text, colour, SIZE, "mm", outlined=True)
        self._captions.show(texts)
        self._captions.widget.visible = True
        self._redraws = [time.monotonic() + after for after in DRAWN_AFTER]

    def _key(self, event) -> bool:
        name = self._key_names.get(int(event.key))
        if event.type != self._gui.KeyEvent.Type.DOWN or name is None:
            return False
        if name == SCREENSHOT:
            self._screenshot = True
        elif name in TOGGLES:
            self._hidden ^= {TOGGLES[name]}
        elif name == "q":
            self._open = False
        elif name == "r":
            self._camera.look_from_behind()
        elif name == "t":
            self._camera.look_down(self._shown)
        elif name == "f":
            self._camera.follow_next(self._shown.detections or EMPTY)
        elif name == "p":
            self._point_size = (self._point_size + 1) % len(POINT_SIZES)
        elif name == "c":
            there = colourings(self._shown)
            place = there.index(self._colour_by) if self._colour_by in there else 0
            self._colour_by = there[(place + 1) % len(there)]
            self._content.show(self._shown, self._colour_by)
        elif name == "h":
            self._list.widget.visible = not self._list.widget.visible
        else:
            self._send(name)
        self._placed = None
        return True

    def _send_screenshot(self, image) -> None:
        """The picture of the window, with the texts as on other pictures."""
        if not self._screenshot:  # an earlier request was answered
            return
        self._screenshot = False
        picture = np.array(image)[..., :3]
        view = self._camera.viewpoint(1.0)._replace(size=picture.shape[1::-1])
        # Not through the pipe: both ends would wait if the program sends a scene at this moment.
        with NamedTemporaryFile(prefix=f"{NAME}_", suffix=".npy", delete=False) as file:
            np.save(file, lay_over(picture, view, ring_marks(AT_FIRST), self._visible()))
        self._send(Path(file.name))

    def _close(self) -> bool:
        self._open = False
        return True

    def _layout(self, _=None) -> None:
        area, scale = self._window.content_rect, self._window.scaling
        gap, list_gap = MARGIN * scale, 2 * (MARGIN + self._help.size[1]) * scale
        left, top = area.x + gap, area.y + gap
        right, bottom = area.x + area.width - gap, area.y + area.height
        self._widget.frame = area
        self._captions.put(area.x, area.y, scale)
        self._title.put(left, top, scale)
        self._figures.put(left, top + 1.5 * self._title.size[1] * scale, scale)
        self._inset.put(right - self._inset.size[0] * scale, top, scale)
        self._legend.put(left, bottom - gap - self._legend.size[1] * scale, scale)
        for text, above in ((self._help, gap), (self._list, list_gap)):
            wide, high = text.size
            text.put(right - wide * scale, bottom - above - high * scale, scale)

    def _text(self, image: Image.Image) -> WindowText:
        text = WindowText(self._gui, image, self._upside_down)
        # A click on a text gives it the keys.
        text.widget.set_on_key(lambda event: int(self._key(event)))
        self._window.add_child(text.widget)
        return text


class WindowUnavailable(RuntimeError):
    """No window can be opened here; the text is one line with the reason."""


class Window:
    """Opens at once, in a process of its own; the mouse and the keys that `h` shows turn the view.

    Use it as a context manager, so that it closes however the block ends.
    """

    def __init__(self, keys: Mapping[str, str], colour_by: str = "height"):
        """keys: the actions of the program's own keys, for the help, e.g. {"left, right": "turn
        pages"}, by Open3D's names (gui.KeyName) in lower case; `wait` hands them to the program.
        With SCREENSHOT among them, the picture of the window is then in `screenshots`. colour_by:
        of the points, at first: one of style.COLOURINGS.

        Raises WindowUnavailable where no window can be opened.
        """
        problem = display_problem()
        if problem:
            raise WindowUnavailable(problem)
        self.open = True
        self.screenshots: list[np.ndarray] = []  # [H, W, 3] uint8, not yet taken by the program
        choices = (True, False) if processor_draws() else (False,)  # some X servers lack OpenGL
        if not any(self._opens(dict(keys), colour_by, opengl) for opengl in choices):
            raise WindowUnavailable(f"Open3D cannot open a window here; {REMEDY}")

    def _opens(self, *arguments: Any) -> bool:
        """Start Open3D's process; False where it ends before its window is open."""
        self._process = Open3DProcess(serve, *arguments)
        try:
            for patience in (STARTING, OPENING):  # imported, then opened
                if not self._process.has_answer(patience):
                    raise WindowUnavailable("Open3D's window does not open")
                self._process.answer()
            return True
        except EOFError:
            self._process.close()
            return False
        except BaseException:
            self._process.close()
            raise

    def __enter__(self) -> "Window":
        return self

    def __exit__(self, *_):
        self._process.close()

    def show(self, shown: Shown) -> None:
        """Replace the content of the window; the view stays.

        Raises OSError where the window was lost.
        """
        truth, found = (
            boxes and boxes._replace(names=tuple(map(legible, boxes.names)))
            for boxes in (shown.ground_truth, shown.detections)
        )
        shown = shown._replace(title=legible(shown.title), scores=None)
        try:
            self._process.send(shown._replace(ground_truth=truth, detections=found))
        except OSError:
            self.wait(0)

    def wait(self, seconds: float | None = None) -> list[str]:
        """The keys that were pressed since the last call; waits for one, at most so long, or until
        the user closes the window, which is then not `open` any more.

        Raises OSError where the window was lost.
        """
        keys: list[str] = []
        while self.open and self._process.has_answer(0 if keys else seconds):
            try:
                answer = self._process.answer()
            except (EOFError, OSError):
                raise OSError("the window was lost; does the display still answer?") from None
            if isinstance(answer, str):
                keys.append(answer)
            else:
                self.screenshots.append(np.load(answer))
                answer.unlink()
                keys.append(SCREENSHOT)
            self.open = keys[-1] != CLOSED
        return [key for key in keys if key != CLOSED]
