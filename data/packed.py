"""Many point clouds in one memory-mapped file with an index.

A pack NAME is two files. NAME.bin holds the rows of all entries, float32 [R, width]. NAME.npz
holds:

offsets    [n + 1] int64: entry i has the rows offsets[i]:offsets[i + 1]
signature  a digest of its sources
crc        [n] a checksum of each entry
width      numbers of a row; 4 where it is missing, as in older packs
others     [n] further columns, e.g. frame ids

`PackedClouds` are the packed clouds that millisecond prepare makes of a split.
"""

from __future__ import annotations

import json
import os
import shlex
import warnings
import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple
from zipfile import ZIP_STORED, BadZipFile, ZipFile

import numpy as np

from millisecond.data.files import led_to, naming, replacing
from millisecond.data.formats.clouds import read_scan
from millisecond.data.formats.points import PointColumns
from millisecond.data.frame import Frame
from millisecond.data.kitti.layout import RECORDING

__all__ = ["Split"]

FLOAT = 4  # bytes


class Pack:
    """A finished pack: `pack[i]` is the cloud of entry i, `pack.columns` what is known of them."""

    def __init__(self, path: Path | str):
        """Open the pack of this name (a path without suffix).

        Raises FileNotFoundError where there is none, ValueError where it is damaged.
        """
        self.path = Path(path)
        index = index_path(self.path)
        if not index.is_file():
            raise FileNotFoundError(f"{index}: no such file; make it with millisecond prepare")
        try:
            self.columns = _read_columns(index)
            self.offsets = self.columns.pop("offsets")
            self.signature = str(self.columns.pop("signature"))
            self._crc = self.columns.pop("crc", None)  # None: an older pack
            self.width = int(self.columns.pop("width", 4))
            size = data_path(self.path).stat().st_size
        except (BadZipFile, KeyError, ValueError, OSError, MemoryError) as error:
            raise ValueError(_damaged(index, error)) from None
        rises = self.offsets.ndim == 1 and self.offsets[:1].tolist() == [0]
        if not rises or (np.diff(self.offsets) < 0).any():
            raise ValueError(_damaged(index, "its offsets do not rise from 0"))
        if self.width < 1 or size != self.offsets[-1] * self.width * FLOAT:
            raise ValueError(_damaged(data_path(self.path), f"{size} bytes"))

    def __reduce__(self):
        # A worker maps the file again; a pickled map would carry the whole file.
        return Pack, (self.path,)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, entry: int) -> np.ndarray:
        """[P, width] float32, a copy. Raises ValueError where it is not as it was written."""
        rows = np.array(self._rows[self.offsets[entry] : self.offsets[entry + 1]])
        if self._crc is not None and zlib.crc32(rows.data) != self._crc[entry]:
            raise ValueError(_damaged(data_path(self.path), f"checksum of entry {entry}"))
        return rows

    @cached_property
    def _rows(self) -> np.ndarray:
        if self.offsets[-1] == 0:
            return np.zeros((0, self.width), np.float32)
        return np.memmap(data_path(self.path), "<f4", mode="r").reshape(-1, self.width)


