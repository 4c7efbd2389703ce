"""Draw scans with ground truth and detections: in a window, or without a display into PNGs."""

if __name__ == "__main__":
    from millisecond.tools import program

    program.start(__file__)

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from tqdm import tqdm

from millisecond.data.files import locked, make_folder
from millisecond.data.metric.kitti import METRICS, count
from millisecond.detector.draw.birds_eye import draw_thumbnail
from millisecond.detector.draw.browser import BrowserView, Stills, invitation
from millisecond.detector.draw.film import Film
from millisecond.detector.draw.png import save_png
from millisecond.detector.draw.scene import SceneRenderer
from millisecond.detector.draw.sheets import CELL, Artist, compose_contact_sheet
from millisecond.detector.draw.style import CLASS_COLOURS, COLOURINGS, Shown
from millisecond.detector.draw.window import Window, WindowUnavailable, keys_for
from millisecond.tools.autolabel import ObjectList
from millisecond.tools.program import (
    WEIGHTS,
    add_browser,
    add_mounting,
    one_line,
    output_path,
    parser_of,
    run,
    share,
)
from millisecond.tools.visualizing import (
    BOXES,
    Account,
    CommandSource,
    Content,
    Judge,
    Rank,
    Review,
    Studio,
    find_source,
    report_ranking,
    require_judged,
)

EXAMPLE = """examples:
  millisecond visualize --root /data/kitti --frames 000008
  millisecond visualize --root /data/kitti --split val --detections results --order worst

  millisecond visualize --root /data/kitti --detections results --pictures sheets --output out
  millisecond visualize --root /data/kitti --order worst --film worst.mp4
  millisecond visualize scan.bin --detections results --browser
  millisecond visualize --root drive --review labelled

Detections come from a folder of detect's .json files or of KITTI result files (.txt), the
newer where a frame has both, or from a network that is run here. Where there is a display and
no --output, a window opens: left and right show another frame, h shows all keys. Otherwise three
pictures per frame are written: NAME_birds_eye.png, NAME_scene.png and, if there is an image,
NAME_camera.png; or what --pictures says. With ground truth and detections, missed objects have a
rhombus and false detections a cross, by KITTI's rules (docs/visualize.md). A frame that cannot be
drawn is reported and left out; the exit code is then 2.
"""
USUAL = "--root --split --frames --detections --weights --order --output --film --browser"
FOLDER = Path("output/pictures")
PLACES = ("output", "film", "browser")  # where there is no window
RATE = 5.0  # pictures of a film per second: half as fast as a LiDAR turns
TURN = 0.05  # seconds between two looks at the page
KINDS = ("views", "sheets", "contact")
CONTACT, COLUMNS = 48, 4  # most frames on a contact sheet, and how many of them side by side
STEPS = {"left": -1, "right": 1, "page_up": -10, "page_down": 10}
WORSE = {"n": 1, "b": -1}
DIGITS = 9  # of a typed number, the last ones


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    return run(lambda: visualize(options))


def overlap(text: str) -> float:
    """An argument above 0 and below 1."""
    value = share(text)
    if not 0 < value < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not between 0 and 1")
    return value


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = parser_of(__doc__, EXAMPLE, USUAL)
    add = parser.add_argument
    add_source(parser)
    add = parser.add_argument_group("how it is drawn").add_argument
    add(
        "--classes",
        nargs="+",
        default=[],
        metavar="NAME",
        help="types that labels have besides KITTI's",
    )
    add("--config", type=Path, help="whose section `points` names the columns of the scans")
    add("--device", help="to detect on: cpu, cuda (a GPU if there is one)")
    add("--score", type=share, default=0.3, help="least score that is drawn (default: %(default)s)")
    add(
        "--overlap",
        type=overlap,
        metavar="IOU",
        help="that makes a match (default: KITTI's, 0.7 for cars, 0.5 for others)",
    )
    add("--metric", choices=METRICS, help="of the overlap (default: 3d)")
    add("--boxes", choices=BOXES, default="class", help="what their colours say (default: class)")
    add("--colour", choices=COLOURINGS, default="height", help="of points (default: height)")
    add = parser.add_argument_group("what is shown or written").add_argument
    add(
        "--order",
        choices=("given", "worst"),
        default="given",
        help="worst: frames with the most errors first, and a ranking is written",
    )
    add("--start", metavar="ID", help="frame that the window shows first")
    add(
        "--pictures",
        choices=KINDS,
        default="views",
        help="without a window: single views, one sheet per frame, or one contact sheet",
    )
    add("--output", type=output_path, metavar="DIR", help="write PNGs here, no window")
    add("--film", type=output_path, metavar="MP4", help="write all frames as a film, no window")
    add_browser(parser)
    add_mounting(parser)
    options = parser.parse_args(arguments)
    elsewhere = [name for name in PLACES if getattr(options, name)]
    if options.review and (others := elsewhere + ["start"] * bool(options.start)):
        parser.error(f"--review opens a window: it does not go with --{others[0]}")
    if len(elsewhere) > 1:
        parser.error(" and ".join(f"--{name}" for name in elsewhere) + ": give one of them")
    return options


