"""The messages of a ROS 1 bag, a ROS 2 bag or an MCAP file, also of one that is cut off.

Formats: http://wiki.ros.org/Bags/Format/2.0 and https://mcap.dev/spec. A ROS 2 bag in .db3 is a
database of SQLite that anybody may have made. Only its real tables are read: a view, a generated
column or a virtual table is a program, which may run without end. A damaged tree of pages may have
no end either, so rows are counted. Compressed parts are inflated within bounds: a few bytes may
stand for gigabytes. The index of a cut-off bag is lost with its end, so its records are read in
turn.
"""

import bz2
import shutil
import sqlite3
import struct
from binascii import crc32
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from io import BytesIO
from pathlib import Path, PurePath
from tempfile import TemporaryDirectory
from typing import Any, BinaryIO, NamedTuple

import yaml

from millisecond.data.files import read_text, require
from millisecond.data.formats.points import LARGEST
from millisecond.data.live.scan import Trouble

LARGEST_CHUNK = 1 << 28  # bytes of a chunk or a message; usual ones have about a million
PIECE = 1 << 20  # bytes that are inflated at once; Ctrl-C is heard in between


def inflated(kind: str, data: bytes, limit: int = LARGEST_CHUNK) -> bytes:
    """What zstd, lz4 or bz2 has compressed. Raises ValueError for more bytes than the limit, and
    what the library raises for what is damaged."""
    parts, room = [], min(limit, LARGEST_CHUNK)
    while data:
        stream = _decompressor(kind)
        while not stream.eof:
            part = stream.decompress(data, max_length=min(PIECE, room + 1))
            if not part and not stream.eof and stream.needs_input:
                raise ValueError("a compressed part is cut off")
            data, room = b"", room - len(part)
            if room < 0:
                raise ValueError(f"a part inflates to more than {min(limit, LARGEST_CHUNK)} bytes")
            parts.append(part)
        data = stream.unused_data or b""
    return b"".join(parts)


def guard() -> None:
    """Gives rosbags, which inflates a chunk of any size, the bounded functions of this file."""
    ros1 = require("rosbags.rosbag1.reader", "a bag").decompressors
    mcap = require("rosbags.rosbag2.storage_mcap", "a bag").DECOMPRESSORS
    ros1.update({kind: lambda data, kind=kind: inflated(kind, data) for kind in ("bz2", "lz4")})
    mcap.update({kind: lambda data, size, kind=kind: _chunk(kind, data, size) for kind in mcap})


def _chunk(kind: str, data: bytes, size: int) -> bytes:
    if size > LARGEST_CHUNK:
        raise ValueError(f"a chunk inflates to {size} bytes, more than {LARGEST_CHUNK}")
    return inflated(kind, data, size) if kind else data


def inflate_file(path: Path, folder: Path) -> Path:
    """Inflates a file of zstd into a folder; returns it, by its name without the last ending.

    Raises ValueError where it needs more than half of the free space there.
    """
    room, whole = shutil.disk_usage(folder).free // 2, folder / path.stem
    zstd = _zstd()
    with (
        zstd.open(path, "rb") as source,
        whole.open("wb") as file,
        suppress(EOFError, zstd.ZstdError),  # it is cut off or damaged: what is left is read
    ):
        while part := source.read(PIECE):
            room -= len(part)
            if room < 0:
                raise ValueError(f"{path}: inflates to more than half of the free disk space")
            file.write(part)
    return whole


def _decompressor(kind: str) -> Any:
    if kind == "bz2":
        return bz2.BZ2Decompressor()
    if kind == "lz4":
        return require("lz4.frame", "this bag").LZ4FrameDecompressor()
    return _zstd().ZstdDecompressor()


def _zstd() -> Any:
    """The library, by which rosbags reads too."""
    return require("rosbags.rosbag2.storage_mcap", "a bag").zstd


MESSAGES = 10_000_000  # of all topics
SMALLEST = 8  # bytes of the file that a row takes
TOPICS = 10_000
STEPS = 10_000  # of SQLite's machine, after which Python can hear Ctrl-C
INTERRUPTED = "interrupted"  # what SQLite says then
COLUMNS = {"topics": ("id", "name", "type"), "messages": ("topic_id", "timestamp", "data")}


class RefusedError(ValueError):
    """The database is not one of messages; to read it in another way would not help."""


class Message(NamedTuple):
    """A message as it was recorded."""

    topic: str
    type: str  # e.g. sensor_msgs/msg/PointCloud2
    time: int  # ns
    data: bytes  # empty where it is not of bytes, or too long


