"""Draw scans with ground truth and detections: in a window, or without a display into PNGs."""

if __name__ == "__main__":
    from millisecond.tools import program

    program.begin()

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from millisecond.data.metric.verdicts import METRICS
from millisecond.detector.draw.scene import COLOUR_BY
from millisecond.detector.draw.window import Window, WindowUnavailable
from millisecond.tools.pictures import KINDS, Artist, Browser, keys_of, write_pictures
from millisecond.tools.program import WEIGHTS, add_mounting, output_path, parser_of, run, share
from millisecond.tools.visualizing import (
    BOXES,
    Account,
    CommandSource,
    Judge,
    Rank,
    Studio,
    find_source,
    report_ranking,
    require_judged,
)

EXAMPLE = """examples:
  millisecond visualize --root /data/kitti --frames 000008
  millisecond visualize --root /data/kitti --split val --detections results --order worst
  millisecond visualize --root /data/kitti --detections results --pictures sheets --output out
  millisecond visualize scan.bin --detections results

Detections come from a folder of detect's .json files or of KITTI result files (.txt), the
newer where a frame has both, or from a network that is run here. Where there is a display and
no --output, a window opens: left and right show another frame, h shows all keys. Otherwise three
pictures per frame are written: NAME_birds_eye.png, NAME_scene.png and, if there is an image,
NAME_camera.png; or what --pictures says. With ground truth and detections, missed objects and false
detections have a cross, by KITTI's rules (docs/visualize.md). A frame that cannot be drawn is
reported and left out; the exit code is then 2.
"""
FOLDER = Path("output/pictures")


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    return run(lambda: visualize(options))


def visualize(options: argparse.Namespace) -> int:
    """Open the window, or write the pictures where there is no display."""
    source = find_source(options)
    require_judged(options, source)
    start = find_start(options.start, source)
    judge = Judge(source, options.overlap, options.metric or METRICS[0])
    if options.output is None:
        try:
            return browse(options, source, judge, start)
        except WindowUnavailable as error:
            print(f"note: {error}; writing PNGs", file=sys.stderr)
    studio = Studio(source, judge, Account(options.score, source.palette, at_once=False))
    folder, by_error = options.output or FOLDER, options.boxes == "error"
    order, _ = find_order(options, studio, folder)
    first = order.index(start) if options.start else 0
    with Artist(options.colour_by, source.view) as artist:
        return write_pictures(studio, order[first:], options.pictures, by_error, artist, folder)


def browse(options: argparse.Namespace, source: CommandSource, judge: Judge, start: int) -> int:
    """Raises WindowUnavailable where no window can be opened."""
    studio = Studio(source, judge, Account(options.score, source.palette, at_once=True))
    with (
        Window(keys_of(studio), options.colour_by) as window,
        Artist(options.colour_by, source.view) as artist,
    ):
        order, ranks = find_order(options, studio, FOLDER)
        at = order.index(start) if options.start else 0
        return Browser(studio, window, artist, FOLDER, order, ranks).browse(
            at, options.boxes == "error"
        )


def find_start(name: str | None, source: CommandSource) -> int:
    """The place of the frame to start at."""
    if name is None:
        return 0
    if name not in source.names:
        names = source.names
        raise ValueError(
            f"--start {name}: no such frame among the {len(names)}, {names[0]} to {names[-1]}"
        )
    return source.names.index(name)


def find_order(
    options: argparse.Namespace, studio: Studio, folder: Path
) -> tuple[list[int], list[Rank] | None]:
    """The places of the frames in the order in which they are shown, and the ranking if it was
    asked for, which is then in the folder too."""
    if options.order != "worst":
        return list(range(len(studio.source.names))), None
    ranks = studio.judge.rank(studio.account)
    report_ranking(studio.source.names, ranks, folder)
    return [rank.place for rank in ranks], ranks


def overlap(text: str) -> float:
    """An argument above 0 and below 1."""
    value = share(text)
    if not 0 < value < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not between 0 and 1")
    return value


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = parser_of(__doc__, EXAMPLE)
    parser.add_argument("scans", nargs="*", type=Path, help="clouds, or folders of them")
    parser.add_argument("--root", type=Path, help="folder of a data set, instead of scans")
    parser.add_argument("--split", default="all", help="list in ROOT/ImageSets (default: all)")
    parser.add_argument("--frames", nargs="+", metavar="ID", help="of the split (default: all)")
    source = parser.add_mutually_exclusive_group()
    source.add_argument("--detections", type=Path, metavar="DIR", help="folder of results")
    source.add_argument("--weights", type=Path, help=f"to detect with: {WEIGHTS}")
    source.add_argument("--no-detections", action="store_true", help="only points and ground truth")
    parser.add_argument(
        "--classes",
        nargs="+",
        default=[],
        metavar="NAME",
        help="types that labels have besides KITTI's",
    )
    parser.add_argument(
        "--config", type=Path, help="whose section `points` names the columns of the scans"
    )
    parser.add_argument("--device", help="to detect on: cpu, cuda (a GPU if there is one)")
    parser.add_argument(
        "--score",
        type=share,
        default=0.3,
        help="least score that is drawn (default: %(default)s)",
    )
    parser.add_argument(
        "--overlap",
        type=overlap,
        metavar="IOU",
        help="that makes a match (default: KITTI's, 0.7 for cars, 0.5 for others)",
    )
    _add_picture_arguments(parser)
    add_mounting(parser)
    return parser.parse_args(arguments)


def _add_picture_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--metric", choices=METRICS, help="of the overlap (default: 3d)")
    parser.add_argument(
        "--boxes", choices=BOXES, default="class", help="what their colours say (default: class)"
    )
    parser.add_argument(
        "--colour-by", choices=COLOUR_BY, default="height", help="points (default: height)"
    )
    parser.add_argument(
        "--order",
        choices=("given", "worst"),
        default="given",
        help="worst: frames with the most errors first, and a ranking is written",
    )
    parser.add_argument("--start", metavar="ID", help="frame that the window shows first")
    parser.add_argument(
        "--pictures",
        choices=KINDS,
        default="views",
        help="without a window: single views, one sheet per frame, or one contact sheet",
    )
    parser.add_argument(
        "--output", type=output_path, metavar="DIR", help="write PNGs here, no window"
    )


if __name__ == "__main__":
    sys.exit(main())