class PackWriter:
    """Writes a pack step by step; stopped at any moment, a new writer goes on where it ended.

    What is written so far lies in NAME.partial, and a line of JSON for every step in NAME.journal.
    A new writer continues them if the signature is the same, and otherwise starts again. So the
    finished files are the same bytes however often the work was stopped.
    """

    def __init__(
        self, path: Path | str, signature: str, columns: Mapping[str, str], width: int = 4
    ):
        """columns: name -> numpy type of the values that `append` takes beside the clouds; width:
        numbers of a point."""
        self.path, self.signature, self.types = Path(path), signature, dict(columns)
        self.width = width
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._partial = self.path.with_name(f"{self.path.name}.partial")
        self._log = self.path.with_name(f"{self.path.name}.journal")
        self._require_own()
        self._steps = self._take_up()
        self._data = self._partial.open("ab")
        self._journal = self._log.open("a", encoding="utf-8")

    def __enter__(self) -> PackWriter:
        return self

    def __exit__(self, *_) -> None:
        with naming(self._partial):
            self._data.close()
        with naming(self._log):
            self._journal.close()

    def _require_own(self) -> None:
        """Raises ValueError for files of these names that no writer has left."""
        data, index = data_path(self.path), index_path(self.path)
        foreign = [
            (data, data.exists() and not (index.exists() or self._log.exists())),
            (index, index.exists() and not _starts(index, b"PK")),
            (self._log, self._log.exists() and not _starts(self._log, b'{"signature"')),
            (self._partial, self._partial.exists() and not self._log.exists()),
        ]
        for path, wrong in foreign:
            if wrong:
                raise ValueError(f"{path}: already exists and is not a pack; give another folder")

    @property
    def steps(self) -> int:
        """How many steps are done."""
        return len(self._steps)

    def append(self, clouds: Sequence[np.ndarray], **columns: Sequence | np.ndarray) -> None:
        """One step: clouds [P, width] and as many values in each column; either may be empty."""
        blobs = [np.ascontiguousarray(cloud, "<f4").tobytes() for cloud in clouds]
        with naming(self._partial):
            self._data.writelines(blobs)
            self._data.flush()
        step = {"counts": [len(cloud) for cloud in clouds], "crc": [*map(zlib.crc32, blobs)]}
        step |= {name: np.asarray(columns[name]).tolist() for name in self.types}
        with naming(self._log):
            self._journal.write(json.dumps(step) + "\n")
            self._journal.flush()
        self._steps.append(step)

    def finish(self) -> None:
        """Give the files their names, data before index."""
        counts = [count for step in self._steps for count in step["counts"]]
        columns: dict[str, Any] = {
            name: np.array([value for step in self._steps for value in step[name]], dtype)
            for name, dtype in {**self.types, "crc": "i8"}.items()
        }
        with naming(self._partial):
            os.fsync(self._data.fileno())
        index_path(self.path).unlink(missing_ok=True)
        os.replace(self._partial, data_path(self.path))
        with replacing(index_path(self.path)) as temporary, temporary.open("wb") as file:
            offsets = np.cumsum([0, *counts], dtype=np.int64)
            signature = np.array(self.signature)
            np.savez(file, offsets=offsets, signature=signature, width=self.width, **columns)
        self._log.unlink()

    def _take_up(self) -> list[dict]:
        """Read the steps that are complete, and cut off what follows them."""
        steps, kept = [], 0
        lines = self._log.read_bytes().splitlines(keepends=True) if self._log.is_file() else []
        size = self._partial.stat().st_size if self._partial.is_file() else 0
        header = (json.dumps({"signature": self.signature}) + "\n").encode()
        if not lines or lines[0] != header:
            with naming(self._log):
                self._log.write_bytes(header)
            self._partial.write_bytes(b"")
            return []
        length = len(header)
        for line in lines[1:]:
            if not line.endswith(b"}\n"):
                break
            step = json.loads(line)
            end = kept + sum(step["counts"]) * self.width * FLOAT
            if end > size:
                break
            steps.append(step)
            kept, length = end, length + len(line)
        os.truncate(self._partial, kept)
        os.truncate(self._log, length)
        return steps


def _starts(path: Path, start: bytes) -> bool:
    """Whether a file begins so, as far as it goes: it may have been cut off."""
    with path.open("rb") as file:
        return start.startswith(file.read(len(start)))


def _read_columns(index: Path) -> dict[str, np.ndarray]:
    # np.savez does not compress; a compressed array could be far larger than its file
    with ZipFile(index) as archive:
        if any(entry.compress_type != ZIP_STORED for entry in archive.infolist()):
            raise ValueError("compressed")
    with np.load(index, allow_pickle=False) as stored:
        return {name: stored[name] for name in stored.files}


def data_path(path: Path) -> Path:
    return path.with_name(f"{path.name}.bin")


def index_path(path: Path) -> Path:
    return path.with_name(f"{path.name}.npz")


def _damaged(path: Path, why: object) -> str:
    return f"{path}: damaged ({why}); delete it and run millisecond prepare again"


COLUMNS = {"frame": "U", "size": "i8", "time": "i8", "content": "i8", "view": "i8"}


