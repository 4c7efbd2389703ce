"""The scene in a web browser, for machines without a display of their own; served by viser."""

from __future__ import annotations

import logging
import secrets
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, redirect_stdout
from dataclasses import replace
from http import HTTPStatus
from importlib import import_module
from threading import Lock, RLock
from typing import Any, NamedTuple

import numpy as np

from millisecond.data.files import require
from millisecond.data.metric.kitti import MATCHED
from millisecond.detector.draw.camera import draw_inset
from millisecond.detector.draw.objects import figures_of
from millisecond.detector.draw.scene import (
    AT_FIRST,
    EYE,
    FIELD_OF_VIEW,
    INSET,
    RING,
    TARGET,
    box_lines,
    placed_texts,
    ring_marks,
    ring_segments,
    visible_points,
)
from millisecond.detector.draw.style import (
    BACKGROUND,
    COLOURINGS,
    EMPTY,
    LIVE,
    TEXT,
    Colour,
    Shown,
    motion_lines,
)
from millisecond.detector.draw.text import SIZE, FreeSpace, legend, line
from millisecond.detector.draw.view import Viewpoint, first_hit

HOST = "127.0.0.1"  # reached by SSH
NAMES = ("localhost", HOST)  # that a browser may call it by
PORT = 8080
PICKED, THICK, THIN = 5.0, 2.5, 1.5  # pixels
PANEL = 290  # pixels: width of the legend in the panel
INVITED = "click on a box for its figures"


class Stills(NamedTuple):
    """Scans that stand still: a page shows the one that its user chooses."""

    frames: int
    first: int  # that it shows at first, from 0
    by_error: bool | None  # whether boxes are coloured by error at first; None: there are no errors


