"""Start, end and common arguments of every program of this folder. Imports nothing slow."""

from __future__ import annotations

import argparse
import errno
import io
import math
import os
import shlex
import signal
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from millisecond.data.files import led_to, missing, out_of_memory, plain_number

if TYPE_CHECKING:
    from millisecond.data.checks.sensor import Mounting
    from millisecond.data.datasets import Dataset
    from millisecond.data.formats.points import PointColumns
    from millisecond.detector import Detector
    from millisecond.detector.config import Config

ROOT = Path(__file__).resolve().parents[1]  # the project, or its folder among the packages
CONFIG = ROOT / "configs" / "second_kitti.yaml"
INTERRUPTED = 130  # exit code after Ctrl-C, as in shells
AGAIN = 1.0  # seconds within which another Ctrl-C is the same one, by way of a launcher
PIPE_CLOSED = 141
STOPPED = "stopped; the same command goes on from here"  # of programs that do
FARTHEST = 1000  # metres or degrees of a shift
LONGEST = 1000  # characters of a line on a mistake
SCREEN = 29  # lines of a help, for the prompt takes one of 30
LESS_MEMORY = "end what else uses it, or take a smaller batch or another --device"
COLUMN_CONFIG = (
    "whose section `points` names the columns of the scans (default: that which the weights were "
    "trained with)"
)
WEIGHTS = "file, or the shipped second, second_small or any (default: by the device)"


def begin() -> None:
    """From here to `run`, Ctrl-C ends the program silently: it is still importing, which
    takes seconds, and has nothing to save. A package that is not installed ends it in one line, and
    a warning is one line."""
    sys.excepthook = _end
    warnings.formatwarning = lambda text, *_, **__: f"warning: {' '.join(str(text).split())}\n"
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _leave)
    if isinstance(sys.stdout, io.TextIOWrapper):
        with suppress(OSError):  # a terminal that took the place of a file cannot tell its position
            sys.stdout.reconfigure(errors="backslashreplace")  # as stderr: names may be any bytes


def start(file: str) -> NoReturn:
    """Run the program of this folder that `file` holds, and end Python with its exit code."""
    begin()
    sys.exit(import_module(f"millisecond.tools.{Path(file).stem}").main())


class ProgramParser(argparse.ArgumentParser):
    """The parser of a program's command line, whose --help fits a screen: it has the options that
    most users need and, of the text behind them, as many paragraphs as there is room for.
    --help-all has all."""

    def __init__(self, usual: str = "", **options: Any):
        """usual: the options that most users need, in one string; all of them if it is empty."""
        kept = argparse.RawDescriptionHelpFormatter  # the lines of the examples
        super().__init__(add_help=False, formatter_class=kept, **options)
        self._usual = usual.split()
        self.add_argument("-h", "--help", action="help", help="show what most users need")
        self.add_argument("--help-all", action=_HelpAll, nargs=0, help="show all options")

    def format_usage(self) -> str:
        """The arguments that cannot be left out, also above a line on a mistake."""
        formatter = self._get_formatter()
        needed = [one for one in self._actions if one.required or not one.option_strings]
        formatter.add_usage(None, [argparse.Action(["options"], "", nargs=0), *needed], [])
        return formatter.format_help()

    def format_help(self) -> str:
        formatter = self._get_formatter()
        formatter.add_text(self.description)
        for group in self._action_groups:
            formatter.start_section(group.title)
            formatter.add_arguments([one for one in group._group_actions if self._is_usual(one)])
            formatter.end_section()
        others = sum(not (self._is_usual(one) or _is_help(one)) for one in self._actions)
        head = f"{self.format_usage()}\n{formatter.format_help()}".rstrip()
        rest = (self.epilog or "").rstrip().split("\n\n")
        for room in range(len(rest), 0, -1):  # the examples are always there
            parts = [head, *rest[:room]]
            if others:
                parts.append(f"--help-all shows the other {others} options")
            elif room < len(rest):
                parts.append("--help-all says more")
            text = "\n\n".join(parts) + "\n"
            if text.count("\n") <= SCREEN:
                break
        return text

    def _is_usual(self, action: argparse.Action) -> bool:
        if not action.option_strings or action.required:
            return True
        named = not self._usual or set(action.option_strings) & {*self._usual}
        return bool(named) and not _is_help(action)


