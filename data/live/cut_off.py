"""What a cut-off bag still holds: its index is lost with its end, so its records are read in turn.

Formats: http://wiki.ros.org/Bags/Format/2.0 and https://mcap.dev/spec. A ROS 2 bag in .db3 is a
database of SQLite.
"""

from __future__ import annotations

import shutil
import sqlite3
import struct
from collections.abc import Iterator
from contextlib import closing
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import BinaryIO, NamedTuple

from data.live.optional import require
from data.point_fields import LARGEST

Topic = tuple[str, str]  # name and type


class Found(NamedTuple):
    """A message."""

    topic: str
    type: str
    time: int  # ns
    data: bytes


def messages_of(path: Path) -> Iterator[Found]:
    """The messages of a .bag, .mcap or .db3 file, as far as they can be read."""
    if path.suffix == ".db3":
        yield from _of_sqlite(path)
        return
    with path.open("rb") as file:
        try:
            if path.suffix == ".bag":
                file.readline()
                yield from _of_ros1(file, {})
            else:
                file.seek(len(b"\x89MCAP0\r\n"))
                yield from _of_mcap(file, {}, {})
        except Exception:  # here it ends; each library for compression has its own kind of error
            return


def _of_ros1(file: BinaryIO, topics: dict[bytes, Topic]) -> Iterator[Found]:
    while (head := _sized(file, "<I")) and (content := _sized(file, "<I")) is not None:
        header = _ros1_header(head)
        match header[b"op"][0]:
            case 7:  # a connection
                kind = _ros1_header(content)[b"type"].decode().replace("/", "/msg/")
                topics[header[b"conn"]] = (header[b"topic"].decode(), kind)
            case 5:  # a chunk
                decompressors = require("rosbags.rosbag1.reader", "rosbags").decompressors
                chunk = decompressors[header[b"compression"].decode()](content)
                yield from _of_ros1(BytesIO(chunk), topics)
            case 2:  # a message
                seconds, nanoseconds = struct.unpack("<II", header[b"time"])
                yield Found(*topics[header[b"conn"]], seconds * 10**9 + nanoseconds, content)


def _ros1_header(content: bytes) -> dict[bytes, bytes]:
    header, file = {}, BytesIO(content)
    while field := _sized(file, "<I"):
        name, _, value = field.partition(b"=")
        header[name] = value
    return header


def _of_mcap(file: BinaryIO, schemas: dict[int, str], topics: dict[int, Topic]) -> Iterator[Found]:
    while (code := file.read(1)) and (content := _sized(file, "<Q")) is not None:
        record = BytesIO(content)
        match code[0]:
            case 3:  # a schema
                [number] = struct.unpack("<H", record.read(2))
                schemas[number] = (_sized(record, "<I") or b"").decode()
            case 4:  # a channel
                number, schema = struct.unpack("<HH", record.read(4))
                topics[number] = ((_sized(record, "<I") or b"").decode(), schemas.get(schema, ""))
            case 5:  # a message
                number, _, time, _ = struct.unpack("<HIQQ", record.read(22))
                yield Found(*topics[number], time, record.read())
            case 6:  # a chunk
                _, _, size, crc = struct.unpack("<QQQI", record.read(28))
                compression = (_sized(record, "<I") or b"").decode()
                decompress = require("rosbags.rosbag2.storage_mcap", "rosbags").decompress
                chunk = decompress(_sized(record, "<Q") or b"", compression, size, crc)
                yield from _of_mcap(BytesIO(chunk), schemas, topics)


def _sized(file: BinaryIO, form: str) -> bytes | None:
    """The bytes behind their number; None where the file ends before."""
    size = struct.calcsize(form)
    head = file.read(size)
    if len(head) < size:
        return None
    [wanted] = struct.unpack(form, head)
    content = file.read(wanted) if wanted <= LARGEST else b""
    return content if len(content) == wanted else None


def _of_sqlite(path: Path) -> Iterator[Found]:
    """From a copy of its whole pages, whose header tells their true number: SQLite refuses a file
    of fewer pages than that."""
    query = (
        "SELECT topics.name, topics.type, timestamp, data FROM messages "
        "JOIN topics ON topics.id = messages.topic_id"
    )
    with TemporaryDirectory() as folder:
        copy = Path(folder) / "copy.db3"
        shutil.copyfile(path, copy)
        with copy.open("r+b") as file:
            page = int.from_bytes(file.read(18)[16:], "big")
            page = {0: 1, 1: 1 << 16}.get(page, page)  # 1 stands for 65536
            pages = copy.stat().st_size // page
            file.seek(28)
            file.write(pages.to_bytes(8, "big")[-4:])
            file.truncate(pages * page)
        with closing(sqlite3.connect(f"{copy.as_uri()}?immutable=1", uri=True)) as database:
            try:
                for row in database.execute(query):
                    yield Found(*row)
            except (sqlite3.Error, OverflowError):  # here it ends
                return
