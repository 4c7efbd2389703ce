"""The packed clouds that tools/prepare.py makes of a split."""

from __future__ import annotations

import warnings
import zlib
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np

from data.packed import Pack

COLUMNS = {"frame": "U", "size": "i8", "time": "i8", "content": "i8", "view": "i8"}


class Clouds(Protocol):
    """The frames of a data set that can be packed."""

    @property
    def frame_ids(self) -> tuple[str, ...]: ...

    def cloud_file(self, frame_id: str) -> Path: ...

    def view(self, frame_id: str) -> int:
        """A checksum of all that decides which numbers of the file the frame has."""
        ...

    def prepare_command(self) -> str:
        """The command line that makes the packs."""
        ...


class Source(NamedTuple):
    """What a packed cloud was made from."""

    size: int  # bytes of the cloud's file
    time: int  # of its last change, ns
    content: int  # CRC of its bytes
    view: int  # see Clouds.view

    @classmethod
    def of(cls, clouds: Clouds, frame_id: str) -> Source:
        """As the files are now; reads them."""
        path = clouds.cloud_file(frame_id)
        status, content = path.stat(), zlib.crc32(path.read_bytes())
        return cls(status.st_size, status.st_mtime_ns, content, clouds.view(frame_id))

    def still_there(self, clouds: Clouds, frame_id: str) -> bool:
        """Whether the files are unchanged.

        A cloud of the same size and time counts as unchanged. One of another time is read and
        compared, so that a copied data set keeps its pack.
        """
        path = clouds.cloud_file(frame_id)
        status = path.stat()
        if status.st_size != self.size or clouds.view(frame_id) != self.view:
            return False
        return status.st_mtime_ns == self.time or zlib.crc32(path.read_bytes()) == self.content


class PackedClouds:
    """The packed clouds of those frames whose files have not changed since."""

    def __init__(self, path: Path, clouds: Clouds):
        """Open the pack of this name. Raises ValueError where it is damaged, FileNotFoundError
        where there is none."""
        self._pack, self._command = Pack(path), clouds.prepare_command()
        self._row: dict[str, int] = {}
        self.sources: dict[str, Source] = {}
        columns = self._pack.columns
        if columns.keys() >= COLUMNS.keys():  # otherwise an older version wrote it
            rows = {name: row for row, name in enumerate(columns["frame"].tolist())}
            fields = [columns[field] for field in Source._fields]
            for name in clouds.frame_ids:
                row = rows.get(name)
                if row is None:
                    continue
                source = Source(*(int(field[row]) for field in fields))
                if source.still_there(clouds, name):
                    self._row[name], self.sources[name] = row, source
        self.stale = [name for name in clouds.frame_ids if name not in self._row]
        self._warned = False

    def __contains__(self, frame_id: str) -> bool:
        return frame_id in self._row

    def __getitem__(self, frame_id: str) -> np.ndarray:
        """[P, 4 or more] float32, a copy."""
        return self._pack[self._row[frame_id]]

    def warn(self) -> None:
        """Says once that some frames are not as they were packed."""
        if not self.stale or self._warned:
            return
        self._warned = True
        changed, every = len(self.stale), len(self.stale) + len(self._row)
        first = ", ".join(self.stale[:3]) + (" ..." if changed > 3 else "")
        warnings.warn(
            f"{self._pack.path}: made before {changed} of {every} clouds or their calibrations "
            f"were changed ({first}), which are read from the data set itself; run "
            f"{self._command} again",
            stacklevel=3,
        )
