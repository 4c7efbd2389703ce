"""Start, end and common arguments of every program of this folder. Imports nothing slow."""

from __future__ import annotations

import argparse
import errno
import math
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

INTERRUPTED = 130  # exit code after Ctrl-C, as in shells
PIPE_CLOSED = 141
LONGEST = 1000  # characters of a line on a mistake
WEIGHTS = "weights file, or second or second_small, which are shipped (default: by the device)"


def begin() -> None:
    """From here to `run`, Ctrl-C ends the program silently: it is still importing, which
    takes seconds, and has nothing to save."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _leave)


def output_path(text: str) -> Path:
    """An argument that names a file or folder to write. An empty one is refused: it would mean the
    current folder, and often comes from an unset shell variable."""
    if not text.strip():
        raise argparse.ArgumentTypeError("an empty name; give one, or . for the present folder")
    return Path(text)


def number(text: str) -> int:
    """An argument that counts something: a whole number from 1."""
    if not text.isdecimal() or not 0 < int(text) < 1 << 31:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number from 1")
    return int(text)


def score(text: str) -> float:
    """An argument from 0 to 1."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not from 0 to 1")
    return value


def rate(text: str) -> float:
    """An argument in Hz: a finite number above 0."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is no frequency above 0 (Hz)")
    return value


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
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        code = action() or 0
        sys.stdout.flush()
        return code
    except (ValueError, OSError) as error:
        if _unread(error):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return PIPE_CLOSED
        say(f"error: {one_line(error)}")
        return 2
    except (MemoryError, RuntimeError) as error:
        if not _out_of_memory(error):
            raise
        say(f"error: out of memory ({one_line(error)[:200]})")
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
    line = " ".join(text.split())
    return line if len(line) <= LONGEST else f"{line[:LONGEST]} ..."


def _unread(error: Exception) -> bool:
    """Whether nobody reads what is printed: `| head` has enough, or the terminal was closed."""
    closed = isinstance(error, OSError) and error.errno == errno.EIO and error.filename is None
    return closed or isinstance(error, BrokenPipeError)


def _out_of_memory(error: Exception) -> bool:
    """Also torch's, which are not MemoryErrors; asked without importing torch."""
    return (
        isinstance(error, MemoryError)
        or type(error).__name__ == "OutOfMemoryError"
        or "can't allocate memory" in str(error)
    )


def _leave(*_) -> None:
    os._exit(INTERRUPTED)
