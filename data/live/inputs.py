"""What a command line names to be read: scans in files, of folders, lists and patterns; recordings
that are read from their start."""

import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from glob import glob, has_magic
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import NamedTuple

import numpy as np

from millisecond.data.files import file_system, is_uri, led_to, read_text, require
from millisecond.data.folder.dataset import read_recording
from millisecond.data.formats.clouds import SUFFIXES
from millisecond.data.kitti.layout import RECORDING
from millisecond.data.live.folder import INNER, companions_of
from millisecond.data.live.recording import SUFFIXES as BAGS
from millisecond.data.live.recording import is_bag
from millisecond.data.live.source import PACKETS, recording_of

LIST = ".txt"  # a file of names, one per line
_companions = cache(companions_of)


class ScanFile(NamedTuple):
    """A scan in a file of its own."""

    name: str  # of its results: the file's, below the folder that was named, without its ending
    path: Path
    time: float | None = None  # seconds, where the drive tells it
    uri: str = ""  # of the file system that has the path, if it is not the local one
    recording: str = ""  # of an imported data set, whose scan it is
    pose: np.ndarray | None = None  # [4, 4] to the world, where the recording tells it


class RecordedScans(NamedTuple):
    """A bag or packets: its scans have the names that `source` gives them, below `name`."""

    name: str
    source: str  # as `open_source` takes it
    uri: str = ""  # as of `ScanFile`


class Unit(NamedTuple):
    """What is detected at a stretch: some files in a row, or a recording."""

    number: int  # among all units
    files: Sequence[ScanFile] = ()
    recording: RecordedScans | None = None


def find_inputs(inputs: Sequence[str]) -> list[ScanFile | RecordedScans]:
    """The scans of files, folders (with all folders in them), drives, bags, packets, patterns such
    as "*/*.bin", URIs such as s3://bucket/drives, recordings of `millisecond import` (.jsonl) and
    lists: text files that name an input per line, below their own folder.

    The order is the order of the inputs, then of names. Raises FileNotFoundError or ValueError for
    what is not there, has no end, or has the name of another one.
    """
    found = [one for name in inputs for one in _found(str(name))]
    others: dict[str, ScanFile | RecordedScans] = {}
    for one in sorted(found, key=lambda one: isinstance(one, ScanFile)):  # recordings first
        file = isinstance(one, ScanFile)
        other = others.get(f"{one.name.rpartition('/')[0]}/") if file else None
        other = other or others.setdefault(one.name if file else f"{one.name}/", one)
        if other is not one:
            raise ValueError(
                f"{_where(one)}: its results would overwrite the results of {_where(other)}; "
                "detect it separately"
            )
    return found


def _where(one: ScanFile | RecordedScans) -> object:
    return one.path if isinstance(one, ScanFile) else one.source


def _found(name: str, listed: Path | None = None) -> Iterator[ScanFile | RecordedScans]:
    """listed: the folder of the list that names it."""
    if name.startswith(("udp:", "street:")):
        raise ValueError(f"{name}: has no end; name what is recorded in files")
    if is_uri(name):
        yield from _elsewhere(name)
        return
    path = Path(name) if listed is None else listed / name
    if recording := recording_of(str(path)):
        yield RecordedScans(recording.name if recording.is_dir() else recording.stem, str(path))
    elif path.is_dir():
        yield from _in_folder(path)
    elif path.is_file() and path.suffix.lower() == LIST:
        yield from _in_list(path)
    elif path.is_file() and path.suffix == RECORDING:
        clouds = path.absolute().parents[1] / "points"
        for one in read_recording(path):
            cloud = clouds / f"{one.name}.pcd"
            yield ScanFile(one.name, cloud, one.time, recording=str(path), pose=one.pose)
    elif path.is_file():
        inner = listed and not Path(name).is_absolute() and ".." not in Path(name).parts
        yield ScanFile(str(Path(name).with_suffix("")) if inner else path.stem, path)
    elif has_magic(name):
        yield from _fitting(path)
    else:
        raise FileNotFoundError(f"{path}: no such file or folder")


