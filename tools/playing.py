"""Parts of `millisecond demo`: the shown frame, then its places: a window, a film, a browser."""

from __future__ import annotations

import queue
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
from tqdm import tqdm

from millisecond.data.files import make_folder
from millisecond.data.live.queue import ScanQueue
from millisecond.data.live.scan import LiveScan, Trouble
from millisecond.detector.draw.birds_eye import draw_birds_eye
from millisecond.detector.draw.browser import BrowserView
from millisecond.detector.draw.camera import draw_inset, read_image
from millisecond.detector.draw.film import Film
from millisecond.detector.draw.png import require_own, save_png
from millisecond.detector.draw.scene import SceneRenderer, SceneUnavailable
from millisecond.detector.draw.style import BoxSet, Palette, Shown
from millisecond.detector.draw.view import View
from millisecond.detector.draw.window import Window
from millisecond.detector.draw.window_view import SCREENSHOT, TRACK_KEYS
from millisecond.detector.following import LiveDetection, LiveFrame, Statistics, milliseconds
from millisecond.tools.program import one_line

INSET = (540, 300)  # pixels, the largest width and height of the camera's image


@dataclass
class Choices:
    """What the user can change while it runs."""

    score: float  # the least that is shown
    hidden: set[str] = field(default_factory=set)  # classes
    speed: float = 1.0
    paused: bool = False


class LiveView:
    """Turns frames into what is shown of them."""

    def __init__(
        self, classes: Sequence[str], choices: Choices, statistics: Statistics, paced: bool = True
    ):
        """paced: by the detection; otherwise the rate says how fast pictures are written."""
        self._paced = paced
        self.classes, self.choices, self._statistics = classes, choices, statistics
        self._palette = Palette(classes)
        self._bad_images: set[str] = set()  # the lines that were printed

    def shown(self, frame: LiveFrame, dropped: int) -> Shown:
        """dropped: scans until now."""
        objects = frame.objects(self.choices.score, self.choices.hidden)
        boxes = self._palette.paint(objects.boxes, objects.names, objects.scores)
        boxes = boxes._replace(ids=objects.ids, trails=objects.trails)
        inset = self._inset(frame.scan, boxes)
        title = frame.scan.name + ("     paused" if self.choices.paused else "")
        figures = self._figures(dropped)
        return Shown(frame.scan.points, None, boxes, title, figures, inset)

    def report(self, trouble: Trouble) -> None:
        """Print what could not be read, or what else is to be known."""
        print(f"{'error' if trouble.lost else 'note'}: {trouble.text}", file=sys.stderr)

    def _figures(self, dropped: int) -> dict[str, str]:
        statistics, choices = self._statistics, self.choices
        (p99,) = statistics.percentiles(99, recent=True)
        figures = {
            "latency": milliseconds(statistics.latency),
            "p99": milliseconds(p99),
            "score from": f"{choices.score:.2f}",
        }
        if self._paced:
            figures["frames per second"] = f"{statistics.rate:.1f}"
            figures["dropped"] = f"{dropped}"
        if choices.speed != 1:
            figures["speed"] = f"x {choices.speed:g}"
        if choices.hidden:
            figures["hidden"] = ", ".join(name for name in self.classes if name in choices.hidden)
        return figures

    def _inset(self, scan: LiveScan, boxes: BoxSet) -> np.ndarray | None:
        """None where there is no image; one that cannot be read is a trouble."""
        if scan.image is None:
            return None
        try:
            return draw_inset(read_image(scan.image), scan.calibration, boxes, INSET)
        except (ValueError, OSError) as error:
            if str(error) not in self._bad_images:
                self._bad_images.add(str(error))
                self._statistics.troubles += 1
                self.report(Trouble(str(error)))
            return None


SPEEDS = (0.125, 8.0)  # times the sensor's
STEP = 0.05  # of the score
SCREENSHOTS = Path("output/screenshots")
KEY_TURN = 0.005  # seconds between two looks at keys and frames


def keys_for(classes: Sequence[str]) -> dict[str, str]:
    """The keys and what they do, for the window's list."""
    shown = classes[:9]
    numbers = f"1 to {len(shown)}" if len(shown) > 1 else "1"
    return {
        "space": "pause, go on",
        "right": "one scan on, in a pause",
        "[, ]": "slower, faster",
        "up, down": "least score that is shown: more, less",
        numbers: f"{', '.join(shown)} off, on",
        **TRACK_KEYS,
        SCREENSHOT: "screenshot",
    }


