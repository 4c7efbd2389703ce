"""Play a folder of scans at 10 Hz through the detector: in a window, or into numbered PNGs."""

if __name__ == "__main__":
    import sys
    from pathlib import Path

    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

    from tools import program

    program.begin()

import argparse
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path

import numpy as np
from tqdm import tqdm

from data.detections import NamedDetections
from data.files import make_folder
from data.kitti.points import find_scans, read_points
from detector.detector import Detector
from detector.draw.birds_eye import draw_birds_eye
from detector.draw.png import require_own, save_png
from detector.draw.scene import SceneRenderer, SceneUnavailable
from detector.draw.style import Palette
from detector.draw.view import View
from detector.draw.window import Window, WindowUnavailable
from tools.drawing import NOTHING, Account, Shown, detect
from tools.program import output_path, run
from tools.program import score as shown_score

EXAMPLE = """examples:
  python tools/play.py 2011_09_26_drive_0005_sync/velodyne_reduced --weights second.safetensors
  python tools/play.py scans --weights second.safetensors --output film

Scans are played in the order of their names. A machine that needs more than 100 ms per scan plays
them more slowly and leaves none out. Latency is the time from points to boxes. The frames per
second are those of the window or, with PNGs, those that detection alone would reach. A scan that
cannot be read is reported and left out; the exit code is then 2. In the window, h shows all keys.
PNGs replace those of an earlier film in the same folder.
"""
PERIOD = 0.1  # seconds between two scans
FOLDER = Path("output/film")
KEYS = {"space": "pause, go on", "right": "one scan on, in a pause"}


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    return run(lambda: show(options))


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=EXAMPLE, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("source", type=Path, help="folder of .bin files")
    parser.add_argument("--weights", type=Path, required=True, help="weights file")
    parser.add_argument("--device", help="to detect on: cpu, cuda (a GPU if there is one)")
    parser.add_argument(
        "--score",
        type=shown_score,
        default=0.3,
        help="least score that is drawn (default: %(default)s)",
    )
    parser.add_argument(
        "--output", type=output_path, metavar="DIR", help="write PNGs here, no window"
    )
    return parser.parse_args(arguments)


def show(options: argparse.Namespace) -> int:
    """Open the window, or write the film where there is no display."""
    scans = find_scans([options.source])
    detector = Detector.from_weights(options.weights, options.device)
    warm_up(detector, scans)
    palette = Palette(detector.config.class_names)
    if options.output is None:
        try:
            # The window closes first: a detection that has begun is waited for.
            with ThreadPoolExecutor(1) as pool, Window(KEYS) as window:
                account = Account(options.score, palette, at_once=True)
                begin = partial(pool.submit, detect_in, detector, account)
                Player(window, account).play(scans, begin)
                return account.close(len(scans))
        except WindowUnavailable as error:
            print(f"note: {error}; writing PNGs", file=sys.stderr)
    account = Account(options.score, palette, at_once=False)
    film(scans, detector, account, options.output or FOLDER)
    return account.close(len(scans))


def warm_up(detector: Detector, scans: Sequence[Path]) -> None:
    """Detect once: the first call is slow, e.g. it compiles the kernels."""
    for scan in scans:
        with suppress(ValueError, OSError):  # reported when it is the scan's turn
            detect(detector, read_points(scan))
            return


def detect_in(
    detector: Detector, account: Account, scan: Path
) -> tuple[np.ndarray, NamedDetections, float]:
    """The points of a scan, what is found in them, and the seconds from points to boxes."""
    points = read_points(scan)
    start = time.perf_counter()
    found, left_out = detect(detector, points)
    seconds = time.perf_counter() - start
    account.notes.add(scan.name, left_out + detector.examine(points))
    return points, found, seconds


def title_of(scan: Path, latency: float, rate: float, left_out: str) -> str:
    """rate: frames per second, 0 where it is not known."""
    speed = f"     {rate:.1f} frames per second" if rate else ""
    return f"{scan.stem}     latency {1000 * latency:.0f} ms{speed}  {left_out}"


class Player:
    """Shows scans in a window, and does what the keys say."""

    def __init__(self, window: Window, account: Account):
        self._window, self._account = window, account
        self._paused, self._steps = False, 0  # scans that a pause still lets through
        self._times: deque[float] = deque(maxlen=11)  # when the last scans were shown, seconds
        self._shown = NOTHING

    def play(self, scans: Sequence[Path], begin: Callable[[Path], Future]) -> None:
        """Show one scan after the other, and the last one until the window is closed.

        begin: starts the detection in a scan, so that keys are answered while it goes on.
        """
        due = time.perf_counter()
        for scan in scans:
            result = begin(scan)
            while self._held() or not result.done() or time.perf_counter() < due:
                self._answer(0.005)
                if not self._window.open:
                    return
            self._times.append(time.perf_counter())
            due = max(due + PERIOD, self._times[-1])
            self._steps = max(0, self._steps - 1)
            self._show(scan, result)
        self._window.show(*self._shown._replace(title=f"{self._shown.title}     the last scan"))
        while self._window.open:
            self._window.wait()

    def _held(self) -> bool:
        return self._paused and not self._steps

    def _show(self, scan: Path, result: Future) -> None:
        try:
            points, found, latency = result.result()
            boxes, left_out = self._account.best(scan.stem, found)
            passed = self._times[-1] - self._times[0]
            rate = (len(self._times) - 1) / passed if passed else 0.0
            title = title_of(scan, latency, rate, left_out)
            self._shown = Shown(points, None, boxes, title)
        except (ValueError, OSError) as error:
            self._shown = NOTHING._replace(title=self._account.bad(scan.stem, error))
        self._window.show(*self._marked())

    def _answer(self, seconds: float) -> None:
        """Handle the keys that are pressed within so many seconds."""
        for key in self._window.wait(seconds):
            if key == "space":
                self._paused, self._steps = not self._paused, 0
                self._window.show(*self._marked())
            elif key == "right" and self._paused:
                self._steps += 1
        if self._paused:
            self._times.clear()  # a pause says nothing about the rate

    def _marked(self) -> Shown:
        pause = "     paused" if self._paused else ""
        return self._shown._replace(title=self._shown.title + pause)


def film(scans: Sequence[Path], detector: Detector, account: Account, folder: Path) -> None:
    """Write 000000.png, 000001.png and so on; a scan that cannot be read gets no number."""
    begin_film(folder)
    latencies: deque[float] = deque(maxlen=10)
    written = 0
    with SceneRenderer() as renderer:
        draw = renderer.draw
        for scan in tqdm(scans, unit="scan", disable=None):
            try:
                points, found, latency = detect_in(detector, account, scan)
            except (ValueError, OSError) as error:
                account.bad(scan.stem, error)
                continue
            latencies.append(latency)
            rate = len(latencies) / sum(latencies)
            boxes, left_out = account.best(scan.stem, found)
            shown = Shown(points, None, boxes, title_of(scan, latency, rate, left_out))
            try:
                picture = draw(*shown)
            except SceneUnavailable as error:
                tqdm.write(f"note: {error}; drawn from above instead", file=sys.stderr)
                draw = partial(draw_birds_eye, view=View.of_grid(detector.config.grid.range))
                picture = draw(*shown)
            save_png(folder / f"{written:06d}.png", picture)
            written += 1
    print(f"{written} pictures written to {folder}")


def begin_film(folder: Path) -> None:
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


if __name__ == "__main__":
    sys.exit(main())
