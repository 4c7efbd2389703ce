"""Processes that read scans ahead and write results beside the one that works on the scans.

Points come through memory that all processes share, everything else through pipes. Each process has
three blocks of that memory, so what is read ahead is bounded. Without processes the caller reads
and writes by itself.

A process ends with its pipe. It never waits until its reply is taken, since the one that would take
it may wait for the process: replies are shorter than a pipe holds. Points that no block holds are
kept until they are asked for.
"""

from __future__ import annotations

import math
import mmap
import multiprocessing
import signal
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import islice
from multiprocessing.connection import Connection
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch

from millisecond.data.live.inputs import RecordedScans, ScanFile, Unit, local_copy
from millisecond.data.live.scan import LiveScan, Trouble
from millisecond.data.live.source import open_source

TOGETHER = 8  # scans that are read, and written, at a time
BLOCKS = 3  # of each process: while one is read, results of two may be on their way
BLOCK = 32 << 20  # bytes
ALIGNED = 16  # numbers
Number = tuple[int, int]  # of a scan: of its unit, and in it


class ScanRead(NamedTuple):
    """A scan that was read, or why not."""

    name: str  # of its results
    title: str  # for messages
    source: str  # the recording's name, empty for files that are of none
    number: Number
    time: float | None  # seconds, where the source tells it
    points: Any  # [P, C] float32; valid until its chunk is released
    facts: Any = None  # what the clerk found out about it
    error: Exception | None = None
    there: bool = False  # its results were there already; it was not read
    pose: np.ndarray | None = None  # [4, 4] to the world, where the source tells it


NO_POINTS = np.zeros((0, 4), np.float32)


class Clerk(Protocol):
    """What each process does with scans and results; it is sent there once."""

    columns: Any  # PointColumns of files

    def skips(self, name: str, number: Number) -> bool:
        """Whether the scan need not be read."""

    def read(self, name: str, scan: ScanFile | LiveScan) -> tuple[np.ndarray, Any]:
        """Points of a file, or of a recorded scan, and facts. Raises ValueError or OSError."""

    def write(self, batch: Any) -> None:
        """Results."""


class _Place(NamedTuple):
    """Where points lie: in a block, or, behind its end, among those that are kept."""

    first: int
    shape: tuple[int, ...]


class _Job(NamedTuple):
    number: Number  # of its first scan; of a recording, of the recording's first scan
    files: Sequence[ScanFile] = ()
    recording: RecordedScans | None = None  # or its next scans


class Chunk:
    """Some scans that were read together."""

    def __init__(
        self, scans: Sequence[ScanRead], notes: Sequence[Trouble], hand: _Hand, block: int
    ):
        self.scans, self.notes, self._hand, self._block = scans, notes, hand, block

    def write(self, batch: Any) -> None:
        """Has results written by the process that read the scans."""
        self._hand.send("write", batch)

    def release(self) -> None:
        """Gives the memory of the points back."""
        self._hand.free.append(self._block)


