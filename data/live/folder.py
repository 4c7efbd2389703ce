"""A folder of clouds as a source: plain files, or a drive of KITTI with its pictures."""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import TypeVar

import numpy as np

from millisecond.data.calibration import Calibration
from millisecond.data.checks.scans import Note
from millisecond.data.checks.sensor import IntensityScale
from millisecond.data.files import read_text
from millisecond.data.folder.dataset import CLOUDS as PLAIN
from millisecond.data.formats.clouds import SUFFIXES, read_cloud, read_scan
from millisecond.data.formats.points import KITTI_POINTS, PointColumns
from millisecond.data.kitti.layout import CLOUDS
from millisecond.data.live.scan import LiveScan, Source, Trouble, Troubles

RATE = 10.0  # turns per second, where nothing tells the time
PICTURES = (".png", ".jpg", ".jpeg")
INNER = ("velodyne_points/data", *CLOUDS, *(f"training/{name}" for name in CLOUDS), *PLAIN)
NUMBER = re.compile("[0-9]{6}|[0-9]{10}")  # as KITTI counts scans
MICROSECONDS = len("2011-09-26 13:02:25.964389")  # KITTI gives three more digits
T = TypeVar("T")


@dataclass(frozen=True)
class Companions:
    """The files beside a folder of clouds; the files of a scan have its name."""

    pictures: Path | None = None
    shared_calibration: Calibration | None = None  # of all scans
    calibrations: Path | None = None
    numbered: bool = False  # whether the scans' names count the turns
    times: tuple[float, ...] = ()  # seconds, by those numbers
    troubles: tuple[Trouble, ...] = ()

    def picture(self, name: str) -> Path | None:
        if self.pictures is None:
            return None
        paths = (self.pictures / f"{name}{suffix}" for suffix in PICTURES)
        return next((path for path in paths if path.is_file()), None)

    def calibration(self, name: str) -> Calibration | None:
        """Raises ValueError or OSError where the scan's own file cannot be read."""
        if self.calibrations is None:
            return self.shared_calibration
        return Calibration.from_file(self.calibrations / f"{name}.txt")

    def time(self, name: str) -> float | None:
        """When the scan was made, where that is known."""
        if not (self.numbered and NUMBER.fullmatch(name)):
            return None
        number = int(name)
        if not self.times:
            return number / RATE
        return self.times[number] if number < len(self.times) else None

    def missing(self, names: Sequence[str]) -> int:
        """How many scans of the recording are not there."""
        if not self.numbered or not all(NUMBER.fullmatch(name) for name in names):
            return 0
        first = 0 if self.times else int(names[0])
        return max(int(names[-1]) + 1, len(self.times)) - first - len(set(names))


def find_clouds(folder: Path) -> Path:
    """The folder of clouds inside the folder of a drive or a data set; otherwise the folder itself.

    Raises ValueError for a folder of several sequences.
    """
    clouds = next((folder / name for name in INNER if (folder / name).is_dir()), folder)
    if clouds.name in CLOUDS and not any(path.is_file() for path in clouds.iterdir()):
        sequences = sorted(path for path in clouds.iterdir() if path.is_dir())
        if sequences:
            raise ValueError(f"{clouds}: {len(sequences)} sequences; name one, e.g. {sequences[0]}")
    return clouds


def companions_of(clouds: Path) -> Companions:
    """By the names of the folders around it, as in a raw drive, of a tracking sequence, of a drive
    with one calib.txt, of the object benchmark, or none. What cannot be read is a trouble."""
    clouds = clouds.absolute()
    parent, root = clouds.parent, clouds.parent.parent
    if (parent.name, clouds.name) == ("velodyne_points", "data"):
        return _raw_drive(root)
    if parent.name in CLOUDS:
        pictures, file = root / "image_02" / clouds.name, root / "calib" / f"{clouds.name}.txt"
        return _sequence(pictures, lambda: Calibration.from_file(file))
    if clouds.name in CLOUDS and (file := parent / "calib.txt").is_file():
        return _sequence(parent / "image_2", lambda: Calibration.from_file(file))
    if clouds.name in CLOUDS:
        return Companions(_folder(parent / "image_2"), calibrations=_folder(parent / "calib"))
    return Companions()