def add_source(parser: argparse.ArgumentParser) -> None:
    """The arguments that name scans and what is drawn on them."""
    add = parser.add_argument
    add("scans", nargs="*", type=Path, help="clouds, or folders of them")
    add("--root", type=Path, help="folder of a data set, instead of scans")
    add("--split", default="all", help="list in ROOT/ImageSets (default: all)")
    add("--frames", nargs="+", metavar="ID", help="of the split (default: all)")
    source = parser.add_mutually_exclusive_group()
    source.add_argument(
        "--detections", type=Path, metavar="DIR", help="folder of results, or a .parquet file"
    )
    source.add_argument("--weights", type=Path, help=WEIGHTS)
    source.add_argument("--no-detections", action="store_true", help="only points and ground truth")
    source.add_argument(
        "--review", type=Path, metavar="DIR", help="decide on the objects that autolabel wrote here"
    )


def visualize(options: argparse.Namespace) -> int:
    """Open the window, or write the pictures where there is no display."""
    source = find_source(options)
    require_judged(options, source)
    names = source.names
    if options.start is not None and options.start not in names:
        raise ValueError(
            f"--start {options.start}: no such frame among the {len(names)}, {names[0]} to "
            f"{names[-1]}"
        )
    judge = Judge(source, options.overlap, options.metric or METRICS[0])
    if options.review:
        return review(options, source, judge)
    if options.browser:
        return serve(options, source, judge)
    if options.film:
        return write_film(options, source, judge)
    if options.output is None:
        try:
            return browse(options, source, judge)
        except WindowUnavailable as error:
            print(f"note: {error}; writing PNGs", file=sys.stderr)
    studio = Studio(source, judge, Account(options.score, source.palette, at_once=False))
    folder, by_error = options.output or FOLDER, options.boxes == "error"
    order, first, _ = find_order(options, studio, folder)
    with SceneRenderer() as renderer:
        artist = Artist(renderer, options.colour, source.view)
        return write_pictures(studio, order[first:], options.pictures, by_error, artist, folder)


def browse(options: argparse.Namespace, source: CommandSource, judge: Judge) -> int:
    """Raises WindowUnavailable where no window can be opened."""
    studio = Studio(source, judge, Account(options.score, source.palette, at_once=True))
    with Window(keys_of(studio), options.colour) as window, SceneRenderer() as renderer:
        artist = Artist(renderer, options.colour, source.view)
        order, first, ranks = find_order(options, studio, FOLDER)
        browser = Browser(studio, window, artist, FOLDER, order, ranks)
        return browser.browse(first, options.boxes == "error")


def serve(options: argparse.Namespace, source: CommandSource, judge: Judge) -> int:
    """Show the frames on a web page, until Ctrl-C."""
    studio = Studio(source, judge, Account(options.score, source.palette, at_once=True))
    order, first, _ = find_order(options, studio, FOLDER)
    by_error = options.boxes == "error" if source.judged else None
    frames = Stills(len(order), first, by_error)
    with BrowserView(options.browser, frames, options.colour) as page:
        print(invitation(page.port, page.token), flush=True)
        shown = None
        while True:
            if shown != page.still:
                shown = page.still
                page.show(studio.content_or_reason(order[shown[0]], shown[1]).shown)
            time.sleep(TURN)