class ReaderPool:
    """So many processes; use it as a context manager. Start it before a GPU is used."""

    def __init__(self, processes: int):
        pipes: list[Connection] = []
        self._hands: list[_Hand] = [_Process(pipes) for _ in range(processes)] or [_Hand()]
        self.together = TOGETHER if processes else 1

    def __enter__(self) -> ReaderPool:
        return self

    def __exit__(self, *_: object) -> None:
        for hand in self._hands:
            hand.close()

    def begin(self, clerk: Clerk) -> None:
        """Sends the clerk to each process."""
        for hand in self._hands:
            hand.send("begin", clerk)

    def write(self, number: int, batch: Any) -> None:
        """Has a batch written by one of the processes."""
        self._hands[number % len(self._hands)].send("write", batch)

    def finish(self) -> None:
        """Waits until all is written. Raises what the writers met."""
        for hand in self._hands:
            hand.send("finish", None)
        for hand in self._hands:
            hand.receive()

    def read(self, units: Iterable[Unit]) -> Iterator[Chunk]:
        """The scans in their order, while the processes read the next ones."""
        waiting: deque[tuple[_Hand, _Job, int]] = deque()
        self._ended: set[str] = set()  # recordings
        jobs = self._jobs(units)
        turn, job = 0, next(jobs, None)
        while job or waiting:
            while job:
                hand = self._hands[turn % len(self._hands)]
                if not hand.free:
                    break
                block = hand.free.pop(0)
                hand.send("read", (job, block))
                waiting.append((hand, job, block))
                turn += job.recording is None  # a recording stays with its process
                job = next(jobs, None)
            hand, done, block = waiting.popleft()
            scans, notes, ended = hand.receive()
            if done.recording and ended:
                self._ended.add(done.recording.name)
                if job and job.recording == done.recording:
                    job = next(jobs, None)
            yield Chunk(hand.with_points(scans, block), notes, hand, block)

    def _jobs(self, units: Iterable[Unit]) -> Iterator[_Job]:
        for number, files, recording in units:
            for first in range(0, len(files), self.together):
                yield _Job((number, first), files[first : first + self.together])
            while recording and recording.name not in self._ended:
                yield _Job((number, 0), recording=recording)


