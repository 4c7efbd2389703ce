"""Recordings of Ouster sensors, which Ouster's own library reads: packets in .pcap, turns in .osf.

An Ouster's packets tell neither their layout nor the angles of the beams. Both are in the sensor's
metadata, a JSON file beside the .pcap that begins with its name; an .osf has them in itself. Points
are in the frame of the sensor as Ouster's manual defines it: x away from the connector, z up.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from millisecond.data.checks.sensor import IntensityScale
from millisecond.data.files import is_json_of, require
from millisecond.data.formats.points import Cloud
from millisecond.data.live.scan import LiveScan, Source, Trouble, Troubles

SUFFIX = ".osf"
KEYS = {"lidar_data_format", "data_format", "beam_altitude_angles"}  # some of them are in metadata
RETURNS = (("RANGE", "REFLECTIVITY"), ("RANGE2", "REFLECTIVITY2"))


def metadata_of(path: Path) -> list[Path]:
    """The files of metadata beside a .pcap: JSON of an Ouster whose name begins with its own."""
    beside = sorted(path.parent.glob("*.json"))
    own = [file for file in beside if file.stem.startswith(path.stem)]
    return [file for file in own if is_json_of(file, lambda content: not KEYS.isdisjoint(content))]


class OusterSource(Source):
    """The turns of one sensor."""

    live = False

    def __init__(self, path: Path, serial: str = ""):
        """serial: number of the sensor; empty where there is only one. Raises ValueError for
        another one, several, or a file that cannot be read."""
        self._path = path
        source = self._opened()
        known = [str(info.sn) for info in source.sensor_info]
        if not serial and len(known) > 1:
            text = f"{len(known)} sensors: {', '.join(known)}; choose one, e.g. {path}:{known[0]}"
            raise ValueError(f"{path}: {text}")
        if serial and serial not in known:
            raise ValueError(f"{path}: no sensor {serial} in it; it has {', '.join(known)}")
        self._place = known.index(serial) if serial else 0
        self._info = source.sensor_info[self._place]
        self.rate = float(self._info.format.fps) or 10.0

    def __iter__(self) -> Iterator[LiveScan | Trouble]:
        core = require("ouster.sdk.core", "an Ouster")
        place_of, scale = core.XYZLutFloat(self._info, False), IntensityScale()
        source, troubles, number = self._opened(), Troubles(), 0
        for frames in source:
            for turn in frames:
                if turn is None or turn.sensor_info.sn != self._info.sn:
                    continue
                here, whole = int(np.count_nonzero(turn.status & 1)), len(turn.status)
                if here < whole:
                    text = f"{self._path}: a turn of {here} columns of {whole}"
                    yield from troubles.add("columns", text, lost=False)
                points, notes = scale(_cloud(turn, place_of))
                for note in notes:
                    text = f"{self._path}: {note.text}"
                    yield from troubles.add(note.kind, text, lost=False)
                stamp = int(turn.timestamp[turn.get_first_valid_column()])
                yield LiveScan(points, stamp / 1e9, f"{number:06d}", frame="os_sensor", stamp=stamp)
                number += 1
        foreign = getattr(source, "size_error_count", 0) + getattr(source, "id_error_count", 0)
        if foreign:
            yield Trouble(f"{self._path}: {foreign} packets do not fit the metadata; left out")
        if not number:
            yield Trouble(f"{self._path}: no turn in it; it is cut off, or of another sensor")
        yield from troubles.rest()

    def _opened(self) -> Any:
        library = require("ouster.sdk", "an Ouster")
        try:
            return library.open_source(str(self._path), collate=False)
        except Exception as error:  # of the library's own kind, with lines of its own
            line = " ".join(str(error).rpartition("more details: ")[2].split())
            raise ValueError(f"{self._path}: cannot be read as an Ouster's: {line[:200]}") from None


def _cloud(turn: Any, place_of: Any) -> Cloud:
    """The points of all returns; a range of 0 stands for a ray without an echo."""
    parts, kind = [], None
    for distance, light in RETURNS:
        if distance not in turn.fields:
            continue
        ranges = turn.field(distance)
        echoes = ranges > 0
        points = np.zeros((np.count_nonzero(echoes), 4), np.float32)
        points[:, :3] = place_of(ranges)[echoes]
        if light in turn.fields:
            intensity = turn.field(light)
            points[:, 3], kind = intensity[echoes], intensity.dtype
        parts.append(points)
    return Cloud(np.concatenate(parts), kind)
