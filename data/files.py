"""Files that are either whole or not there."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def replacing(path: Path | str) -> Iterator[Path]:
    """Give a path beside `path` to write to; it takes the place of `path` when the block succeeds.

    A reader never sees half a file, and a failure leaves what was there before.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        yield temporary
        os.replace(temporary, path)
    except OSError as error:
        if error.errno and not error.filename:  # a full disk: Python does not say whose
            raise OSError(error.errno, error.strerror, str(path)) from None
        raise
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
