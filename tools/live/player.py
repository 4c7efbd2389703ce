"""The live view in a window, with its keys."""

from __future__ import annotations

import queue
import sys
from collections.abc import Sequence
from pathlib import Path

from data.files import make_folder
from data.live.queue import ScanQueue
from data.live.scan import Trouble
from detector.draw.png import save_png
from detector.draw.window import Window
from detector.draw.window_view import SCREENSHOT, TRACK_KEYS
from detector.live import LiveDetection, LiveFrame
from tools.live.view import LiveView
from tools.program import one_line

SPEEDS = (0.125, 8.0)  # times the sensor's
STEP = 0.05  # of the score
SCREENSHOTS = Path("output/screenshots")
TURN = 0.005  # seconds between two looks at keys and frames


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
            for key in self._window.wait(TURN):
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
            self._window.show(*self._view.shown(self._frame, self._scans.dropped))

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