def write_film(options: argparse.Namespace, source: CommandSource, judge: Judge) -> int:
    """Write a film of the frames; returns the exit code."""
    studio = Studio(source, judge, Account(options.score, source.palette, at_once=False))
    order, first, _ = find_order(options, studio, FOLDER)
    with Film(options.film, RATE) as film, SceneRenderer() as renderer:
        artist = Artist(renderer, options.colour, source.view)
        for place in tqdm(order[first:], unit="frame", disable=None):
            try:
                frame, shown = studio.content(place, options.boxes == "error")
            except (ValueError, OSError) as error:
                studio.account.bad(source.names[place], error)
                continue
            if source.scores is not None and frame is not None:
                shown = shown._replace(scores=source.scores(frame))
            film.add(artist.film_picture(shown))
    print(f"{film.pictures} pictures written to {film.path}")
    return studio.account.close(len(order))


def review(options: argparse.Namespace, source: CommandSource, judge: Judge) -> int:
    """Show the objects of the list and take verdicts until the window is closed."""
    studio = Studio(source, judge, Account(options.score, source.palette, at_once=True))
    ObjectList(options.review)  # is there, before the folder is locked
    with locked(options.review):
        objects = ObjectList(options.review)
        steps = Review(objects, source.names, source.palette, options.classes)
        try:
            window = Window(keys_for((), "review"), options.colour)
        except WindowUnavailable as error:
            raise ValueError(f"--review needs a window: {error}") from None
        drawn = None
        with window:
            while window.open:
                at = steps.place, steps.frame
                if drawn != at:
                    place = source.names.index(steps.frame)
                    content = studio.content_or_reason(place, by_error=False)
                window.show(steps.over(content.shown, follow=drawn != at))
                drawn = at
                for key in window.wait():
                    steps.press(key)
        return studio.account.close(len(source.names))


def find_order(
    options: argparse.Namespace, studio: Studio, folder: Path
) -> tuple[list[int], int, list[Rank] | None]:
    """The places of the frames in the order in which they are shown, the number of the first one
    there, and the ranking if it was asked for, which is then in the folder too."""
    names, ranks = studio.source.names, None
    order = list(range(len(names)))
    if options.order == "worst":
        ranks = studio.judge.rank(studio.account)
        report_ranking(names, ranks, folder)
        order = [rank.place for rank in ranks]
    first = order.index(names.index(options.start)) if options.start else 0
    return order, first, ranks


def write_pictures(
    studio: Studio, order: Sequence[int], kind: str, by_error: bool, artist: Artist, folder: Path
) -> int:
    """Write the pictures of all frames in this order; returns the exit code.

    kind: "views" for NAME_birds_eye.png and so on, "sheets" for NAME_sheet.png, "contact" for one
    picture of many frames.
    """
    make_folder(folder)
    names, written = studio.source.names, 0
    if kind == "contact":
        order = order[:CONTACT]
    cells = []
    for place in tqdm(order, unit="frame", disable=None):
        try:
            content = studio.content(place, by_error)
            if kind == "contact":
                cells.append(_cell(content, artist))
                continue
            pictures = (
                artist.views(content.shown)
                if kind == "views"
                else {"sheet": artist.sheet(content.shown)}
            )
        except (ValueError, OSError) as error:
            studio.account.bad(names[place], error)
            continue
        for name, picture in pictures.items():
            save_png(folder / f"{names[place]}_{name}.png", picture)
        written += len(pictures)
    if cells:
        save_png(folder / "contact_sheet.png", compose_contact_sheet(cells, COLUMNS))
        written = 1
        if len(names) > CONTACT:
            print(f"the contact sheet has {CONTACT} of {len(names)} frames; --frames picks others")
    print(f"{written} pictures written to {folder}")
    return studio.account.close(len(order))


def _cell(content: Content, artist: Artist) -> tuple[str, np.ndarray]:
    truth, found, title = content.shown[1:4]
    if truth is not None and truth.verdicts and found is not None:
        title = f"{title.split()[0]}   {count(truth.verdicts, found.verdicts)}"
    picture = draw_thumbnail(content.shown, artist.colour_by, artist.view, CELL)
    return title, picture


def keys_of(studio: Studio) -> dict[str, str]:
    """The keys that make sense for these frames, and what they do."""
    several, judged = len(studio.source.names) > 1, studio.source.judged
    sensible = {
        "visualize": several,
        "visualize, ranked": several and judged,
        "visualize, judged": judged,
        "visualize, demo": True,
    }
    return keys_for(classes_of(studio.source), *(name for name in sensible if sensible[name]))