class BrowserView:
    """Serves a page that shows a scan and its boxes, and can show another one at any time.

    Only requests with the `token`, a word of the page's address, are answered. Use it as a context
    manager: the server ends with the block.
    """

    def __init__(self, port: int, scans: float | Stills, colour_by: str = "height"):
        """scans: of a stream, where the slider of the least score stands at first, see `choices`;
        or scans that stand still, see `still`. colour_by: of the points at first, one of
        style.COLOURINGS.

        Raises ValueError where viser is missing, OSError where the port is taken.
        """
        viser = require("viser", "the view in a browser")
        _require_free(port)
        self.port, self.token = port, secrets.token_urlsafe(16)
        logging.getLogger("websockets").setLevel(logging.CRITICAL)  # other clients than browsers
        # The program says itself where the page is.
        with redirect_stdout(None), ExitStack() as stack:
            with guarded(self.token):
                self._server = viser.ViserServer(HOST, port, label="millisecond", verbose=False)
                stack.callback(self._server.stop)
            stack.pop_all()  # it is guarded, and goes on
        self._texts: dict[int, PageTexts] = {}  # by the number of the page
        self._image: Any = None
        self._shown = Shown()
        self._picked: tuple[str, int] | None = None  # a set and a row of it
        self._lock = RLock()  # the panel changes while another scan comes
        self._prepare_scene()
        self._prepare_panel(scans, colour_by)
        self._server.on_client_connect(self._welcome)
        self._server.on_client_disconnect(lambda page: self._texts.pop(page.client_id, None))

    def __enter__(self) -> BrowserView:
        return self

    def __exit__(self, *_: object) -> None:
        with redirect_stdout(None):
            self._server.stop()

    @property
    def choices(self) -> tuple[float, bool]:
        """The least score that the user wants to see, and whether the scans are to pause."""
        return self._score.value, self._paused.value

    @property
    def still(self) -> tuple[int, bool]:
        """The frame that the user wants to see, from 0, and whether with boxes by error."""
        return self._frame.value - 1, self._boxes_by.value == "error"

    def show(self, shown: Shown) -> None:
        """Replace what every page that is open shows."""
        with self._lock:
            self._picked = again(self._picked, self._shown, shown)
            self._show(shown)

    def _show(self, shown: Shown) -> None:
        points, colours = visible_points(shown, self._colour_by.value)
        found = shown.detections or EMPTY
        with self._server.atomic():
            places, add = points[:, :3].astype(np.float32), self._server.scene.add_point_cloud
            add("/points", places, colours, point_size=0.04, point_shading="flat")
            truth = shown.ground_truth or EMPTY
            self._lines("/ground truth", *box_lines(truth, dashed=True)[:2], THICK)
            self._lines("/detections", *box_lines(found, dashed=False)[:2], THICK)
            trails = found if self._trails.value else EMPTY
            self._lines("/trails", *motion_lines(trails), THIN)
            self._text.content = f"**{plain(shown.title)}**\n\n{table(shown.figures)}"
            self._legend.image = np.asarray(legend(shown.sets, PANEL))
            self._show_image(None if shown.photo is None else draw_inset(shown, INSET))
            self._shown = shown
            self._show_picked()
            for texts in list(self._texts.values()):
                texts.show(shown)

    def _click(self, ray: Any) -> None:
        """Of a click into the scene: the box under it is marked, and its figures are written."""
        with self._lock, self._server.atomic():
            origin, direction = np.array(ray.ray_origin), np.array(ray.ray_direction)
            sets = {}
            for name, shown in self._shown.sets.items():
                sets[name] = np.array(shown.boxes, np.float64)
                if shown is self._shown.ground_truth:  # of a match, the detection tells more
                    matched = [shown.verdict(row) == MATCHED for row in range(len(shown.names))]
                    sets[name][np.array(matched, bool)] = np.nan
            self._picked = first_hit(origin, direction, sets)
            self._show_picked()

    def _show_picked(self) -> None:
        picked, text = EMPTY, INVITED
        if self._picked is not None:
            name, row = self._picked
            picked = self._shown.sets[name]._replace(verdicts=())
            picked = picked._replace(boxes=picked.boxes[[row]], colours=(TEXT,))
            text = table(figures_of(self._shown, name, row))
        self._lines("/picked", *box_lines(picked, dashed=False)[:2], PICKED)
        self._figures.content = text

    def _welcome(self, page: Any) -> None:
        """Of a page that was opened: its texts follow its own camera."""
        _place(page.camera)  # a page that starts slowly has sometimes turned the first one
        texts = self._texts[page.client_id] = PageTexts(page)
        page.camera.on_update(lambda _: texts.show(self._shown))
        texts.show(self._shown)

    def _prepare_scene(self) -> None:
        server = self._server
        server.gui.configure_theme(dark_mode=True, show_logo=False, show_share_button=False)
        server.scene.set_up_direction("+z")
        server.scene.set_background_image(np.full((1, 1, 3), BACKGROUND, np.uint8))
        _place(server.initial_camera)
        segments = ring_segments(180)
        self._lines("/rings", segments, np.full((len(segments), 3), np.array(RING) / 255), THIN)

    def _prepare_panel(self, scans: float | Stills, colour_by: str) -> None:
        gui = self._server.gui
        gui.set_panel_label("millisecond")
        self._text = gui.add_markdown("loading")
        self._legend = gui.add_image(np.asarray(legend({}, 1)), format="png")
        if isinstance(scans, Stills):
            last = max(scans.frames, 2)  # a slider has two ends
            self._frame = gui.add_slider("frame", 1, last, 1, scans.first + 1)
            self._frame.visible, judged = scans.frames > 1, scans.by_error is not None
            by = "error" if scans.by_error else "class"
            self._boxes_by = gui.add_dropdown("boxes by", ("class", "error"), initial_value=by)
            self._boxes_by.visible, known = judged, COLOURINGS if judged else LIVE
        else:
            self._paused = gui.add_checkbox("pause", False)
            self._score = gui.add_slider("score from", 0.0, 1.0, 0.05, scans)
            known = LIVE
        self._trails = gui.add_checkbox("trails", True, visible=not isinstance(scans, Stills))
        self._colour_by = gui.add_dropdown("points by", known, initial_value=colour_by)
        self._figures = gui.add_markdown(INVITED)
        for choice in (self._colour_by, self._trails):
            choice.on_update(lambda _: self.show(self._shown))
        self._server.scene.on_click()(self._click)

    def _lines(self, name: str, segments: np.ndarray, colours: np.ndarray, pixels: float) -> None:
        """segments [S, 2, 3], colours [S, 3] from 0 to 1."""
        # The page takes the colours of lines for linear light and encodes them as sRGB.
        linear = np.where(colours <= 0.04045, colours / 12.92, ((colours + 0.055) / 1.055) ** 2.4)
        both = np.repeat((linear * 255).round().astype(np.uint8)[:, None], 2, axis=1)
        drawn = {"thickness": pixels, "thickness_units": "screen", "visible": len(segments) > 0}
        self._server.scene.add_line_segments(name, segments.astype(np.float32), both, **drawn)

    def _show_image(self, inset: np.ndarray | None) -> None:
        if inset is None and self._image is not None:
            self._image.remove()
            self._image = None
        elif inset is not None and self._image is None:
            self._image = self._server.gui.add_image(inset, label="camera", format="jpeg")
        elif inset is not None:
            self._image.image = inset


def _place(camera: Any) -> None:
    """Where every window looks from at first."""
    camera.position, camera.look_at = tuple(EYE), tuple(TARGET)
    camera.fov = float(np.radians(FIELD_OF_VIEW))


def plain(text: str) -> str:
    """Markdown that reads as this text, whatever signs it has."""
    return "".join(c if c.isalnum() or c in " .,:-" else f"&#{ord(c)};" for c in text)


def table(rows: Mapping[str, str]) -> str:
    """Names and values in Markdown."""
    lines = "\n".join(f"| {plain(name)} | {plain(value)} |" for name, value in rows.items())
    return f"| | |\n|---|---|\n{lines}"