class Database:
    """Reads the file, and never writes to it or beside it.

    Raises RefusedError for tables that are programs and for too many rows, sqlite3.Error for what
    is damaged, KeyboardInterrupt on Ctrl-C.
    """

    def __init__(self, path: Path):
        self._path = path

    def topics(self) -> dict[str, str]:
        """Types by the names of the topics that have messages."""
        with self._opened() as database:
            used = {number for _, _, number in self._places(database)}
            return dict(self._topics(database)[number] for number in used)

    def messages(self, topic: str = "") -> Iterator[Message]:
        """The messages of a topic, or all, by time. Damage is raised after the rows before it."""
        with self._opened() as database:
            topics, places, fault = self._topics(database), [], None
            try:
                for time, row, number in self._places(database):
                    if topic in ("", topics[number][0]):
                        places.append((time, row, number))
            except sqlite3.Error as error:
                if str(error) == INTERRUPTED:
                    raise
                fault = error
            for time, row, number in sorted(places):
                yield Message(*topics[number], time, self._data(database, row))
            if fault is not None:
                raise fault

    @contextmanager
    def _opened(self) -> Iterator[sqlite3.Connection]:
        uri = f"{self._path.absolute().as_uri()}?mode=ro&immutable=1"
        with closing(sqlite3.connect(uri, uri=True)) as database:
            database.set_progress_handler(lambda: 0, STEPS)  # here Python hears Ctrl-C
            try:
                database.execute("PRAGMA trusted_schema = OFF")
                for table, columns in COLUMNS.items():
                    self._require_real(database, table, columns)
                yield database
            except sqlite3.OperationalError as error:
                if str(error) == INTERRUPTED:
                    raise KeyboardInterrupt from None
                raise

    def _require_real(
        self, database: sqlite3.Connection, table: str, columns: Sequence[str]
    ) -> None:
        query = "SELECT type, rootpage FROM sqlite_master WHERE name = ? COLLATE NOCASE"
        for kind, page in database.execute(query, (table,)):
            if kind != "table" or not page:  # a virtual table has no pages
                kind = "virtual table" if kind == "table" else kind
                raise RefusedError(f"{self._path}: {table} is a {kind}, not a table of a bag")
        for _, name, *_, hidden in database.execute(f"PRAGMA table_xinfo({table})"):
            if hidden and name.lower() in columns:
                raise RefusedError(f"{self._path}: {table}.{name} is computed, not stored")

    def _topics(self, database: sqlite3.Connection) -> dict[int, tuple[str, str]]:
        rows = database.execute("SELECT id, name, type FROM topics LIMIT ?", (TOPICS,))
        return {number: (str(name), str(kind)) for number, name, kind in rows}

    def _places(self, database: sqlite3.Connection) -> Iterator[tuple[int, int, int]]:
        """Time, row and number of the topic of each message."""
        known, most = self._topics(database), self._path.stat().st_size // SMALLEST
        rows = database.execute("SELECT timestamp, rowid, topic_id FROM messages")
        for count, (time, row, number) in enumerate(rows):
            if count == min(MESSAGES, most):
                raise RefusedError(f"{self._path}: more than {count} messages, too many to be true")
            if number in known and isinstance(time, int) and isinstance(row, int):
                yield time, row, number

    def _data(self, database: sqlite3.Connection, row: int) -> bytes:
        query = (
            "SELECT data FROM messages "
            "WHERE rowid = ? AND typeof(data) = 'blob' AND length(data) <= ?"
        )
        found = database.execute(query, (row, LARGEST)).fetchone()
        return found[0] if found else b""


Topic = tuple[str, str]  # name and type


def messages_of(path: Path) -> Iterator[Message]:
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


def _of_ros1(file: BinaryIO, topics: dict[bytes, Topic]) -> Iterator[Message]:
    while (head := _sized(file, "<I")) and (content := _sized(file, "<I")) is not None:
        header = _ros1_header(head)
        match header[b"op"][0]:
            case 7:  # a connection
                kind = _ros1_header(content)[b"type"].decode().replace("/", "/msg/")
                topics[header[b"conn"]] = (header[b"topic"].decode(), kind)
            case 5:  # a chunk
                kind = header[b"compression"].decode()
                chunk = content if kind == "none" else inflated(kind, content)
                yield from _of_ros1(BytesIO(chunk), topics)
            case 2:  # a message
                seconds, nanoseconds = struct.unpack("<II", header[b"time"])
                yield Message(*topics[header[b"conn"]], seconds * 10**9 + nanoseconds, content)


def _ros1_header(content: bytes) -> dict[bytes, bytes]:
    header, file = {}, BytesIO(content)
    while field := _sized(file, "<I"):
        name, _, value = field.partition(b"=")
        header[name] = value
    return header


def _of_mcap(
    file: BinaryIO, schemas: dict[int, str], topics: dict[int, Topic]
) -> Iterator[Message]:
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
                yield Message(*topics[number], time, record.read())
            case 6:  # a chunk
                _, _, size, crc = struct.unpack("<QQQI", record.read(28))
                kind = (_sized(record, "<I") or b"").decode()
                content = _sized(record, "<Q") or b""
                chunk = inflated(kind, content, size) if kind else content
                if crc and crc32(chunk) != crc:
                    return
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


def _of_sqlite(path: Path) -> Iterator[Message]:
    """From a copy of its whole pages, whose header tells their true number: SQLite refuses a file
    of fewer pages than that."""
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
        with suppress(sqlite3.Error):  # here it ends
            yield from Database(copy).messages()


