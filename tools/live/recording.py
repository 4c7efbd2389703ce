"""The live view without a display: pictures into a film or numbered PNGs."""

from __future__ import annotations

import queue
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import numpy as np
from tqdm import tqdm

from data.files import make_folder
from data.live.queue import ScanQueue
from data.live.scan import Trouble
from detector.draw.birds_eye import draw_birds_eye
from detector.draw.film import Film
from detector.draw.png import require_own, save_png
from detector.draw.scene import SceneRenderer, SceneUnavailable
from detector.draw.view import View
from detector.live import LiveDetection, LiveFrame
from tools.live.view import LiveView, Shown

WAIT = 0.1  # seconds


def frames_of(frames: LiveDetection, view: LiveView) -> Iterator[LiveFrame]:
    """Each frame as it comes; troubles are reported."""
    while True:
        try:
            frame = frames.get(WAIT)
        except queue.Empty:
            continue
        if frame is None:
            return
        if isinstance(frame, Trouble):
            view.report(frame)
        else:
            yield frame


class Recorder:
    """Draws frames and writes the pictures."""

    def __init__(self, film: Film | None, folder: Path | None, ground: View):
        """ground: what is drawn from above where there are no pictures in 3-D."""
        self._film, self._folder, self._ground = film, folder, ground
        self._written = 0

    def record(self, frames: LiveDetection, scans: ScanQueue, view: LiveView) -> None:
        """All frames, until the scans end."""
        with SceneRenderer() as renderer, ExitStack() as stack:
            stack.callback(self._tell)
            draw = partial(self._draw, renderer)
            for frame in tqdm(frames_of(frames, view), unit="frame", disable=None):
                shown = view.shown(frame, scans.dropped)
                try:
                    picture = draw(shown)
                except SceneUnavailable as error:
                    tqdm.write(f"note: {error}; drawn from above instead", file=sys.stderr)
                    draw = self._draw_from_above
                    picture = draw(shown)
                self._write(picture)

    def _draw(self, renderer: SceneRenderer, shown: Shown) -> np.ndarray:
        return renderer.draw(*shown)

    def _draw_from_above(self, shown: Shown) -> np.ndarray:
        figures = "     ".join(f"{name} {value}" for name, value in shown.figures.items())
        title = f"{shown.title}     {figures}"
        return draw_birds_eye(shown.points, None, shown.detections, title, view=self._ground)

    def _write(self, picture: np.ndarray) -> None:
        if self._film is not None:
            self._film.add(picture)
        if self._folder is not None:
            save_png(self._folder / f"{self._written:06d}.png", picture)
        self._written += 1

    def _tell(self) -> None:
        places = [self._film and self._film.path, self._folder]
        for place in filter(None, places):
            print(f"{self._written} pictures written to {place}")


def begin_pictures(folder: Path) -> None:
    """Make a folder ready: the pictures of an earlier film would mingle with the new ones.

    Raises ValueError, with nothing removed, where a numbered picture is not this program's.
    """
    make_folder(folder)
    old = [path for path in sorted(folder.glob("*.png")) if path.stem.isdecimal()]
    for path in old:
        require_own(path)
    for path in old:
        path.unlink()
    if old:
        print(f"{len(old)} pictures of an earlier film removed from {folder}")