def classes_of(source: CommandSource) -> list[str]:
    """The classes that the keys 1 to 9 hide."""
    return [*dict.fromkeys([*source.classes, *CLASS_COLOURS])][:9]


class Browser:
    """Shows the frames that the user turns to."""

    def __init__(
        self,
        studio: Studio,
        window: Window,
        artist: Artist,
        folder: Path,
        order: Sequence[int],
        ranks: list[Rank] | None,
    ):
        """folder: for the sheets and the ranking that the user asks for. order: of the frames, by
        their places. ranks: where it is known which are the worst."""
        self._studio, self._window, self._artist = studio, window, artist
        self._folder, self._order, self._ranks = folder, order, ranks
        self._rank = -1  # which of the worst was shown last
        self._typed: str | None = None  # digits of a frame's number, between two times enter
        self._hidden: set[str] = set()  # classes

    def browse(self, at: int, by_error: bool) -> int:
        """Begin with a frame, by its number in the order; returns the exit code once the window is
        closed."""
        drawn = None
        while self._window.open:
            if drawn is None or drawn[:2] != (at, by_error):
                content = self._studio.content_or_reason(self._order[at], by_error)
            if drawn != (at, by_error, self._typed, {*self._hidden}):
                self._show(content, at)
                drawn = at, by_error, self._typed, {*self._hidden}
            for key in self._window.wait():
                typed, self._typed = self._typed, None
                if key == "e":
                    by_error = not by_error
                elif key == "s" and drawn is not None and drawn[:2] == (at, by_error):
                    self._save(at, content)
                elif key in WORSE:
                    at, drawn = self._worse(WORSE[key]), None
                elif typed is not None and key.isdecimal():
                    self._typed = (typed + key)[-DIGITS:]
                elif typed is not None and key == "backspace":
                    self._typed = typed[:-1]
                elif typed and key == "enter":  # titles count from 1
                    at = min(max(int(typed), 1), len(self._order)) - 1
                elif key == "enter":
                    self._typed = ""
                elif key.isdecimal():  # a class is hidden, or shown again; there is none of 0
                    self._hidden ^= {*classes_of(self._studio.source)[int(key) - 1 : int(key)]}
                else:
                    at = self._turned(at, key)
        return self._studio.account.close(len(self._order))

    def _show(self, content: Content, at: int) -> None:
        several = len(self._order) > 1
        place = f"     {at + 1} of {len(self._order)}" if several else ""
        typed = "" if self._typed is None else f"     go to {self._typed or '...'}"
        shown = content.shown._replace(title=content.shown.title + place + typed)
        if self._hidden:
            truth, found = (
                boxes and boxes.without(self._hidden)
                for boxes in (shown.ground_truth, shown.detections)
            )
            figures = {"hidden": ", ".join(sorted(self._hidden))}
            shown = shown._replace(ground_truth=truth, detections=found, figures=figures)
        self._window.show(shown)

    def _turned(self, at: int, key: str) -> int:
        last = len(self._order) - 1
        if key in ("home", "end"):
            return 0 if key == "home" else last
        step = STEPS.get(key, 0)
        if abs(step) > 1:  # ten frames stop at the ends
            return min(max(at + step, 0), last)
        return (at + step) % len(self._order)

    def _worse(self, step: int) -> int:
        """The next frame of the ranking, which is made when it is first needed."""
        if self._ranks is None:
            self._window.show(Shown(title="judging all frames ..."))
            self._ranks = self._studio.judge.rank(self._studio.account)
            try:
                report_ranking(self._studio.source.names, self._ranks, self._folder)
            except (ValueError, OSError) as error:  # the window needs no file
                print(f"error: {one_line(error)}", file=sys.stderr)
        self._rank = min(max(self._rank + step, 0), len(self._ranks) - 1)
        return list(self._order).index(self._ranks[self._rank].place)

    def _save(self, at: int, content: Content) -> None:
        self._window.screenshots.clear()  # the sheet has more than what the window shows
        name = self._studio.source.names[self._order[at]]
        if content.frame is None:
            return  # its title says why
        path = self._folder / f"{name}_sheet.png"
        try:
            make_folder(self._folder)
            save_png(path, self._artist.sheet(content.shown))
            print(f"{path} written", flush=True)
        except (ValueError, OSError) as error:
            print(f"error: frame {name}: {one_line(error)}", file=sys.stderr)
