"""Files that are either whole or not there, and folders that one program at a time writes to; what
is said of packages and memory that are missing; the cores of the host."""

import errno
import fcntl
import json
import os
import re
import secrets
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import Any

QUOTA = Path("/sys/fs/cgroup/cpu.max")  # of the container's processor time, and its period
MAX_TEXT = 64 << 20  # bytes of a file that is read as text
NO_MEMORY = re.compile("out of memory|can't allocate memory|_ALLOC_FAILED")
# of modules that are named otherwise, or need more than their own package
PACKAGES = {
    "PIL": "pillow",
    "yaml": "pyyaml",
    "ray": "'millisecond[fleet]'",
    # it asks for an old version of rosbags, which this package cannot use
    "ouster": "--no-deps ouster-sdk more-itertools",
}
PACKAGES |= dict.fromkeys(("av2", "trackeval"), "'millisecond[benchmarks]'")


def require(module: str, user: str) -> Any:
    """A module that only `user` needs; ValueError with the line to type where it is missing."""
    try:
        return import_module(module)
    except ImportError as error:
        raise ValueError(missing(error, user)) from None


def is_uri(name: str) -> bool:
    """Whether this names something in another file system, such as s3://bucket/drives."""
    return "://" in name


def file_system(uri: str) -> tuple[Any, str]:
    """The file system of pyarrow that a URI names, and the path there. Raises ValueError."""
    return _file_system(uri, os.getpid())


@lru_cache
def _file_system(uri: str, process: int) -> tuple[Any, str]:
    """process: whose own it is; a connection does not outlive a fork."""
    system, path = require("pyarrow.fs", uri).FileSystem.from_uri(uri)
    return system, path.rstrip("/") or "/"


def out_of_memory(error: BaseException | None) -> BaseException | None:
    """The error that says that memory ran out: this one, or one that it hides, as a capture that
    cannot be ended does. Torch's are not MemoryErrors; asked without importing torch."""
    while error and not (isinstance(error, MemoryError) or NO_MEMORY.search(str(error))):
        error = error.__context__
    return error


def missing(error: ImportError, user: str) -> str:
    """Says in one line what `user` needs, and how to install it."""
    module = (error.name or "?").partition(".")[0]
    package = PACKAGES.get(module, module.replace("_", "-"))
    return f"{user} needs {package} ({error}): pip install {package}"


@contextmanager
def naming(path: Path, temporary: Path | None = None) -> Iterator[None]:
    """Gives errors of the system the name of the file that is written: a full disk has none, and
    nobody knows the temporary file that stands for it."""
    try:
        yield
    except OSError as error:
        if error.errno and (not error.filename or error.filename == str(temporary)):
            raise OSError(error.errno, error.strerror, str(path)) from None
        raise