def _in_folder(folder: Path) -> list[ScanFile | RecordedScans]:
    """All that it holds, hidden files left out; of a drive or a data set the clouds."""
    clouds = next((folder / name for name in INNER if (folder / name).is_dir()), folder)
    found: list[ScanFile | RecordedScans] = []
    for place, folders, files in os.walk(clouds, onerror=_raise, followlinks=True):
        here = Path(place)
        bags = [name for name in folders if is_bag(here / name)]
        folders[:] = sorted(name for name in folders if name[0] != "." and name not in bags)
        links = [name for name in folders if (here / name).is_symlink()]
        if links:  # to a folder above: it would be searched without an end
            parents = here.absolute().parents
            above = {led_to(here), *led_to(here).parents, *map(led_to, parents)}
            folders[:] = [n for n in folders if n not in links or led_to(here / n) not in above]
        for name in sorted(name for name in [*files, *bags] if name[0] != "."):
            path = here / name
            below = path.relative_to(clouds)
            inner = str(below if name in bags else below.with_suffix(""))
            if path.suffix.lower() in SUFFIXES:
                found.append(ScanFile(inner, path, _companions(here).time(path.stem)))
            elif recording_of(str(path)):
                found.append(RecordedScans(inner, str(path)))
    if not found:
        raise FileNotFoundError(f"{clouds}: no {', '.join(SUFFIXES)} files in this folder")
    return found


def _elsewhere(uri: str) -> list[ScanFile | RecordedScans]:
    """As `_in_folder`, or a single file; only the local file system tells the times of a drive."""
    system, top = file_system(uri)
    arrow = require("pyarrow.fs", uri)
    info, root = system.get_file_info(top), PurePosixPath(top)
    if info.type == arrow.FileType.NotFound:
        raise FileNotFoundError(f"{uri}: no such file or folder")
    if info.is_file:
        infos, root = [info], root.parent
    else:
        infos = system.get_file_info(arrow.FileSelector(top, recursive=True))
    files = [PurePosixPath(one.path).relative_to(root) for one in infos if one.is_file]
    clouds = next((name for name in INNER if any(f.is_relative_to(name) for f in files)), "")
    found: list[ScanFile | RecordedScans] = []
    for file in sorted(files, key=lambda file: (file.parts[:-1], file.name)):
        if not file.is_relative_to(clouds) or any(part[0] == "." for part in file.parts):
            continue
        name, path = str(file.relative_to(clouds).with_suffix("")), root / file
        if path.suffix.lower() in SUFFIXES:
            found.append(ScanFile(name, Path(path), uri=uri))
        elif path.suffix in (*BAGS, *PACKETS):
            found.append(RecordedScans(name, str(path), uri))
    if not found:
        raise FileNotFoundError(f"{uri}: no {', '.join((*SUFFIXES, *BAGS, *PACKETS))} files there")
    return found


@contextmanager
def local_copy(path: str, uri: str) -> Iterator[str]:
    """A copy of a file of another file system while the block runs; a local path as it is.

    Raises OSError or ValueError, also of the block, with the file's own name.
    """
    if not uri:
        yield path
        return
    with TemporaryDirectory(prefix="millisecond") as folder:
        copy = str(Path(folder) / Path(path).name)
        try:
            with file_system(uri)[0].open_input_stream(path) as source, open(copy, "wb") as file:
                shutil.copyfileobj(source, file)
            yield copy
        except (ValueError, OSError) as error:
            raise ValueError(str(error).replace(copy, path)) from None


def _raise(error: OSError) -> None:
    """Of a folder that cannot be read: its scans are not to be missing in silence."""
    raise error


def picture_of(scan: ScanFile) -> Path | None:
    """The camera's image of a scan, where a drive has one."""
    return None if scan.uri else _companions(scan.path.parent).picture(scan.path.stem)


def _in_list(path: Path) -> Iterator[ScanFile | RecordedScans]:
    names = [line.strip() for line in read_text(path).splitlines() if line.strip()]
    if not names:
        raise ValueError(f"{path}: names no scans; a list has a file or folder per line")
    for number, name in enumerate(names, start=1):
        try:
            if Path(name).suffix.lower() == LIST:
                raise ValueError(f"{name}: a list in a list")
            yield from _found(name, path.parent)
        except (ValueError, OSError) as error:
            raise type(error)(f"{path}, line {number}: {error}") from None


def _fitting(pattern: Path) -> Iterator[ScanFile | RecordedScans]:
    """Names begin below the last folder that the pattern names in full."""
    parts = pattern.parts
    plain = next(place for place, part in enumerate(parts) if has_magic(part))
    top = Path(*parts[:plain])
    found = sorted(Path(name) for name in glob(str(pattern), recursive=True))
    if not found:
        raise FileNotFoundError(f"{pattern}: no file has such a name")
    for path in found:
        if path.is_file() and path.suffix.lower() in SUFFIXES:
            yield ScanFile(str(path.relative_to(top).with_suffix("")), path)
        elif recording_of(str(path)):
            yield RecordedScans(str(path.relative_to(top).with_suffix("")), str(path))
