"""The judge of the fuzzing: how a call of a program may end, and what it may change."""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import resource
import signal
import traceback
import warnings
from collections.abc import Iterator
from pathlib import Path

from millisecond.tools import demo, detect, train, visualize

PATIENCE = 60  # seconds for one call
MEMORY = 3 << 30  # bytes that a call may add
NOT_FINITE = 1  # exit code of a training whose loss is not a number


def snapshot(world: Path, writes: list[str]) -> dict[str, object]:
    """Every file outside of the folders that may be written to, by its content."""
    found = {}
    for path in sorted(world.rglob("*")):
        name = str(path.relative_to(world))
        if any(name == own or name.startswith(f"{own}/") for own in writes):
            continue
        if path.is_symlink():
            found[name] = os.readlink(path)
        elif path.is_file():
            found[name] = hashlib.sha256(path.read_bytes()).hexdigest()
        else:
            found[name] = path.stat().st_mode
    return found


class TooLong(BaseException):
    pass


@contextlib.contextmanager
def limits() -> Iterator[None]:
    """Time and memory of one call."""

    def stop(*_):
        raise TooLong

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(PATIENCE)
    old = resource.getrlimit(resource.RLIMIT_DATA)
    used = int(Path("/proc/self/statm").read_text().split()[5]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_DATA, (used + MEMORY, old[1]))
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
        resource.setrlimit(resource.RLIMIT_DATA, old)


def call(tool, arguments: list[str], folder: Path) -> str:
    """Calls a program in a folder; what is wrong with how it ended."""
    out, err, where = io.StringIO(), io.StringIO(), Path.cwd()
    os.chdir(folder)
    try:
        with (
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
            warnings.catch_warnings(),
            limits(),
        ):
            warnings.simplefilter("error", RuntimeWarning)  # numpy's, of a user's numbers
            try:
                code = tool.main(arguments)
            except SystemExit as end:
                code = end.code
    except TooLong:
        return f"takes over {PATIENCE} s"
    except BaseException:
        return traceback.format_exc()
    finally:
        os.chdir(where)
    return judge(tool, code, err.getvalue())


def judge(tool, code: int | None, err: str) -> str:
    """What is wrong with how a call ended."""
    allowed = (0, 2, NOT_FINITE) if tool is train else (0, 2)
    if code not in allowed:
        return f"exit code {code}: {err[-500:]}"
    if "Traceback" in err:
        return err[-2000:]
    errors = [line for line in err.splitlines() if line.startswith("error: ")]
    usage = "usage: " in err
    # these go on with the other scans, and name each bad one
    enough = len(errors) >= 1 if tool in (demo, detect, visualize) else len(errors) == 1
    if code == 2 and not usage and not enough:
        return f"{len(errors)} lines for exit code 2: {err[-500:]}"
    if code == 0 and errors:
        return f"exit code 0: {err[-500:]}"
    long = [line for line in errors if len(line) > 1500]
    return f"a line of {len(long[0])} characters: {long[0][:200]}" if long else ""