class CloudOrigin(NamedTuple):
    """What a packed cloud was made from."""

    size: int  # bytes of the cloud's file
    time: int  # of its last change, ns
    content: int  # CRC of its bytes
    view: int  # see Split.view

    @classmethod
    def of(cls, clouds: Split, frame_id: str) -> CloudOrigin:
        """As the files are now; reads them."""
        path = clouds.layout.cloud(frame_id)
        status, content = path.stat(), zlib.crc32(path.read_bytes())
        return cls(status.st_size, status.st_mtime_ns, content, clouds.view(frame_id))

    def still_there(self, clouds: Split, frame_id: str) -> bool:
        """Whether the files are unchanged.

        A cloud of the same size and time counts as unchanged. One of another time is read and
        compared, so that a copied data set keeps its pack.
        """
        path = clouds.layout.cloud(frame_id)
        status = path.stat()
        if status.st_size != self.size or clouds.view(frame_id) != self.view:
            return False
        return status.st_mtime_ns == self.time or zlib.crc32(path.read_bytes()) == self.content


class PackedClouds:
    """The packed clouds of those frames whose files have not changed since."""

    def __init__(self, path: Path, clouds: Split):
        """Open the pack of this name. Raises ValueError where it is damaged, FileNotFoundError
        where there is none."""
        self._pack, self._command = Pack(path), clouds.prepare_command()
        self._row: dict[str, int] = {}
        self.sources: dict[str, CloudOrigin] = {}
        columns = self._pack.columns
        if columns.keys() >= COLUMNS.keys():  # otherwise an older version wrote it
            rows = {name: row for row, name in enumerate(columns["frame"].tolist())}
            fields = [columns[field] for field in CloudOrigin._fields]
            for name in clouds.frame_ids:
                row = rows.get(name)
                if row is None:
                    continue
                source = CloudOrigin(*(int(field[row]) for field in fields))
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


class Split(ABC):
    """The frames of a split; their clouds may be packed, see `pack_path`."""

    crop: bool  # whether points out of the camera's image are left out
    velocities = False  # whether its frames tell the velocities of their objects
    layout: Any  # where its files are

    def __init__(
        self,
        classes: Sequence[str],
        prepared: Path | str | None,
        packed: bool,
        points: PointColumns,
    ):
        """For the arguments see the data sets; they set `crop` and `layout` before."""
        self.classes, self.columns = tuple(classes), points
        self.prepared = self.layout.root / "millisecond" if prepared is None else Path(prepared)
        path = self.pack_path("clouds")
        has_pack = packed and index_path(path).is_file()
        self.packed_clouds = PackedClouds(path, self) if has_pack else None

    @property
    def name(self) -> str:
        """What files of the split are called. A list outside of ROOT/ImageSets gets a number too,
        made from its frames: several lists may be called train.txt."""
        split, ids = self.layout.split, self.layout.ids
        if not split.endswith((".txt", RECORDING)):
            return split
        path = Path(split)
        if led_to(path).parent == led_to(self.layout.root / "ImageSets"):
            return path.stem
        return f"{path.stem}-{zlib.crc32(' '.join(ids).encode()):08x}"

    def pack_path(self, kind: str) -> Path:
        """The pack (a path without suffix) of the split's "clouds", or its "database"."""
        return self.prepared / f"{kind}_{self.name}"

    @abstractmethod
    def prepare_command(self) -> str:
        """The command line that makes the packs."""

    def _command(self, *more: str) -> str:
        words = ["millisecond", "prepare", *more]
        if self.prepared != self.layout.root / "millisecond":
            words += ["--output", str(self.prepared)]
        return shlex.join(words)

    def warn_of_changes(self) -> None:
        """Warns, once, where clouds are not as they were packed."""
        if self.packed_clouds is not None:
            self.packed_clouds.warn()

    @property
    def frame_ids(self) -> tuple[str, ...]:
        return self.layout.ids

    def __len__(self) -> int:
        return len(self.layout.ids)

    def __iter__(self) -> Iterator[Frame]:
        return (self[index] for index in range(len(self)))

    @abstractmethod
    def __getitem__(self, index: int) -> Frame: ...

    def whole_points(self, index: int) -> np.ndarray:
        """[P, 4 or more] float32: the points of a scan before a crop."""
        return read_scan(self.layout.cloud(self.layout.ids[index]), self.columns)

    @abstractmethod
    def truth_files(self, frame_id: str) -> list[Path]:
        """All that a training learns from, beside the cloud and what `view` covers."""

    @abstractmethod
    def view(self, frame_id: str) -> int:
        """A checksum of all that decides which numbers of the file the frame has."""
