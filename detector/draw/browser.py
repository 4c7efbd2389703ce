"""The scene in a web browser, for machines without a display of their own; served by viser."""

from __future__ import annotations

import logging
import secrets
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, redirect_stdout
from dataclasses import replace
from html import escape
from http import HTTPStatus
from importlib import import_module
from typing import Any

import numpy as np

from millisecond.data.boxes import box_corners
from millisecond.data.files import require
from millisecond.detector.draw.scene import (
    COLOUR_BY,
    EYE,
    FIELD_OF_VIEW,
    GROUND,
    RING,
    RINGS,
    TARGET,
    box_lines,
    point_colours,
    ring_segments,
    trail_colours,
    within_reach,
)
from millisecond.detector.draw.style import BACKGROUND, EMPTY, BoxSet, Shown

HOST = "127.0.0.1"  # reached by SSH
NAMES = ("localhost", HOST)  # that a browser may call it by
PORT = 8080
THICK, THIN = 2.5, 1.5  # pixels


class BrowserView:
    """Serves a page that shows a scan and its boxes, and can show another one at any time.

    Only requests with the `token`, a word of the page's address, are answered. Use it as a context
    manager: the server ends with the block.
    """

    def __init__(self, port: int, score: float):
        """score: where the slider of the least score stands at first.

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
        self._labels: list[Any] = []
        self._image: Any = None
        self._prepare_scene()
        self._prepare_panel(score)

    def __enter__(self) -> BrowserView:
        return self

    def __exit__(self, *_: object) -> None:
        with redirect_stdout(None):
            self._server.stop()

    @property
    def choices(self) -> tuple[float, bool]:
        """The least score that the user wants to see, and whether the scans are to pause."""
        return self._score.value, self._paused.value

    def show(self, shown: Shown) -> None:
        """Replace what every page that is open shows."""
        points, found = within_reach(shown.points), shown.detections or EMPTY
        with self._server.atomic():
            self._server.scene.add_point_cloud(
                "/points",
                points[:, :3].astype(np.float32),
                (point_colours(points, self._colour_by.value) * 255).astype(np.uint8),
                point_size=0.04,
                point_shading="flat",
            )
            truth = shown.ground_truth or EMPTY
            self._lines("/ground truth", *box_lines(truth, dashed=True)[:2], THICK)
            self._lines("/detections", *box_lines(found, dashed=False)[:2], THICK)
            trails = found if self._trails.value else EMPTY
            self._lines("/trails", *trail_colours(trails), THIN)
            self._write_captions(found)
            rows = "\n".join(f"| {name} | {value} |" for name, value in shown.figures.items())
            self._text.content = f"**{shown.title}**\n\n| | |\n|---|---|\n{rows}"
            self._legend.content = legend(found)
            self._show_image(shown.inset)

    def _prepare_scene(self) -> None:
        server = self._server
        server.gui.configure_theme(dark_mode=True, show_logo=False, show_share_button=False)
        server.scene.set_up_direction("+z")
        server.scene.set_background_image(np.full((1, 1, 3), BACKGROUND, np.uint8))
        server.initial_camera.position, server.initial_camera.look_at = tuple(EYE), tuple(TARGET)
        server.initial_camera.fov = float(np.radians(FIELD_OF_VIEW))
        segments = ring_segments(180)
        self._lines("/rings", segments, np.full((len(segments), 3), np.array(RING) / 255), THIN)
        for metres in RINGS:
            server.scene.add_label(
                f"/distance {metres}", f"{metres} m", position=(metres, 0, GROUND)
            )

    def _prepare_panel(self, score: float) -> None:
        gui = self._server.gui
        gui.set_panel_label("millisecond")
        self._text = gui.add_markdown("waiting for the first scan")
        self._legend = gui.add_html("")
        self._paused = gui.add_checkbox("pause", False)
        self._score = gui.add_slider("score from", 0.0, 1.0, 0.05, score)
        self._trails = gui.add_checkbox("trails", True)
        self._colour_by = gui.add_dropdown("points by", COLOUR_BY)

    def _lines(self, name: str, segments: np.ndarray, colours: np.ndarray, pixels: float) -> None:
        """segments [S, 2, 3], colours [S, 3] from 0 to 1."""
        # The page takes the colours of lines for linear light and encodes them as sRGB.
        linear = np.where(colours <= 0.04045, colours / 12.92, ((colours + 0.055) / 1.055) ** 2.4)
        both = np.repeat((linear * 255).round().astype(np.uint8)[:, None], 2, axis=1)
        self._server.scene.add_line_segments(
            name,
            segments.astype(np.float32),
            both,
            thickness=pixels,
            thickness_units="screen",
            visible=len(segments) > 0,
        )

    def _write_captions(self, found: BoxSet) -> None:
        corners = box_corners(np.asarray(found.boxes, np.float64))
        tops = corners.mean(axis=1) + (0, 0, 0.4) + (0, 0, 0.5) * np.ptp(corners, axis=1)
        captions = found.captions()
        for label in self._labels[len(captions) :]:
            label.remove()
        del self._labels[len(captions) :]
        for i, (caption, top) in enumerate(zip(captions, tops, strict=True)):
            if i == len(self._labels):
                label = self._server.scene.add_label(
                    f"/captions/{i}", caption, position=tuple(top), anchor="bottom-center"
                )
                self._labels.append(label)
            else:
                self._labels[i].text, self._labels[i].position = caption, tuple(top)

    def _show_image(self, inset: np.ndarray | None) -> None:
        if inset is None and self._image is not None:
            self._image.remove()
            self._image = None
        elif inset is not None and self._image is None:
            self._image = self._server.gui.add_image(inset, label="camera", format="jpeg")
        elif inset is not None:
            self._image.image = inset


def legend(shown: BoxSet) -> str:
    """The classes that occur with their colours, as HTML."""
    colours = sorted(set(zip(shown.names, shown.colours, strict=True)))
    squares = (
        f'<span style="color: rgb{colour}">&#9632;</span> {escape(name)}'
        for name, colour in colours
    )
    return f'<div style="padding: 0 0.8em">{" &nbsp; ".join(squares)}</div>'


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
