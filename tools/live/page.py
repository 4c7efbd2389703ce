"""The live view in a web browser."""

from __future__ import annotations

import queue
import time

from data.live.queue import ScanQueue
from data.live.scan import Trouble
from detector.draw.browser import BrowserView
from detector.live import LiveDetection, LiveFrame
from tools.live.view import LiveView

TURN = 0.05  # seconds between two looks at what the user chose


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
                time.sleep(TURN)
                continue
            try:
                frame = self._frames.get(TURN)
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
            self._browser.show(*self._view.shown(self._frame, self._scans.dropped))
