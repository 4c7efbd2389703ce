"""Live detection in recordings, sensors and simulated streets: in a window, a film, a browser."""

from __future__ import annotations

if __name__ == "__main__":
    from millisecond.tools import program

    program.start(__file__)

import argparse
import queue
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from millisecond.data.files import make_folder
from millisecond.data.live.messages import MessageFile, is_message_file
from millisecond.data.live.queue import ScanQueue
from millisecond.data.live.scan import LiveScan, Trouble
from millisecond.data.live.source import open_source
from millisecond.detector.config import PRECISIONS
from millisecond.detector.detector import Detector
from millisecond.detector.draw.browser import BrowserView, invitation
from millisecond.detector.draw.camera import read_image
from millisecond.detector.draw.film import Film
from millisecond.detector.draw.png import require_own, save_png
from millisecond.detector.draw.scene import SceneRenderer
from millisecond.detector.draw.sheets import Artist
from millisecond.detector.draw.style import LIVE, Palette, Photo, Shown
from millisecond.detector.draw.view import View
from millisecond.detector.draw.window import SCREENSHOT, Window, WindowUnavailable, keys_for
from millisecond.detector.following import LiveDetection, LiveFrame, Statistics, milliseconds
from millisecond.tools.program import (
    COLUMN_CONFIG,
    WEIGHTS,
    add_browser,
    add_mounting,
    columns_of,
    detector_of,
    number,
    one_line,
    output_path,
    parser_of,
    run,
    share,
)

EXAMPLE = """examples:
  millisecond demo 2011_09_26_drive_0005_sync
  millisecond demo street:36 --record street.mp4 --frames 100
  millisecond demo udp:2368 --record drive.mcap
  millisecond demo scans --weights output/mine/weights.safetensors --browser

Scans are played at the pace of the sensor. When the detection is slower, the oldest scan that waits
is dropped and counted. With --fast, and where a recording becomes a film, none is dropped. Latency
is the time from points on the host to boxes on the host. What cannot be read is reported and left
out; the exit code is then 2. Ctrl-C ends with a summary. In the window, h shows all keys. Without a
display the pictures become numbered PNGs, which replace the PNGs of an earlier film in the folder.
"""
USUAL = "--weights --device --score --loop --frames --record --output --browser"
FOLDER = Path("output/film")
KEYS = ("demo", "visualize, demo")  # of draw.window
SCREENSHOTS = Path("output/screenshots")
SPEEDS = (0.125, 8.0)  # times the sensor's
STEP = 0.05  # of the score
KEY_TURN, PAGE_TURN = 0.005, 0.05  # seconds between two looks at the user's wishes and the frames
WAIT = 0.1  # seconds for a frame that is recorded


def main(arguments: Sequence[str] | None = None) -> int:
    parser = parser_of(__doc__, EXAMPLE, USUAL)
    add = parser.add_argument
    add("source", help="see docs/live.md: a folder, a drive, a bag, a pcap, udp:PORT, street:SEED")
    add("--weights", type=Path, help=WEIGHTS)
    add("--config", type=Path, help=COLUMN_CONFIG)
    add("--device", help="to detect on: cpu, cuda (a GPU if there is one)")
    add("--precision", choices=sorted(PRECISIONS), help="of the network (default: fp32)")
    add(
        "--score",
        type=share,
        default=0.3,
        help="least score that is shown at first (default: %(default)s)",
    )
    add("--colour", choices=LIVE, default=LIVE[0], help="of the points (default: %(default)s)")
    add("--no-tracks", action="store_true", help="do not follow the objects from scan to scan")
    add("--ego", action="store_true", help="compensate the sensor's own motion, by kiss-icp")
    add = parser.add_argument_group("how it is played").add_argument
    add("--fast", action="store_true", help="as fast as it goes, not at the sensor's pace")
    add("--loop", action="store_true", help="play a recording again and again")
    add("--frames", type=number, metavar="N", help="end after so many frames")
    add = parser.add_argument_group("where it is shown, if not in a window").add_argument
    add(
        "--record",
        type=output_path,
        metavar="FILE",
        help="write a film (.mp4) or a recording of ROS 2 (.mcap)",
    )
    add("--output", type=output_path, metavar="DIR", help="write PNGs here")
    add_browser(parser)
    add_mounting(parser)
    options = parser.parse_args(arguments)
    if options.browser and (options.record or options.output):
        parser.error("--browser: not with --record or --output")
    if options.ego and options.no_tracks:
        parser.error("--ego: it compensates tracks, which --no-tracks leaves out")
    if options.output and is_message_file(options.record):
        parser.error("--output: not with a recording; PNGs go with a film (.mp4), or alone")
    return run(lambda: show(options))


