"""What stands beside the clouds of a KITTI folder: pictures, calibration, times."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import TypeVar

from data.files import read_text
from data.folder.layout import CLOUDS as PLAIN
from data.kitti.calibration import Calibration
from data.kitti.layout import CLOUDS
from data.live.scan import Trouble

RATE = 10.0  # turns per second, where nothing tells the time
PICTURES = (".png", ".jpg", ".jpeg")
INNER = ("velodyne_points/data", *CLOUDS, *(f"training/{name}" for name in CLOUDS), *PLAIN)
NUMBER = re.compile("[0-9]{6}|[0-9]{10}")  # as KITTI counts scans
MICROSECONDS = len("2011-09-26 13:02:25.964389")  # KITTI gives three more digits
T = TypeVar("T")


@dataclass(frozen=True)
class Companions:
    """The files beside a folder of clouds; those of a scan have its name."""

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
    """The folder of clouds inside that of a drive or a data set; otherwise the folder itself.

    Raises ValueError for a folder of several sequences.
    """
    clouds = next((folder / name for name in INNER if (folder / name).is_dir()), folder)
    if clouds.name in CLOUDS and not any(path.is_file() for path in clouds.iterdir()):
        sequences = sorted(path for path in clouds.iterdir() if path.is_dir())
        if sequences:
            raise ValueError(f"{clouds}: {len(sequences)} sequences; name one, e.g. {sequences[0]}")
    return clouds


def companions_of(clouds: Path) -> Companions:
    """By the names of the folders around: those of a raw drive, of a tracking sequence, of a drive
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
        return None, (Trouble(f"{error}; played without it"),)


def _read_times(path: Path) -> tuple[float, ...]:
    times = []
    for number, line in enumerate(read_text(path).splitlines(), start=1):
        try:
            moment = datetime.fromisoformat(line.strip()[:MICROSECONDS])
        except ValueError:
            raise ValueError(f"{path}, line {number}: {line[:40]!r} is no time") from None
        times.append(moment.replace(tzinfo=timezone.utc).timestamp())
    return tuple(times)