class Player:
    """Shows frames in a window as they come, and does what the keys say."""

    def __init__(self, window: Window, scans: ScanQueue, frames: LiveDetection, view: LiveView):
        self._window, self._scans, self._frames, self._view = window, scans, frames, view
        self._frame: LiveFrame | None = None
        self._steps, self._asked = 0, False  # scans that a pause lets through; is one on its way

    def play(self) -> None:
        """Until the scans end or the window is closed."""
        while self._window.open:
            for key in self._window.wait(KEY_TURN):
                self._answer(key)
            if self._view.choices.paused and not self._steps:
                continue
            try:
                frame = self._frames.get(0)
            except queue.Empty:
                if self._steps and not self._asked:
                    self._scans.step()
                    self._asked = True
                continue
            if frame is None:
                return
            if isinstance(frame, Trouble):
                self._view.report(frame)
                continue
            self._steps, self._asked = max(0, self._steps - 1), False
            self._frame = frame
            self._show()

    def _show(self) -> None:
        if self._frame is not None:
            self._window.show(self._view.shown(self._frame, self._scans.dropped))

    def _answer(self, key: str) -> None:
        choices = self._view.choices
        if key == SCREENSHOT:
            self._save_screenshots()
            return
        if key == "space":
            choices.paused, self._steps = not choices.paused, 0
            self._scans.pause(choices.paused)
            self._frames.statistics.rest()
        elif key == "right":
            self._steps += choices.paused
            return
        elif key in ("[", "]"):
            factor = 2.0 if key == "]" else 0.5
            choices.speed = min(max(choices.speed * factor, SPEEDS[0]), SPEEDS[1])
            self._scans.set_speed(choices.speed)
        elif key in ("up", "down"):
            score = choices.score + (STEP if key == "up" else -STEP)
            choices.score = round(min(max(score, 0.0), 1.0), 2)
        else:
            choices.hidden ^= {self._view.classes[int(key) - 1]}
        self._show()

    def _save_screenshots(self) -> None:
        name = self._frame.scan.name if self._frame is not None else "nothing"
        for picture in self._window.screenshots:
            try:
                path = free_name(SCREENSHOTS / f"{Path(name).name}.png")
                save_png(path, picture)
                print(f"screenshot written to {path}")
            except (ValueError, OSError) as error:  # no reason to end the view
                print(f"error: {one_line(error)}", file=sys.stderr)
        self._window.screenshots.clear()


def free_name(path: Path) -> Path:
    """The path, or the first of path_2, path_3 and so on that is not there."""
    make_folder(path.parent)
    number, free = 2, path
    while free.exists():
        free, number = path.with_stem(f"{path.stem}_{number}"), number + 1
    return free


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
        return renderer.draw(shown)

    def _draw_from_above(self, shown: Shown) -> np.ndarray:
        figures = "     ".join(f"{name} {value}" for name, value in shown.figures.items())
        title = f"{shown.title}     {figures}"
        return draw_birds_eye(shown._replace(title=title), view=self._ground)

    def _write(self, picture: np.ndarray) -> None:
        if self._film is not None:
            self._film.add(picture)
        if self._folder is not None:
            save_png(self._folder / f"{self._written:06d}.png", picture)
        self._written += 1

    def _tell(self) -> None:
        if self._film is not None:
            self._film.close()
            print(f"{self._film.pictures} pictures written to {self._film.path}")
        if self._folder is not None:
            print(f"{self._written} pictures written to {self._folder}")


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


PAGE_TURN = 0.05  # seconds between two looks at what the user chose


class Page:
    """Shows frames on a page as they come, and does what its panel says."""

    def __init__(
        self, browser: BrowserView, scans: ScanQueue, frames: LiveDetection, view: LiveView
    ):
        self._browser, self._scans, self._frames, self._view = browser, scans, frames, view
        self._frame: LiveFrame | None = None

    def play(self) -> None:
        """Until the scans end."""
        while True:
            self._obey()
            if self._view.choices.paused:
                time.sleep(PAGE_TURN)
                continue
            try:
                frame = self._frames.get(PAGE_TURN)
            except queue.Empty:
                continue
            if frame is None:
                return
            if isinstance(frame, Trouble):
                self._view.report(frame)
            else:
                self._frame = frame
                self._show()

    def _obey(self) -> None:
        choices, (score, paused) = self._view.choices, self._browser.choices
        if (score, paused) == (choices.score, choices.paused):
            return
        if paused != choices.paused:
            self._scans.pause(paused)
            self._frames.statistics.rest()
        choices.score, choices.paused = score, paused
        self._show()

    def _show(self) -> None:
        if self._frame is not None:
            self._browser.show(self._view.shown(self._frame, self._scans.dropped))