def show(options: argparse.Namespace) -> int:
    """Open the window or the page, or write pictures where there is no display."""
    detector = detector_of(options)
    classes = detector.config.class_names
    source = open_source(options.source, options.loop, columns_of(options.config, detector.config))
    with ExitStack() as stack:
        place = open_place(options, source.rate, detector, stack)
        detector.warm_up()
        whole = isinstance(place, (Recorder, MessageRecorder)) and not source.live  # every scan
        scans = ScanQueue(source, options.fast or whole)
        drawn, tracked = isinstance(place, Recorder), not options.no_tracks
        frames = LiveDetection(scans, detector, tracked, options.ego, options.frames, drawn)
        stack.callback(report, frames, scans)  # once both threads have ended: they count until then
        stack.enter_context(scans)
        stack.enter_context(frames)
        view = LiveView(classes, Choices(options.score), frames.statistics, paced=not whole)
        if isinstance(place, (Recorder, MessageRecorder)):
            place.record(frames, scans, view)
        elif isinstance(place, BrowserView):
            print(invitation(place.port, place.token), flush=True)
            Page(place, scans, frames, view).play()
        else:
            Player(place, scans, frames, view).play()
    return 2 if frames.statistics.troubles else 0


def report(frames: LiveDetection, scans: ScanQueue) -> None:
    """Print what was odd about the scans, and the summary."""
    for line in frames.notes.lines():
        print(f"warning: {line}", file=sys.stderr)
    print(frames.statistics.summary(scans.dropped))


def open_place(
    options: argparse.Namespace, rate: float, detector: Detector, stack: ExitStack
) -> Window | BrowserView | Recorder | MessageRecorder:
    """Where the frames are shown; it closes with the stack. rate: pictures per second."""
    config, folder = detector.config, options.output
    if options.browser:
        return stack.enter_context(BrowserView(options.browser, options.score, options.colour))
    if is_message_file(options.record):
        others = columns_of(options.config, config).others
        file = stack.enter_context(MessageFile(options.record, others=others))
        return MessageRecorder(file, Palette(config.class_names))
    if not (options.record or folder):
        try:
            window = Window(keys_for(config.class_names, *KEYS), options.colour)
            return stack.enter_context(window)
        except WindowUnavailable as error:
            print(f"note: {error}; writing PNGs", file=sys.stderr)
            folder = FOLDER
    film = stack.enter_context(Film(options.record, rate)) if options.record else None
    if folder:
        begin_pictures(folder)
    return Recorder(film, folder, options.colour, View.of_grid(detector.range))


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
        motion = {"trails": objects.trails, "velocities": objects.velocities}
        boxes = boxes._replace(ids=objects.ids, **motion)
        photo = self._photo(frame.scan)
        title = frame.scan.name + ("     paused" if self.choices.paused else "")
        figures = self._figures(dropped)
        return Shown(frame.scan.points, None, boxes, title, figures, photo, scores=frame.scores)

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

    def _photo(self, scan: LiveScan) -> Photo | None:
        """None where there is no image; one that cannot be read is a trouble."""
        if scan.image is None:
            return None
        try:
            return Photo(read_image(scan.image), scan.calibration)
        except (ValueError, OSError) as error:
            if str(error) not in self._bad_images:
                self._bad_images.add(str(error))
                self._statistics.troubles += 1
                self.report(Trouble(str(error)))
            return None


