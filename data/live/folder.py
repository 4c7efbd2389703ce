"""A folder of clouds as a source: plain files, or a drive of KITTI with its pictures."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from data.cloud_files import SUFFIXES, read_cloud, read_scan
from data.intensity import IntensityScale
from data.live.companions import RATE, Companions, companions_of, find_clouds
from data.live.scan import LiveScan, Trouble, Troubles
from data.point_columns import KITTI_POINTS, PointColumns
from data.scan_checks import Note


class FolderSource:
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
                yield from troubles.add(note.kind, f"{file}: {note.text}")
            scan = LiveScan(points, number / RATE, file.stem)
            yield from self._with_companions(scan, troubles)
        yield from troubles.rest()

    def close(self) -> None:
        """Nothing to end: a file is read at once."""

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
            yield from troubles.add("image", f"{folder}: no image of scan {scan.name}")
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
    files.sort(key=_by_number)
    companions = companions_of(folder)
    if missing := companions.missing([file.stem for file in files]):
        trouble = Trouble(f"{folder}: scans of this recording that are not there: {missing}")
        companions = replace(companions, troubles=(*companions.troubles, trouble))
    return FolderSource(files, companions, points)


def _by_number(file: Path) -> list[str]:
    """10.bin comes after 9.bin."""
    return [
        f"{part:0>40}" if part.isdecimal() else part for part in re.split("([0-9]+)", file.name)
    ]
