"""A window that shows a scan and its boxes, and can show another one at any time."""

from collections.abc import Mapping

import numpy as np

from millisecond.detector.draw.open3d_process import REMEDY, Open3DProcess, display_problem
from millisecond.detector.draw.style import Shown
from millisecond.detector.draw.text import legible
from millisecond.detector.draw.window_view import CLOSED, SCREENSHOT, serve

STARTING, OPENING = 120.0, 15.0  # seconds


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
        "height" or "intensity" of the points, at first.

        Raises WindowUnavailable where no window can be opened.
        """
        problem = display_problem()
        if problem:
            raise WindowUnavailable(problem)
        self.open = True
        self.screenshots: list[np.ndarray] = []  # [H, W, 3] uint8, not yet taken by the program
        self._process = Open3DProcess(serve, dict(keys), colour_by)
        try:
            for patience in (STARTING, OPENING):  # imported, then opened
                if not self._process.has_answer(patience):
                    raise WindowUnavailable("Open3D's window does not open")
                self._process.answer()
        except EOFError:
            self._process.close()
            raise WindowUnavailable(f"Open3D cannot open a window here; {REMEDY}") from None
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
        title = legible(shown.title)
        try:
            self._process.send(shown._replace(ground_truth=truth, detections=found, title=title))
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
