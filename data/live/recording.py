"""The messages of a ROS 1 bag, a ROS 2 bag or an MCAP file."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from data.live import cut_off
from data.live.optional import require
from data.live.scan import Trouble

SUFFIXES = (".bag", ".db3", ".mcap")
ZSTD = b"\x28\xb5\x2f\xfd"  # the first bytes of what it has compressed


class Message(NamedTuple):
    """A message as it was recorded."""

    type: str  # e.g. sensor_msgs/msg/PointCloud2
    time: float  # seconds
    data: bytes


class Recording:
    """A bag that is opened anew for each reading; a cut-off one is read as far as it goes."""

    def __init__(self, path: Path):
        """path: a file, or the folder of a ROS 2 bag. Raises ValueError where no message can be
        read."""
        self._path = _single(path)
        self._fault = ""  # that keeps it from being opened
        room = "rosbags.rosbag1" if self.is_ros1 else "rosbags.rosbag2"
        self._library = require(room, "rosbags")
        try:
            with self._open() as reader:
                self.topics = {one.topic: one.msgtype for one in reader.connections if one.msgcount}
        except Exception as error:  # whatever the library hands through: of SQLite, of YAML
            if isinstance(error, FileNotFoundError | PermissionError):
                raise
            self._fault = _line(error)
            self.topics = {found.topic: found.type for found in self._salvaged()}
        if not self.topics:
            raise ValueError(f"{path}: no messages in this bag ({self._fault or 'it is empty'})")

    @property
    def is_ros1(self) -> bool:
        return self._path.suffix == ".bag"

    def messages(self, topic: str) -> Iterator[Message | Trouble]:
        """Those of a topic; at last a trouble where the bag is cut off or damaged."""
        fault = self._fault
        if fault:
            for found in self._salvaged():
                if found.topic == topic:
                    yield Message(found.type, found.time / 1e9, found.data)
        else:
            try:
                with self._open() as reader:
                    chosen = [one for one in reader.connections if one.topic == topic]
                    for connection, time, data in reader.messages(chosen):
                        yield Message(connection.msgtype, time / 1e9, bytes(data))
            except Exception as error:  # as above
                fault = _line(error)
        if fault:
            yield Trouble(f"{self._path}: cut off or damaged; played as far as it goes ({fault})")

    def _open(self) -> Any:
        return self._library.Reader(self._path)

    def _salvaged(self) -> Iterator[cut_off.Found]:
        files = bag_files(self._path) if self._path.is_dir() else [self._path]
        decompress = require("rosbags.rosbag2.storage_mcap", "rosbags").DECOMPRESSORS["zstd"]
        for file in files:
            for found in cut_off.messages_of(file):
                if found.data.startswith(ZSTD):  # no message begins so by itself
                    with suppress(Exception):  # damaged: then it is reported where it is read
                        found = found._replace(data=decompress(found.data, 0))
                yield found


def bag_files(folder: Path) -> list[Path]:
    """The files of a ROS 2 bag in their order; none where the folder is no bag."""
    return sorted(path for path in folder.iterdir() if path.suffix in (".db3", ".mcap"))


def is_bag(path: Path) -> bool:
    """Whether this is a bag by its name or, for a folder, by what is in it."""
    if path.is_dir():
        return (path / "metadata.yaml").is_file() or bool(bag_files(path))
    return path.suffix in SUFFIXES


def _single(path: Path) -> Path:
    """The file itself, where a folder without a description holds only one."""
    if not path.is_dir() or (path / "metadata.yaml").is_file():
        return path
    files = bag_files(path)
    if len(files) == 1:
        return files[0]
    raise ValueError(
        f"{path}: {len(files)} bags without a metadata.yaml; name one, e.g. {files[0]}"
    )


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:120] or type(error).__name__