SUFFIXES = (".bag", ".db3", ".mcap")
ZSTD = b"\x28\xb5\x2f\xfd"  # the first bytes of compressed data


class Recording:
    """A bag that is opened anew for each reading; a cut-off one is read as far as it goes."""

    def __init__(self, path: Path):
        """path: a file, or the folder of a ROS 2 bag. Raises ValueError where no message can be
        read."""
        self.is_ros1 = path.suffix == ".bag" and not path.is_dir()
        self._inflated: Any = None  # the folder of files that were compressed as a whole
        self._files = [_File(file) for file in self._found(path)]
        self.topics = {topic: kind for file in self._files for topic, kind in file.topics.items()}
        # of topics of an MCAP file: the text that defines the type, and its profiles of QoS
        self.described = {
            topic: told for file in self._files for topic, told in file.described.items()
        }
        if not self.topics:
            fault = next((file.fault for file in self._files if file.fault), "it is empty")
            raise ValueError(f"{path}: no messages in this bag ({fault})")

    def messages(self, topic: str = "") -> Iterator[Message | Trouble]:
        """The messages of a topic, or all, by time; a trouble where the bag is cut off or
        damaged."""
        for file in self._files:
            yield from file.messages(topic)

    def _found(self, path: Path) -> list[Path]:
        """The files of a bag in their order."""
        if not path.is_dir():
            return [path]
        files = bag_files(path)
        description = path / "metadata.yaml"
        if not description.is_file():
            if len(files) == 1:
                return files
            raise ValueError(
                f"{path}: {len(files)} bags without a metadata.yaml; name one, e.g. {files[0]}"
            )
        try:
            told = yaml.safe_load(read_text(description))["rosbag2_bagfile_information"]
            names = [PurePath(name).name for name in told["relative_file_paths"]]
            whole = str(told.get("compression_mode") or "").lower() == "file"
        except (yaml.YAMLError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return files  # damaged: the files are still there
        listed = [path / name for name in names if name.strip(".")] or files
        if not whole:
            return listed
        self._inflated = TemporaryDirectory()
        return [inflate_file(file, Path(self._inflated.name)) for file in listed]


class _File:
    """One file of a bag."""

    def __init__(self, path: Path):
        require(_library(path), "a bag")
        self._path, self.topics = path, {}
        self.described: dict[str, tuple[str, Any]] = {}
        self.fault = "" if path.is_file() else "it is missing"  # what keeps it from being opened
        if self.fault:
            return
        try:
            self.topics = self._topics()
        except (PermissionError, RefusedError):
            raise
        except Exception as error:  # whatever the libraries hand through
            self.fault = _line(error)
            self.topics = {found.topic: found.type for found in messages_of(path)}

    def messages(self, topic: str) -> Iterator[Message | Trouble]:
        """The messages of a topic, or all; at last a trouble where the file is damaged."""
        fault = self.fault
        if topic in ("", *self.topics):
            found = messages_of(self._path) if fault else self._messages(topic)
            try:
                for message in found:
                    if topic in ("", message.topic):
                        yield _inflated(message)
            except RefusedError:
                raise
            except Exception as error:  # as above
                fault = fault or _line(error)
        if fault:
            yield Trouble(f"{self._path}: cut off or damaged; played as far as it goes ({fault})")

    def _topics(self) -> dict[str, str]:
        if self._path.suffix == ".db3":
            return Database(self._path).topics()
        with self._reader() as reader:
            used = [one for one in reader.connections if one.msgcount]
        if self._path.suffix == ".mcap":
            self.described = {
                one.topic: (one.msgdef.data, one.ext.offered_qos_profiles) for one in used
            }
        return {one.topic: one.msgtype for one in used}

    def _messages(self, topic: str) -> Iterator[Message]:
        if self._path.suffix == ".db3":
            yield from Database(self._path).messages(topic)
            return
        with self._reader() as reader:
            chosen = [one for one in reader.connections if topic in ("", one.topic)]
            for connection, time, data in reader.messages(chosen):
                yield Message(connection.topic, connection.msgtype, time, bytes(data))

    def _reader(self) -> Any:
        guard()
        return require(_library(self._path), "a bag").Reader(self._path)


def _library(path: Path) -> str:
    return "rosbags.rosbag1" if path.suffix == ".bag" else "rosbags.rosbag2"


def _inflated(message: Message) -> Message:
    """A ROS 2 bag may have each message compressed; no message begins so by itself."""
    if message.data.startswith(ZSTD):
        with suppress(Exception):  # damaged: then it is reported where it is read
            return message._replace(data=inflated("zstd", message.data))
    return message


def bag_files(folder: Path) -> list[Path]:
    """The files of a ROS 2 bag in their order; none where the folder is not a bag."""
    return sorted(path for path in folder.iterdir() if path.suffix in (".db3", ".mcap"))


def is_bag(path: Path) -> bool:
    """Whether this is a bag by its name or, for a folder, by what is in it."""
    if path.is_dir():
        return (path / "metadata.yaml").is_file() or bool(bag_files(path))
    return path.suffix in SUFFIXES


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:120] or type(error).__name__
