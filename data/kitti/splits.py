"""Which frames a split has."""

import os
import re
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path

from data.files import read_text

NAME = re.compile(r"[\w-][\w.-]*")


def check_name(split: str) -> None:
    """Raises ValueError for what cannot be the name of a split: it becomes part of file names."""
    if not NAME.fullmatch(split):
        raise ValueError(
            f"split {split!r}: a name has letters, digits, '-', '_' and '.' only; a list of frames "
            "elsewhere is given as the path of a .txt file"
        )


def read_split(path: Path | str) -> tuple[str, ...]:
    """Read frame ids, one per line, in the order of the file; blank lines do not count."""
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(
            f"{path}: no such split; take one of those in {path.parent}, or the split 'all' for "
            "every frame that has a cloud"
        )
    lines = enumerate(read_text(path).splitlines(), start=1)
    numbered = [(name, number) for number, line in lines for name in line.split()]
    if not numbered:
        raise ValueError(f"{path}: the split names no frames")
    first: dict[str, int] = {}
    for name, number in numbered:
        if not NAME.fullmatch(name):
            raise ValueError(
                f"{path}:{number}: {name[:80]!r} is no frame id, the name of a scan without its "
                ".bin: letters, digits, '-', '_' and '.' only"
            )
        if name in first:
            raise ValueError(f"{path}:{number}: {name} is named in line {first[name]} already")
        first[name] = number
    return tuple(first)


def split_name(root: Path, split: str, ids: Sequence[str]) -> str:
    """What files of a split are called. A list outside of root/ImageSets gets a number too, made
    from its frames: several lists may be called train.txt."""
    if not split.endswith(".txt"):
        return split
    path = Path(split)
    if path.resolve().parent == (root / "ImageSets").resolve():
        return path.stem
    return f"{path.stem}-{zlib.crc32(' '.join(ids).encode()):08x}"


def require_files(ids: Sequence[str], folder: Path, suffix: str, needed_by: object) -> None:
    """Raise FileNotFoundError, naming the first few and the number, for ids without a file."""
    present = set()
    if folder.is_dir():
        with os.scandir(folder) as entries:
            present = {entry.name for entry in entries if entry.is_file()}
    missing = [name for name in ids if name + suffix not in present]
    if missing:
        raise FileNotFoundError(
            f"{folder}: {some([name + suffix for name in missing])} not there, of {len(ids)} "
            f"that {needed_by} names; add the files or choose another split"
        )


def some(names: Iterable[str]) -> str:
    """The first few of a list, and how many they are: 'a, b, c ... (7 in all) are'."""
    names = list(names)
    first = ", ".join(names[:3])
    if len(names) <= 3:
        return first + (" is" if len(names) == 1 else " are")
    return f"{first} ... ({len(names)} in all) are"
