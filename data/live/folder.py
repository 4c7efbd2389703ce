"""A folder of clouds as a source."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from data.kitti.points import SUFFIXES, read_points
from data.live.scan import LiveScan, Trouble

RATE = 10.0  # turns per second of files that say nothing of time


class FolderSource:
    """The clouds of some files, one after the other."""

    live = False
    rate = RATE

    def __init__(self, folder: Path, files: Sequence[Path]):
        self._folder, self._files = folder, files

    def __iter__(self) -> Iterator[LiveScan | Trouble]:
        for number, file in enumerate(self._files):
            if not self._folder.is_dir():
                yield Trouble(f"{self._folder}: the folder is gone")
                return
            try:
                points = read_points(file)
            except (ValueError, OSError) as error:
                yield Trouble(str(error))
                continue
            yield LiveScan(points, number / self.rate, file.stem)

    def close(self) -> None:
        """Nothing to end: a file is read at once."""


def open_folder(folder: Path) -> FolderSource:
    """Raises FileNotFoundError where there are no clouds."""
    files = sorted(file for file in folder.iterdir() if file.suffix in SUFFIXES)
    if not files:
        raise FileNotFoundError(f"{folder}: no {' or '.join(SUFFIXES)} files in this folder")
    return FolderSource(folder, files)
