"""Live detection in recordings, sensors and simulated streets: in a window, a film, a browser."""

if __name__ == "__main__":
    from millisecond.tools import program

    program.begin()

import argparse
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from millisecond.data.live.queue import ScanQueue
from millisecond.data.live.source import open_source
from millisecond.detector.config import PRECISIONS
from millisecond.detector.detector import Detector
from millisecond.detector.draw.browser import PORT, BrowserView, invitation
from millisecond.detector.draw.film import Film
from millisecond.detector.draw.view import View
from millisecond.detector.draw.window import Window, WindowUnavailable
from millisecond.detector.following import LiveDetection, warm_up
from millisecond.tools.playing import (
    Choices,
    LiveView,
    Page,
    Player,
    Recorder,
    begin_pictures,
    keys_for,
)
from millisecond.tools.program import (
    COLUMN_CONFIG,
    WEIGHTS,
    add_mounting,
    columns_of,
    mounting_of,
    number,
    output_path,
    parser_of,
    run,
    share,
)

EXAMPLE = """examples:
  millisecond demo 2011_09_26_drive_0005_sync
  millisecond demo street:7 --record street.mp4 --frames 100
  millisecond demo scans --weights output/mine/weights.safetensors --browser

Scans are played at the pace of the sensor. When the detection is slower, the oldest scan that waits
is dropped and counted. With --fast, and where a recording becomes a film, none is dropped. Latency
is the time from points on the host to boxes on the host. What cannot be read is reported and left
out; the exit code is then 2. Ctrl-C ends with a summary. In the window, h shows all keys. Without a
display the pictures become numbered PNGs, which replace the PNGs of an earlier film in the folder.
"""
FOLDER = Path("output/film")
Place = Window | BrowserView | Recorder


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    return run(lambda: show(options))


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = parser_of(__doc__, EXAMPLE)
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
    add("--fast", action="store_true", help="as fast as it goes, not at the sensor's pace")
    add("--loop", action="store_true", help="play a recording again and again")
    add("--frames", type=number, metavar="N", help="end after so many frames")
    add("--record", type=output_path, metavar="FILE.mp4", help="write a film, no window")
    add("--output", type=output_path, metavar="DIR", help="write PNGs here, no window")
    add(
        "--browser",
        type=port,
        nargs="?",
        const=PORT,
        metavar="PORT",
        help=f"serve the view as a web page, no window (default port: {PORT})",
    )
    add("--no-tracks", action="store_true", help="do not follow the objects from scan to scan")
    add("--ego", action="store_true", help="compensate the sensor's own motion, by kiss-icp")
    add_mounting(parser)
    options = parser.parse_args(arguments)
    if options.browser and (options.record or options.output):
        parser.error("--browser: not with --record or --output")
    if options.ego and options.no_tracks:
        parser.error("--ego: it compensates tracks, which --no-tracks leaves out")
    return options


def port(text: str) -> int:
    """An argument that is the number of a port."""
    if number(text) > 65535:
        raise argparse.ArgumentTypeError(f"{text} is not a port; ports end at 65535")
    return int(text)


def show(options: argparse.Namespace) -> int:
    """Open the window or the page, or write pictures where there is no display."""
    detector = Detector.from_weights(
        options.weights, options.device, options.precision, mounting=mounting_of(options)
    )
    source = open_source(options.source, options.loop, columns_of(options.config, detector.config))
    with ExitStack() as stack:
        place = open_place(options, source.rate, detector, stack)
        warm_up(detector)
        whole = isinstance(place, Recorder) and not source.live  # a film has every scan
        scans = ScanQueue(source, options.fast or whole)
        frames = LiveDetection(
            scans, detector, not options.no_tracks, options.ego, limit=options.frames
        )
        stack.callback(report, frames, scans)  # once both threads have ended: they count until then
        stack.enter_context(scans)
        stack.enter_context(frames)
        choices, classes = Choices(options.score), detector.config.class_names
        view = LiveView(classes, choices, frames.statistics, paced=not whole)
        play(place, scans, frames, view)
    return 2 if frames.statistics.troubles else 0


def report(frames: LiveDetection, scans: ScanQueue) -> None:
    """Print what was odd about the scans, and the summary."""
    for line in frames.notes.lines():
        print(f"warning: {line}", file=sys.stderr)
    print(frames.statistics.summary(scans.dropped))


def open_place(
    options: argparse.Namespace, rate: float, detector: Detector, stack: ExitStack
) -> Place:
    """Where the frames are shown; it closes with the stack. rate: pictures per second."""
    config, folder = detector.config, options.output
    if options.browser:
        return stack.enter_context(BrowserView(options.browser, options.score))
    if not (options.record or folder):
        try:
            return stack.enter_context(Window(keys_for(config.class_names)))
        except WindowUnavailable as error:
            print(f"note: {error}; writing PNGs", file=sys.stderr)
            folder = FOLDER
    film = stack.enter_context(Film(options.record, rate)) if options.record else None
    if folder:
        begin_pictures(folder)
    return Recorder(film, folder, View.of_grid(detector.range))


def play(place: Place, scans: ScanQueue, frames: LiveDetection, view: LiveView) -> None:
    """Until the scans end, the window is closed or the user interrupts."""
    if isinstance(place, Window):
        Player(place, scans, frames, view).play()
    elif isinstance(place, BrowserView):
        print(invitation(place.port, place.token), flush=True)
        Page(place, scans, frames, view).play()
    else:
        place.record(frames, scans, view)


if __name__ == "__main__":
    sys.exit(main())