class Player:
    """Shows frames in a window as they come, and does what the keys say."""

    patience = 0.0  # seconds for a frame at each look

    def __init__(self, screen: Any, scans: ScanQueue, frames: LiveDetection, view: LiveView):
        """screen: the `Window`."""
        self._screen, self._scans, self._frames, self._view = screen, scans, frames, view
        self._frame: LiveFrame | None = None
        self._steps, self._asked = 0, False  # scans that a pause lets through; is one on its way

    def play(self) -> None:
        """Until the scans end or the window is closed."""
        while self._obey():
            if self._view.choices.paused and not self._steps:
                continue
            try:
                frame = self._frames.get(self.patience)
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

    def _obey(self) -> bool:
        """Does what the user wishes, if the window is still open."""
        if not self._screen.open:
            return False
        for key in self._screen.wait(KEY_TURN):
            self._answer(key)
        return True

    def _show(self) -> None:
        if self._frame is not None:
            self._screen.show(self._view.shown(self._frame, self._scans.dropped))

    def _pause(self, paused: bool) -> None:
        self._view.choices.paused = paused
        self._scans.pause(paused)
        self._frames.statistics.rest()

    def _answer(self, key: str) -> None:
        choices = self._view.choices
        if key == SCREENSHOT:
            self._save_screenshots()
            return
        if key == "space":
            self._steps = 0
            self._pause(not choices.paused)
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
        for picture in self._screen.screenshots:
            try:
                path = free_name(SCREENSHOTS / f"{Path(name).name}.png")
                save_png(path, picture)
                print(f"screenshot written to {path}")
            except (ValueError, OSError) as error:  # no reason to end the view
                print(f"error: {one_line(error)}", file=sys.stderr)
        self._screen.screenshots.clear()


def free_name(path: Path) -> Path:
    """The path, or the first of path_2, path_3 and so on that is not there."""
    make_folder(path.parent)
    number, free = 2, path
    while free.exists():
        free, number = path.with_stem(f"{path.stem}_{number}"), number + 1
    return free


class Page(Player):
    """Shows frames on a page as they come, and does what its panel says."""

    patience = PAGE_TURN

    def _obey(self) -> bool:
        choices, (score, paused) = self._view.choices, self._screen.choices
        if (score, paused) != (choices.score, choices.paused):
            if paused != choices.paused:
                self._pause(paused)
            choices.score = score
            self._show()
        if paused:
            time.sleep(PAGE_TURN)
        return True


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

    def __init__(self, film: Film | None, folder: Path | None, colour: str, ground: View):
        """colour: of the points, one of style.COLOURINGS. ground: what is drawn from above."""
        self._film, self._folder, self._written = film, folder, 0
        self._colour, self._ground = colour, ground

    def record(self, frames: LiveDetection, scans: ScanQueue, view: LiveView) -> None:
        """All frames, until the scans end."""
        with SceneRenderer() as renderer, ExitStack() as stack:
            stack.callback(self._tell)
            artist = Artist(renderer, self._colour, self._ground)
            for frame in tqdm(frames_of(frames, view), unit="frame", disable=None):
                self._write(artist.film_picture(view.shown(frame, scans.dropped)))

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


class MessageRecorder:
    """Writes frames as messages of ROS 2."""

    def __init__(self, file: MessageFile, palette: Palette):
        self._file, self._palette = file, palette

    def record(self, frames: LiveDetection, scans: ScanQueue, view: LiveView) -> None:
        """All frames, until the scans end or Ctrl-C."""
        try:
            for frame in tqdm(frames_of(frames, view), unit="frame", disable=None):
                objects = frame.objects(view.choices.score)
                colours = self._palette.paint(objects.boxes, objects.names).colours
                self._file.add(frame.scan, objects, colours)
        except KeyboardInterrupt:
            self._close()
            raise
        self._close()

    def _close(self) -> None:
        if self._file.scans:
            self._file.close()
            print(f"{self._file.scans} scans written to {self._file.path}")


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