def _is_help(action: argparse.Action) -> bool:
    return isinstance(action, _HelpAll) or action.dest == "help"


class _HelpAll(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        print(argparse.ArgumentParser.format_help(parser), end="")
        parser.exit()


def parser_of(description: str | None, examples: str, usual: str = "") -> ProgramParser:
    """The parser of a program's command line; examples: and what else is to be known, in
    paragraphs. usual: see `ProgramParser`."""
    return ProgramParser(usual, description=description, epilog=examples)


def command_line(program: str, arguments: Sequence[str] | None) -> str:
    """What the user typed; arguments: None for the command line's own."""
    words = sys.argv[1:] if arguments is None else arguments
    return shlex.join(["millisecond", program, *words])


def output_path(text: str) -> Path:
    """An argument that names a file or folder to write. An empty one is refused: it would mean the
    current folder, and often comes from an unset shell variable."""
    if not text.strip():
        raise argparse.ArgumentTypeError("an empty name; give one, or . for the present folder")
    path = Path(text)
    # a folder that will be made: MISSING/../mine is then mine, and what is there must be seen now
    return led_to(path) if ".." in path.parts and not os.path.exists(path.parent) else path


def shown(path: Path) -> str:
    """A file of this project in a program's help, from the project's own folder."""
    return str(path.relative_to(ROOT))


def config_file(text: str) -> Path:
    """An argument that names a configuration. One of this project, such as
    configs/second_kitti.yaml, is found from any folder."""
    path, own = Path(text), ROOT / text
    return own if path.parent.name == "configs" and own.is_file() and not path.exists() else path


def number(text: str) -> int:
    """An argument that counts something: a whole number from 1."""
    if not (text.isascii() and text.isdecimal()) or not 0 < int(text) < 1 << 31:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1")
    return int(text)


def port(text: str) -> int:
    """An argument that is the number of a port."""
    if number(text) > 65535:
        raise argparse.ArgumentTypeError(f"{text} is not a port; ports end at 65535")
    return int(text)


def add_browser(parser: argparse.ArgumentParser) -> None:
    """The argument that shows a page instead of a window."""
    from millisecond.detector.draw.browser import PORT

    parser.add_argument(
        "--browser",
        type=port,
        nargs="?",
        const=PORT,
        metavar="PORT",
        help=f"serve the view as a web page, no window (default port: {PORT})",
    )


def share(text: str) -> float:
    """An argument from 0 to 1."""
    if not 0 <= (value := _number(text)) <= 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not from 0 to 1")
    return value


def rate(text: str) -> float:
    """An argument in Hz: a finite number above 0."""
    if not 0 < (value := _number(text)) < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a frequency above 0 (Hz)")
    return value


def add_mounting(parser: argparse.ArgumentParser) -> None:
    """The arguments of `mounting_of`."""
    add = parser.add_argument_group("a sensor that stands otherwise").add_argument
    add(
        "--shift-z",
        type=shift,
        default=0.0,
        metavar="METRES",
        help="added to z before the network sees the points: the sensor's height above ground less "
        "the height in the network's training (1.73 for the shipped weights); boxes are "
        "shifted back",
    )
    add(
        "--turn",
        type=shift,
        default=0.0,
        metavar="DEGREES",
        help="by which points are turned counter-clockwise before the network sees them, until x "
        "points forward; boxes are turned back",
    )


def shift(text: str) -> float:
    """An argument of either sign."""
    if not abs(value := _number(text)) <= FARTHEST:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from -{FARTHEST} to {FARTHEST}")
    return value


def mounting_of(options: argparse.Namespace) -> Mounting:
    """How the user's sensor stands, see data.mounting."""
    from millisecond.data.checks.sensor import Mounting

    return Mounting(options.shift_z, options.turn)


def detector_of(options: argparse.Namespace) -> Detector:
    """The network of --weights, --device and --precision, for the sensor of `mounting_of`."""
    from millisecond.detector import Detector

    mounting = mounting_of(options)
    return Detector.from_weights(
        options.weights, options.device, options.precision, mounting=mounting
    )


def dataset_for(
    config: Config, root: Path, split: str, points: PointColumns | None = None, **others: Any
) -> Dataset:
    """A split of a data set as the network of a configuration takes it.

    points: columns of the clouds; the configuration's unless given. others: see `open_dataset`.
    """
    from millisecond.data.datasets import open_dataset

    crop, columns = config.grid.crop_to_image, points or config.points
    return open_dataset(root, split, config.class_names, crop=crop, points=columns, **others)


def columns_of(path: Path | None, network: Config) -> PointColumns:
    """The section `points` of a configuration file, or the network's own.

    Raises ValueError where the network takes other features.
    """
    from millisecond.detector.config import load_config

    if path is None:
        return network.points
    points = load_config(path).points
    if points.features != network.points.features:
        raise ValueError(
            f"{path}: points.features: {', '.join(points.features)}; the network takes "
            f"{', '.join(network.points.features)}; give --weights that were trained with that file"
        )
    return points


def _number(text: str) -> float:
    """NaN for what is not a number."""
    try:
        return plain_number(text)
    except ValueError:
        return math.nan


def run(
    action: Callable[[], int | None],
    stopped: str = "",
    say: Callable[[str], None] = lambda line: print(line, file=sys.stderr),
) -> int:
    """Calls the action of a program and returns the program's exit code:

    - what the action returns, 0 for None;
    - 2 after a mistake of the user (ValueError, OSError) or if memory runs out, with one line;
    - 130 after Ctrl-C, with the line `stopped` if it is given.
    """
    waiting = signal.getsignal(signal.SIGINT) is _leave
    if waiting:
        signal.signal(signal.SIGINT, partial(_interrupt, [-math.inf]))
    try:
        code = action() or 0
        sys.stdout.flush()
        return code
    except (ValueError, OSError) as error:
        if _unread(error):
            _print_no_more()
            return PIPE_CLOSED
        if isinstance(error, OSError) and error.errno == errno.ENOSPC and not error.filename:
            _print_no_more()  # every file has a name
            error = OSError(error.errno, error.strerror, "standard output")
        say(f"error: {one_line(error)}")
        return 2
    except (MemoryError, RuntimeError) as error:
        if not (cause := out_of_memory(error)):
            raise
        say(f"error: out of memory ({one_line(cause)[:200]}): {LESS_MEMORY}")
        return 2
    except KeyboardInterrupt:
        if stopped:
            say(stopped)
        return INTERRUPTED
    finally:
        if waiting:
            signal.signal(signal.SIGINT, _leave)  # for what Python does after the action


def one_line(error: Exception) -> str:
    """What an error says, in one line that is not too long: it may quote a file."""
    text = str(error)
    if isinstance(error, OSError) and error.filename:
        text = f"{error.filename}: {error.strerror}"
    text = text.encode("utf-8", "backslashreplace").decode()  # names of files may be any bytes
    line = " ".join(text.split())
    return line if len(line) <= LONGEST else f"{line[:LONGEST]} ..."


def _print_no_more() -> None:
    """What is still in the buffer would fail again when Python ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _unread(error: Exception) -> bool:
    """Whether nobody reads what is printed: `| head` has enough, or the terminal was closed."""
    closed = isinstance(error, OSError) and error.errno == errno.EIO and error.filename is None
    return closed or isinstance(error, BrokenPipeError)


def _end(kind: Any, error: BaseException, trace: Any) -> None:
    """What Python does at the end of a program that an exception ends."""
    if not isinstance(error, ModuleNotFoundError) or str(error.name).startswith("millisecond"):
        return sys.__excepthook__(kind, error, trace)
    print(f"error: {missing(error, Path(sys.argv[0]).stem)}", file=sys.stderr)
    sys.exit(2)


def _leave(*_) -> None:
    os._exit(INTERRUPTED)


def _interrupt(when: list[float], *_) -> None:
    """Ctrl-C ends the action; the same one once more does not disturb what is saved at its end."""
    if time.monotonic() - when[0] > AGAIN:
        when[0] = time.monotonic()
        raise KeyboardInterrupt