def _raw_drive(drive: Path) -> Companions:
    found = _sequence(drive / "image_02" / "data", lambda: Calibration.from_raw(drive.parent))
    times, troubles = _attempt(lambda: _read_times(drive / "velodyne_points" / "timestamps.txt"))
    return Companions(
        found.pictures,
        found.shared_calibration,
        numbered=True,
        times=times or (),
        troubles=found.troubles + troubles,
    )


def _sequence(pictures: Path, read: Callable[[], Calibration]) -> Companions:
    calibration, troubles = _attempt(read)
    return Companions(_folder(pictures), calibration, numbered=True, troubles=troubles)


def _folder(path: Path) -> Path | None:
    return path if path.is_dir() else None


def _attempt(read: Callable[[], T]) -> tuple[T | None, tuple[Trouble, ...]]:
    try:
        return read(), ()
    except (ValueError, OSError) as error:
        lost = not isinstance(error, FileNotFoundError)
        return None, (Trouble(f"{error}; played without it", lost),)


def _read_times(path: Path) -> tuple[float, ...]:
    times = []
    for number, line in enumerate(read_text(path).splitlines(), start=1):
        try:
            moment = datetime.fromisoformat(line.strip()[:MICROSECONDS])
        except ValueError:
            raise ValueError(f"{path}, line {number}: {line[:40]!r} is not a time") from None
        times.append(moment.replace(tzinfo=timezone.utc).timestamp())
    return tuple(times)


class FolderSource(Source):
    """The clouds of some files in their order."""

    live = False
    rate = RATE

    def __init__(
        self, files: Sequence[Path], companions: Companions, points: PointColumns = KITTI_POINTS
    ):
        self._files, self._companions, self._points = files, companions, points

    def __iter__(self) -> Iterator[LiveScan | Trouble]:
        scale, troubles = IntensityScale(), Troubles()
        yield from self._companions.troubles
        for number, file in enumerate(self._files):
            if not file.parent.is_dir():
                yield Trouble(f"{file.parent}: the folder is gone")
                break
            try:
                points, notes = self._read(file, scale)
            except (ValueError, OSError) as error:
                yield Trouble(str(error))
                continue
            for note in notes:
                yield from troubles.add(note.kind, f"{file}: {note.text}", lost=False)
            scan = LiveScan(points, number / RATE, file.stem)
            yield from self._with_companions(scan, troubles)
        yield from troubles.rest()

    def _read(self, file: Path, scale: IntensityScale) -> tuple[np.ndarray, list[Note]]:
        """With KITTI's columns, the scale of the intensities is found out."""
        if self._points == KITTI_POINTS:
            return scale(read_cloud(file))
        return read_scan(file, self._points), []

    def _with_companions(self, scan: LiveScan, troubles: Troubles) -> Iterator[LiveScan | Trouble]:
        calibration, image = None, self._companions.picture(scan.name)
        try:
            calibration = self._companions.calibration(scan.name)
        except (ValueError, OSError) as error:
            yield from troubles.add("calibration", str(error))
        if image is None and self._companions.pictures is not None:
            folder = self._companions.pictures
            yield from troubles.add("image", f"{folder}: no image of scan {scan.name}", lost=False)
        time = self._companions.time(scan.name)
        yield scan._replace(
            time=scan.time if time is None else time, image=image, calibration=calibration
        )


def open_folder(path: Path, points: PointColumns = KITTI_POINTS) -> FolderSource:
    """The clouds of a folder by their names, numbers in them by value; or a single file. points:
    their columns, as the network takes them.

    Raises FileNotFoundError where there are no clouds, ValueError for several sequences.
    """
    if path.is_file():
        return FolderSource([path], companions_of(path.parent), points)
    folder = find_clouds(path)
    files = [file for file in folder.iterdir() if file.suffix.lower() in SUFFIXES]
    if not files:
        raise FileNotFoundError(f"{folder}: no {', '.join(SUFFIXES)} files in this folder")
    files.sort(key=lambda file: by_name(file.name))
    companions = companions_of(folder)
    if missing := companions.missing([file.stem for file in files]):
        text = f"{folder}: scans of this recording that are not there: {missing}"
        trouble = Trouble(text, lost=False)
        companions = replace(companions, troubles=(*companions.troubles, trouble))
    return FolderSource(files, companions, points)


def by_name(name: str) -> list[tuple[int, str]]:
    """Sorts by name, numbers in it by their value: 9 comes before 10."""
    parts = re.split("([0-9]+)", name)
    return [(int(part), part) if part.isdecimal() else (-1, part) for part in parts]