class _Desk:
    """Reads and writes as it is told; points go to its blocks where it has any."""

    def __init__(self, blocks: Sequence[np.ndarray] = ()):
        self._blocks, self._used = blocks, 0
        self._block: np.ndarray | None = None
        self._kept: list[np.ndarray] = []
        self._clerk: Any = None
        self._open: dict[str, Iterator[tuple[int, Trouble | LiveScan | None]]] = {}

    def do(self, kind: str, content: Any) -> Any:
        match kind:
            case "begin":
                self._clerk, self._open = content, {}
            case "write":
                self._clerk.write(content)
            case "read":
                return self._read(*content)
            case "points":
                return self._kept.pop(0)
        return None

    def _read(self, job: _Job, block: int) -> tuple[list[ScanRead], list[Trouble], bool]:
        """The scans, and whether the recording has ended."""
        self._block, self._used = (self._blocks[block] if self._blocks else None), 0
        if job.recording is None:
            unit, first = job.number
            scans = [self._file((unit, i), file) for i, file in enumerate(job.files, first)]
            return scans, [], False
        return self._next_of(job.recording, job.number[0])

    def _file(self, number: Number, file: ScanFile) -> ScanRead:
        title, source = file.path.name, file.recording
        read = ScanRead(file.name, title, source, number, file.time, NO_POINTS, pose=file.pose)
        return self._taken(read, file)

    def _taken(self, read: ScanRead, scan: ScanFile | LiveScan) -> ScanRead:
        if self._clerk.skips(read.name, read.number):
            return read._replace(there=True)
        try:
            points, facts = self._clerk.read(read.name, scan)
        except (ValueError, OSError) as error:
            return read._replace(error=error)
        return read._replace(points=self._placed(points), facts=facts)

    def _placed(self, points: np.ndarray) -> np.ndarray | _Place:
        if self._block is None:
            return points
        first, size = self._used, points.size
        if first + size >= len(self._block):
            self._kept.append(points)
            return _Place(len(self._block), points.shape)
        self._block[first : first + size] = points.reshape(-1)
        self._used += -(-size // ALIGNED) * ALIGNED
        return _Place(first, points.shape)

    def _next_of(
        self, recording: RecordedScans, unit: int
    ) -> tuple[list[ScanRead], list[Trouble], bool]:
        items = self._open.setdefault(recording.name, self._items(recording))
        scans: list[ScanRead] = []
        notes: list[Trouble] = []
        ended = False
        for number, item in islice(items, TOGETHER):
            if item is None:
                ended = True
            elif isinstance(item, Trouble):
                notes.append(item)
            else:
                name = f"{recording.name}/{item.name}"
                read = ScanRead(name, name, recording.name, (unit, number), item.time, NO_POINTS)
                scans.append(self._taken(read, item))
        return scans, notes, ended

    def _items(self, recording: RecordedScans) -> Iterator[tuple[int, Trouble | LiveScan | None]]:
        """Numbered by the scans before them; at last, and for ever, None."""
        number = 0
        try:
            with local_copy(recording.source, recording.uri) as source:
                for item in open_source(source, points=self._clerk.columns):
                    yield number, item
                    number += isinstance(item, LiveScan)
        except (ValueError, OSError) as error:
            yield number, Trouble(str(error))
        while True:
            yield number, None


class _Hand:
    """Does what it is told when the reply is wanted."""

    def __init__(self) -> None:
        self.free = [*range(BLOCKS)]  # so many chunks may be asked for
        self._desk = _Desk()
        self._replies: deque[Any] = deque()

    def send(self, kind: str, content: Any) -> None:
        reply = self._desk.do(kind, content)
        if kind not in ("begin", "write"):
            self._replies.append(reply)

    def receive(self) -> Any:
        return self._replies.popleft()

    def with_points(self, scans: Sequence[ScanRead], block: int) -> Sequence[ScanRead]:
        """The scans of a reply, with points for their places."""
        return scans

    def close(self) -> None:
        return


class _Process(_Hand):
    """A process, its pipe and its blocks."""

    def __init__(self, pipes: list[Connection]):
        """pipes: ends of all pipes of the caller, which no new process is to hold open."""
        super().__init__()
        # of this program alone, only as large as it is filled, and gone with the last process
        memory = [mmap.mmap(-1, BLOCK) for _ in range(BLOCKS)]
        self._blocks = [np.frombuffer(part, np.float32) for part in memory]
        context = multiprocessing.get_context("fork")
        self.pipe, other = context.Pipe()
        pipes.append(self.pipe)
        arguments = (other, pipes, self._blocks)
        self._process = context.Process(target=_serve, args=arguments, daemon=True)
        self._process.start()
        other.close()

    def send(self, kind: str, content: Any) -> None:
        try:
            self.pipe.send((kind, content))
        except OSError:  # it has ended: its last reply says why
            while True:
                self._reply()

    def receive(self) -> Any:
        return self._replies.popleft() if self._replies else self._reply()[1]

    def _reply(self) -> tuple[str, Any]:
        try:
            kind, reply = self.pipe.recv()
        except (EOFError, OSError):
            self._process.join()
            raise MemoryError(
                f"a process that reads scans was ended (exit code {self._process.exitcode})"
            ) from None
        if kind == "error":
            raise reply
        return kind, reply

    def with_points(self, scans: Sequence[ScanRead], block: int) -> Sequence[ScanRead]:
        return [
            read._replace(points=self._points(self._blocks[block], read.points))
            if isinstance(read.points, _Place)
            else read
            for read in scans
        ]

    def _points(self, block: np.ndarray, place: _Place) -> np.ndarray:
        first, shape = place
        if first < len(block):
            return block[first : first + math.prod(shape)].reshape(shape)
        self.send("points", None)
        while (reply := self._reply())[0] != "points":
            self._replies.append(reply[1])
        return reply[1]

    def close(self) -> None:
        self.pipe.close()
        self._process.join()


def _serve(pipe: Connection, others: Sequence[Connection], blocks: Sequence[np.ndarray]) -> None:
    """What a process does until its pipe is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that closes the pipe
    for other in others:
        other.close()
    torch.set_num_threads(1)  # others are not in a forked process
    desk = _Desk(blocks)
    with suppress(EOFError, OSError):  # whatever is left of a pipe whose other end is gone
        while True:
            kind, content = pipe.recv()
            try:
                reply = desk.do(kind, content)
            except Exception as error:
                pipe.send(("error", error))
                return
            if kind not in ("begin", "write"):
                pipe.send((kind, reply))