def again(picked: tuple[str, int] | None, before: Shown, now: Shown) -> tuple[str, int] | None:
    """Where the picked box is in another scan, by the number of its track."""
    if picked is None or before is now:
        return picked
    name, row = picked
    old, new = before.sets[name].ids, now.sets.get(name, EMPTY).ids
    if old is None or new is None or not old[row]:
        return None
    rows = np.flatnonzero(new == old[row])
    return (name, int(rows[0])) if len(rows) else None


class PageTexts:
    """Captions and distances on one page: images that turn to its camera, as large as elsewhere."""

    def __init__(self, page: Any):
        """page: a client of viser."""
        self._page = page
        self._images: list[Any] = []
        self._written: list[tuple[str, Colour]] = []  # what each image says
        self._lock = Lock()  # the camera moves while another scan comes

    def show(self, shown: Shown) -> None:
        """Replace them by the texts of a scan, as the camera sees it now."""
        camera = self._page.camera
        with self._lock, self._page.atomic():
            view = viewpoint_of(camera)
            space, marks = FreeSpace((0, 0, *view.size)), ring_marks(AT_FIRST)
            placed = list(placed_texts(view, marks, shown, space))
            for i, (text, colour, place, depth) in enumerate(placed):
                image = self._image(i, text, colour)
                high, wide = image.image.shape[:2]
                metres = depth / view.focal  # of a pixel
                image.render_width, image.render_height = wide * metres, high * metres
                image.position, image.wxyz = tuple(view.point(place, depth)), tuple(camera.wxyz)
                image.visible = True
            for image in self._images[len(placed) :]:
                image.visible = False

    def _image(self, i: int, text: str, colour: Colour) -> Any:
        if i == len(self._images):
            pixels = np.asarray(line(text, SIZE, colour))
            add = self._page.scene.add_image
            shade = {"cast_shadow": False, "receive_shadow": False}
            self._images.append(add(f"/texts/{i}", pixels, 1.0, 1.0, format="png", **shade))
            self._written.append((text, colour))
        elif self._written[i] != (text, colour):
            self._images[i].image = np.asarray(line(text, SIZE, colour))
            self._written[i] = text, colour
        return self._images[i]


def viewpoint_of(camera: Any) -> Viewpoint:
    """Of a page's camera, whose axes are x right, y down, z forward."""
    w, x, y, z = np.asarray(camera.wxyz, np.float64)
    right = np.array([1 - 2 * (y * y + z * z), 2 * (x * y + w * z), 2 * (x * z - w * y)])
    down = np.array([2 * (x * y - w * z), 1 - 2 * (x * x + z * z), 2 * (y * z + w * x)])
    matrix = np.eye(4)
    matrix[:3, :3] = right, -down, -np.cross(right, down)
    matrix[:3, 3] = -matrix[:3, :3] @ np.asarray(camera.position, np.float64)
    size = camera.image_width, camera.image_height
    return Viewpoint(matrix, size[1] / 2 / np.tan(camera.fov / 2), size)


@contextmanager
def guarded(token: str) -> Iterator[None]:
    """A server of websockets that starts in the block answers only requests that `admitted` admits.

    viser has no place for such a check, so the check is put between viser and websockets. Raises
    ValueError where viser started its server past it.
    """
    server: Any = import_module("websockets.asyncio.server")
    serve, guards = server.serve, []

    def serve_guarded(*arguments: Any, process_request: Callable[..., Any], **options: Any) -> Any:
        def check(connection: Any, request: Any) -> Any:
            path = admitted(request.path, request.headers, token)
            if path is None:
                return connection.respond(HTTPStatus.FORBIDDEN, "open the address as printed\n")
            answer = process_request(connection, replace(request, path=path))
            if answer is not None:
                answer.headers["Referrer-Policy"] = "no-referrer"  # would give the token to others
            return answer

        guards.append(check)
        return serve(*arguments, process_request=check, **options)

    server.serve = serve_guarded
    try:
        yield
    finally:
        server.serve = serve
    if not guards:
        raise ValueError("this version of viser cannot be guarded: pip install -U viser")


def admitted(path: str, headers: Any, token: str) -> str | None:
    """The path behind the token; None for a request that is not from the page itself.

    Any site in the user's browser can send requests to this machine, and can have its own name
    point to it. Host then is that name, and Origin that site.
    """
    hosts, origins = headers.get_all("Host"), headers.get_all("Origin")
    word, _, rest = path.removeprefix("/").partition("/")
    if len(hosts) != 1 or hosts[0].partition(":")[0] not in NAMES:
        return None
    if origins not in ([], [f"http://{hosts[0]}"]):
        return None
    known = secrets.compare_digest(word.partition("?")[0].encode(), token.encode())
    return f"/{rest}" if known else None


def invitation(port: int, token: str) -> str:
    """Two lines: where the page is, and how to reach it from another machine."""
    return (
        f"open http://localhost:{port}/{token}/ in a browser; from another machine first type\n"
        f"  ssh -L {port}:localhost:{port} {socket.gethostname()}"
    )


def _require_free(port: int) -> None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError as error:
            raise OSError(f"port {port}: {error.strerror}; give another one to --browser") from None