@contextmanager
def replacing(path: Path | str) -> Iterator[Path]:
    """Give a path beside `path` to write to; it takes the place of `path` when the block succeeds.

    A reader never sees half a file, and a failure leaves what was there before.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    number = secrets.randbelow(10**18)  # processes of several machines may have the same one
    temporary = path.with_name(f".{path.name}.{number}.tmp")
    try:
        with naming(path, temporary):
            yield temporary
            os.replace(temporary, path)
    finally:
        with suppress(FileNotFoundError):
            temporary.unlink()


def make_folder(folder: Path) -> None:
    """Makes the output folder, and tries it before any work is done."""
    try:
        with replacing(folder / ".writable") as temporary:
            temporary.touch()
        (folder / ".writable").unlink()
    except OSError as error:
        raise ValueError(f"{folder}: cannot be written to ({error.strerror})") from None


def is_text(name: str) -> bool:
    """Whether the name of a file is UTF-8. Python has other bytes in it as surrogates."""
    return not any("\ud800" <= letter <= "\udfff" for letter in name)


def led_to(path: Path) -> Path:
    """Where its links lead. `Path.resolve` fails on links in a circle, before Python 3.13."""
    return Path(os.path.realpath(path))


def require_file(path: Path) -> None:
    """Raises FileNotFoundError unless there is a file: reading a pipe would wait for ever.
    ValueError for a name that is not UTF-8."""
    if not is_text(path.name):
        raise ValueError(f"{path}: its name is not UTF-8; rename it")
    if not path.is_file():
        what = "is a folder, not a" if path.is_dir() else "is not a" if path.exists() else "no such"
        raise FileNotFoundError(f"{path}: {what} file")


def read_text(path: Path | str) -> str:
    """The text of a file in UTF-8, with or without a byte-order mark.

    Raises ValueError with one line for a file that is not text, or too large to be one.
    """
    path = Path(path)
    require_file(path)
    size = path.stat().st_size
    if size > MAX_TEXT:
        raise ValueError(f"{path}: {size} bytes are not a text file of this program")
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{path}: not a text file ({error.reason} at byte {error.start})"
        ) from None


def plain_number(word: str) -> float:
    """A number as files have it, such as -1, .5, 1e-3 or nan. Raises ValueError for another word;
    also for 1_0 and for digits of other scripts, which Python takes."""
    try:
        if "_" not in word and word.isascii():
            return float(word)
    except ValueError:
        pass
    raise ValueError(f"{word[:40]!r} is not a number")


def plain_numbers(words: Iterable[str], place: object) -> list[float]:
    """Each a `plain_number`; the error names the place, such as a file and a line."""
    try:
        return [plain_number(word) for word in words]
    except ValueError as error:
        raise ValueError(f"{place}: {error}") from None


def is_json_of(path: Path, ours: Callable[[dict], bool]) -> bool:
    """Whether a file holds an object of JSON that is `ours`."""
    with suppress(ValueError, OSError, RecursionError):
        content = json.loads(read_text(path))
        return isinstance(content, dict) and ours(content)
    return False


def require_own_json(path: Path, ours: Callable[[dict], bool]) -> None:
    """Raises ValueError if the file exists and its contents are not `ours`."""
    if path.exists() and not is_json_of(path, ours):
        raise ValueError(f"{path}: already exists and is another file; give another name")


def write_text(path: Path | str, text: str) -> None:
    """Writes a text in UTF-8, all of it or nothing."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_lines(path: Path, lines: Iterable[str]) -> None:
    write_text(path, "".join(f"{line}\n" for line in lines))


def write_json(path: Path, content: Any) -> None:
    write_text(path, json.dumps(content, indent=1) + "\n")


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keeps other programs that ask for the same lock out of a folder while the block runs.

    The system frees the lock when its holder dies, so it cannot go stale. Raises ValueError where
    another process holds it.
    """
    make_folder(folder)
    path = folder / ".lock"
    file = _lock(path)
    try:
        yield
    finally:
        with suppress(FileNotFoundError):
            path.unlink()
        file.close()


def _lock(path: Path):
    while True:
        file = path.open("a+")
        try:
            # the process owns the lock, not the open file: a worker that outlives it lets go
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in (errno.EACCES, errno.EAGAIN):
                return file  # a file system without locks
            file.seek(0)
            holder = file.read().strip() or "?"
            file.close()
            raise ValueError(
                f"{path.parent}: process {holder} is writing there; wait for its end or give "
                "another folder"
            ) from None
        file.seek(0)
        if file.read(20).strip("0123456789\n"):
            file.close()
            raise ValueError(f"{path}: already exists and is not a lock; give another folder")
        with suppress(FileNotFoundError), naming(path):
            if os.path.samestat(os.fstat(file.fileno()), path.stat()):
                file.truncate(0)
                file.write(str(os.getpid()))
                file.flush()
                return file
        file.close()  # the previous holder has just removed the file


def usable_cores() -> int:
    """How many cores this process may use, at most as many as its container has time for."""
    own = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = QUOTA.read_text(encoding="ascii").split()
    except (OSError, ValueError):
        return own
    return own if quota == "max" else min(own, max(int(quota) // int(period), 1))
