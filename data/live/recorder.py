"""Recordings for viewers: an MCAP file of ROS 2 messages, or a file of Rerun."""

from __future__ import annotations

from collections.abc import Sequence
from os import SEEK_END
from pathlib import Path
from typing import NoReturn

import numpy as np

from millisecond.data.boxes import FollowedObjects
from millisecond.data.files import NewFile, require
from millisecond.data.live.bag import BagSource
from millisecond.data.live.messages import (
    Colour,
    MessageFile,
    image_format,
    label_of,
    nanoseconds_of,
    turn_of,
)
from millisecond.data.live.scan import LiveScan

MCAP, RERUN = ".mcap", ".rrd"
PATIENCE = 60.0  # seconds, until a scan is written
END, TAIL = b"RRF2FOOT", 32  # what is among the last bytes of a whole file; Rerun tells no error


def is_recording(path: Path | None) -> bool:
    """Whether a recording is to be written there, by the name."""
    return path is not None and path.suffix in (MCAP, RERUN)


def open_recording(
    path: Path, bag: BagSource | None = None, others: Sequence[str] = ()
) -> RecordingFile:
    """The file by its name. bag, others: as of `MessageFile`, for messages alone."""
    return RerunFile(path) if path.suffix == RERUN else MessageFile(path, bag, others)


class RerunFile(NewFile):
    """Scans and what was found in them, for Rerun. It has the methods of `MessageFile`."""

    def __init__(self, path: Path):
        """Raises ValueError where the file is there already, or rerun-sdk is missing."""
        self._rerun = require("rerun", "an .rrd output")
        super().__init__(path)
        self.scans, self.notes = 0, ()
        self._rerun.set_strict_mode(True)  # otherwise it leaves out what it does not understand
        self._stream = self._rerun.RecordingStream("millisecond")
        self._inner = self.folder / "recording"

    def __enter__(self) -> RerunFile:
        self._stream.save(self._inner)
        return self

    def __exit__(self, *error: object) -> None:
        self._stream.disconnect()
        super().__exit__(*error)

    def add(self, scan: LiveScan, objects: FollowedObjects, colours: Sequence[Colour]) -> None:
        """As of `MessageFile`."""
        rerun, log = self._rerun, self._stream.log
        time = np.datetime64(nanoseconds_of(scan.time), "ns")
        self._stream.set_time("time", timestamp=time)
        intensity = rerun.AnyValues(intensity=scan.points[:, 3])
        log("lidar/points", rerun.Points3D(scan.points[:, :3]), intensity)
        boxes = rerun.Boxes3D(
            centers=objects.boxes[:, :3],
            sizes=objects.boxes[:, 3:6],
            quaternions=[turn_of(yaw) for yaw in objects.boxes[:, 6]],
            labels=[label_of(*one) for one in zip(*objects[1:4], strict=True)],
            colors=colours,
        )
        log("lidar/boxes", boxes)
        moving = [place for place, trail in enumerate(objects.trails) if len(trail) > 1]
        trails = [objects.trails[place] for place in moving]
        log("lidar/trails", rerun.LineStrips3D(trails, colors=[colours[one] for one in moving]))
        if scan.image is not None:
            media = f"image/{image_format(scan.image)}"
            content = scan.image.read_bytes()
            log("camera", rerun.EncodedImage(contents=content, media_type=media))
        self._require_written()
        self.scans += 1

    def close(self) -> None:
        """As of `MessageFile`."""
        if not self.scans:
            return
        self._stream.disconnect()
        with self._inner.open("rb") as file:
            file.seek(-TAIL, SEEK_END)
            if END not in file.read():
                self._fail("its end is missing")
        self.take_place(self._inner)

    def _require_written(self) -> None:
        try:
            self._stream.flush(timeout_sec=PATIENCE)
        except RuntimeError as error:
            self._fail(str(error))

    def _fail(self, why: str) -> NoReturn:
        raise OSError(f"{self.path}: cannot be written; is the disk full? ({why})") from None


RecordingFile = MessageFile | RerunFile
