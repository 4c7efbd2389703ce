"""Where `millisecond detect` writes to: a folder of files, or a table; how a run goes on."""

import argparse
import hashlib
import json
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib import metadata
from itertools import groupby
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import numpy as np

from millisecond.data.boxes import FollowedObjects, NamedDetections, wrap_angle
from millisecond.data.calibration import Calibration
from millisecond.data.files import file_system, is_text, locked, read_text, write_json, write_lines
from millisecond.data.folder.labels import label_lines, labelcloud_json
from millisecond.data.kitti.labels import DECIMALS
from millisecond.data.kitti.results import (
    ResultFolder,
    detections_to_labels,
    json_result,
    require_same_run,
    rounded_scores,
    write_result,
)
from millisecond.data.live.bag import BagSource
from millisecond.data.live.inputs import RecordedScans, ScanFile, Unit
from millisecond.data.live.messages import MessageFile, is_message_file
from millisecond.data.live.pool import Chunk, Number, ReaderPool
from millisecond.data.live.scan import LiveScan
from millisecond.data.live.source import open_source
from millisecond.detector.detection_table import (
    SUFFIX,
    TableRows,
    join_tables,
    library,
    told_by,
    write_table,
)
from millisecond.detector.detector import Detector
from millisecond.detector.draw.style import Palette
from millisecond.detector.following import Trails
from millisecond.detector.tracking import Tracks
from millisecond.tools.program import columns_of

LARGEST_YAW = 3.1415  # of four decimals within half a turn
SHARD = 512  # scans of a part of a table, and files of a unit
RUN = "run.json"
JOINED = ".joined"  # in the folder of parts: the table, until it takes their place
Settings = dict[str, Any]


class CameraView(NamedTuple):
    """A camera that looks at a scan."""

    calibration: Calibration
    image_shape: tuple[int, int]  # height, width
    left_out: int  # points that it does not see
    assumed: bool  # the image's size, for want of an image


Kept = tuple[Path, CameraView | None]  # of a scan, for files


class ScanResult(NamedTuple):
    """What was found in a scan."""

    name: str
    number: Number
    time: float  # seconds
    found: NamedDetections
    class_names: Sequence[str]
    milliseconds: float
    tracks: Tracks | None
    pose: np.ndarray | None = None  # [4, 4] from the LiDAR frame to the world, with --ego


class Shard(NamedTuple):
    """The results of SHARD scans of a unit in a row, fewer at its end."""

    number: Number  # of the unit, and in it
    results: Sequence[ScanResult]
    bad: Sequence[str]  # lines on those that could not be read


def version() -> str:
    """Of this program."""
    with suppress(metadata.PackageNotFoundError):
        return metadata.version("millisecond")
    return "of a checkout"


def settings_of(
    options: argparse.Namespace,
    detector: Detector,
    inputs: Sequence[ScanFile | RecordedScans],
    device: str | None = None,
) -> Settings:
    """All that the results depend on, in a form for people. device: of the machines that
    detect, where it is another than the detector's."""
    columns = columns_of(options.config, detector.config)
    names = "\n".join(one.name for one in inputs).encode("utf-8", "surrogateescape")
    return {
        "version": version(),
        "weights": detector.fingerprint(),
        "device": device or detector.device.type,
        "--calib": str(options.calib or ""),
        "points": repr(columns),
        "--format": options.format,
        "--score": options.score,
        "--track": [options.track, options.ego, options.rate],
        "scans": f"{len(inputs)}, {hashlib.sha256(names).hexdigest()[:16]}",
    }


class FolderWriter(NamedTuple):
    """A file per scan, or two."""

    folder: Path
    form: str  # json, text or labelcloud
    score: float  # the least that is written

    def has(self, name: str, number: Number) -> bool:
        """Whether the scan's results are there."""
        return (self.folder / f"{name}.{'txt' if self.form == 'text' else 'json'}").is_file()

    def write(self, results: Sequence[ScanResult], kept: dict[str, Kept]) -> None:
        """kept: the file of each scan, and its camera; what is written leaves it."""
        for result in results:
            name, tracks, named = result.name, result.tracks, named_of(result, self.score)
            scan, view = kept.pop(name)
            if self.form == "labelcloud":
                write_result(self.folder, name, labelcloud_json(scan, named))
                continue
            if self.form == "text":
                write_lines(self.folder / f"{name}.txt", label_lines(named))
                continue
            content = json_result(name, named)
            content["milliseconds"] = round(result.milliseconds, 3)
            if tracks is not None:
                content |= {"ids": tracks.ids.tolist(), "ages": tracks.ages.tolist()}
            labels = view and detections_to_labels(named, view.calibration, view.image_shape)
            write_result(self.folder, name, content, labels)


class TableWriter(NamedTuple):
    """Parts of a table."""

    folder: Path
    score: float

    def has(self, name: str, number: Number) -> bool:
        """Whether the part to which the scan belongs is there."""
        return self.part(part_of(number)).is_file()

    def part(self, number: Number) -> Path:
        return self.folder / ("{:06d}-{:06d}".format(*number) + SUFFIX)

    def write(self, shard: Shard, kept: Mapping[str, Kept]) -> None:
        rows = []
        for result in shard.results:
            found = named_of(result, self.score)
            boxes, scores = found.boxes.round(DECIMALS), rounded_scores(found)
            found = found._replace(boxes=boxes, scores=scores)
            if result.found.velocities is None:
                found = found._replace(velocities=None)  # a tracker's are not in tables
            ids = None if result.tracks is None else result.tracks.ids
            rows.append(TableRows(result.name, result.time, found, ids))
        write_table(self.part(shard.number), rows, shard.bad)


class MessageWriter:
    """Messages of ROS 2, scan after scan."""

    def __init__(self, file: MessageFile, score: float):
        self._file, self._score, self._trails = file, score, Trails()
        self._palette: Palette | None = None

    def has(self, name: str, number: Number) -> bool:
        """A run does not go on with a file."""
        return False

    def write(self, results: Sequence[ScanResult], kept: dict[str, LiveScan]) -> None:
        """kept: each scan; what is written leaves it."""
        for result in results:
            named, tracks = named_of(result, self._score), result.tracks
            if tracks is None:
                nobody = np.zeros(len(named.boxes), np.int64)
                paths = (np.zeros((0, 3)),) * len(nobody)
                unknown = np.full((len(nobody), 2), np.nan)
                objects = FollowedObjects(*named[:3], nobody, paths, unknown)
            else:
                trails = self._trails.update(tracks, result.pose)
                objects = FollowedObjects(*named[:3], tracks.ids, trails, tracks.velocities)
            self._palette = self._palette or Palette(result.class_names)
            colours = self._palette.paint(objects.boxes, objects.names).colours
            self._file.add(kept.pop(result.name), objects, colours)


def units_of(inputs: Sequence[ScanFile | RecordedScans]) -> list[Unit]:
    """SHARD files in a row are a unit, and so is a recording."""
    units: list[Unit] = []
    for whole, group in groupby(inputs, lambda one: isinstance(one, ScanFile)):
        some = list(group)
        for first in range(0, len(some), SHARD if whole else 1):
            files = some[first : first + SHARD] if whole else ()
            units.append(Unit(len(units), files, None if whole else some[first]))
    return units


def part_of(number: Number) -> Number:
    """The part of the table to which a scan belongs; files of a unit are all in one."""
    return number[0], number[1] // SHARD


def named_of(result: ScanResult, score: float) -> NamedDetections:
    """The boxes to be written, in float64, with yaws that stay within half a turn when rounded."""
    if (tracks := result.tracks) is not None:
        named = tracks.named()
    else:
        named = result.found.select(np.flatnonzero(result.found.scores >= score))
    boxes = named.boxes.astype(np.float64)
    boxes[:, 6] = wrap_angle(boxes[:, 6]).clip(-LARGEST_YAW, LARGEST_YAW)
    return named._replace(boxes=boxes)


class FileResults:
    """Has the results of each chunk written by the process that read it."""

    def __init__(self, writer: FolderWriter | MessageWriter):
        self.writer = writer

    def add(
        self,
        pool: ReaderPool,
        chunk: Chunk,
        results: Sequence[ScanResult],
        bad: Mapping[Number, str],
    ) -> None:
        """The results of a chunk; lines on scans that could not be read, by their numbers."""
        if results:
            chunk.write(results)

    def finish(self, pool: ReaderPool) -> None:
        """Waits until all is written."""
        pool.finish()


class TableResults:
    """Has the results written in parts of a table. Chunks come in their order."""

    def __init__(self, writer: TableWriter):
        self.writer = writer
        self._number: Number = (0, 0)  # of the part that is open
        self._scans: list[ScanResult | str] = []

    def add(
        self,
        pool: ReaderPool,
        chunk: Chunk,
        results: Sequence[ScanResult],
        bad: Mapping[Number, str],
    ) -> None:
        """As of `FileResults`."""
        found: dict[Number, ScanResult | str] = {result.number: result for result in results}
        for number, one in sorted({**found, **bad}.items()):
            if part_of(number) != self._number:
                self._write(pool)
                self._number = part_of(number)
            self._scans.append(one)

    def _write(self, pool: ReaderPool) -> None:
        if scans := self._scans:
            results = [one for one in scans if isinstance(one, ScanResult)]
            bad = [one for one in scans if isinstance(one, str)]
            pool.write(sum(self._number), Shard(self._number, results, bad))
            self._scans = []

    def finish(self, pool: ReaderPool) -> None:
        """As of `FileResults`."""
        self._write(pool)
        pool.finish()


class Begun(NamedTuple):
    """An output that another process holds, has begun and will end."""

    results: FileResults | TableResults
    resumes: bool = True
    complete: bool = False

    def begin(self) -> None:
        return


class FolderOutput:
    """A folder of files, from its first result to its end."""

    complete = False

    def __init__(self, options: argparse.Namespace, names: Sequence[str], run: Settings):
        replace = options.format == "json"
        self.folder, self.place = options.output, str(options.output)
        self._folder = ResultFolder(options.output, names, replace, run, options.resume)
        self.resumes = self._folder.resumes
        self.results = FileResults(FolderWriter(options.output, options.format, options.score))

    def begin(self) -> None:
        """Removes old results."""
        self._folder.begin()

    def end(self, bad: Sequence[str]) -> Sequence[str]:
        """Lines on all scans that could not be read; bad: the lines of this run."""
        return bad


class TableOutput:
    """Parts of a table, which become the table at the end."""

    def __init__(self, options: argparse.Namespace, run: Settings):
        """Raises ValueError where the output is another's."""
        self.path, self._settings, self._copy_to = options.output, run, options.copy_to
        if self._copy_to:  # in another file system, which may not be reached either
            system, path = file_system(self._copy_to)
            if system.get_file_info(path).type.name != "NotFound":
                raise ValueError(f"{self._copy_to}: is there already; give another --output")
        self.place = self._copy_to or str(self.path)
        self.folder = parts_of(self.path)
        self._state = self.folder / RUN
        told = told_by(self.path) if self.path.exists() else {}
        there = self._state.is_file() or bool(told)
        self.resumes = options.resume and there
        self.complete = self.resumes and not self._state.is_file()
        if self.resumes:
            old = told.get("run") if self.complete else json.loads(read_text(self._state))
            require_same_run(self.path, old, run)
        self.results = TableResults(TableWriter(self.folder, options.score))
        self._begun = self.resumes

    def begin(self) -> None:
        """Removes what an earlier run has left."""
        if not self._begun:
            for path in self.folder.glob(f"*{SUFFIX}"):
                path.unlink()
            write_json(self._state, self._settings)
        self._begun = True

    def end(self, bad: Sequence[str]) -> Sequence[str]:
        """As of `FolderOutput`; the table takes the place of its parts."""
        if not self._begun:  # no scan could be read
            return bad
        if self.complete:
            shutil.rmtree(self.folder, ignore_errors=True)  # killed while it removed them
            bad = told_by(self.path)["bad"]
        else:
            parts = sorted(self.folder.glob(f"[!.]*-*{SUFFIX}"))
            joined = self.folder / JOINED  # what a kill leaves of it goes with the parts
            bad = join_tables(parts, joined, self._settings)
            joined.replace(self.path)
            shutil.rmtree(self.folder)
        if self._copy_to:
            copy_elsewhere(self.path, self._copy_to)
        return bad


class MessageOutput:
    """A file of messages, which takes its place at the end."""

    resumes = complete = False

    def __init__(self, file: MessageFile, score: float):
        self.place, self._file = str(file.path), file
        self.results = FileResults(MessageWriter(file, score))

    def begin(self) -> None:
        return

    def end(self, bad: Sequence[str]) -> Sequence[str]:
        """As of `FolderOutput`."""
        self._file.close()
        for line in self._file.notes:
            print(f"note: {line}", file=sys.stderr)
        return bad


def bag_of(inputs: Sequence[ScanFile | RecordedScans], output: Path) -> BagSource | None:
    """The bag of ROS 2 whose topics a file of messages has too, if the scans are from one. Raises
    ValueError where they are from several recordings."""
    recordings = [one for one in inputs if isinstance(one, RecordedScans)]
    if not recordings:
        return None
    if len(inputs) > 1:
        raise ValueError(
            f"{output}: holds one recording, or scans in files; detect {recordings[-1].source} "
            "separately"
        )
    source = None if recordings[0].uri else open_source(recordings[0].source)
    if isinstance(source, BagSource) and not source.recording.is_ros1:
        return source
    if recordings[0].uri or isinstance(source, BagSource):
        print(
            f"note: {recordings[0].source}: its own topics are not copied; they are copied from a "
            "local bag of ROS 2 (rosbags-convert makes one of ROS 1)",
            file=sys.stderr,
        )
    return None


def parts_of(table: Path) -> Path:
    """The hidden folder of a table's parts."""
    return table.with_name(f".{table.name}.parts")


def copy_elsewhere(path: Path, uri: str) -> None:
    """Copies a file to a URI, all of it or nothing. Raises OSError."""
    system, target = file_system(uri)
    arrow = library("pyarrow.fs")
    try:
        system.create_dir(str(PurePosixPath(target).parent))
        local = arrow.LocalFileSystem()
        arrow.copy_files(str(path), target, source_filesystem=local, destination_filesystem=system)
    except OSError as error:
        raise OSError(f"{uri}: {error}; the table is {path}, --resume copies it again") from None


def is_table(output: Path) -> bool:
    """Whether results are to be rows of a table. Raises ValueError where its package is missing."""
    return output.suffix == SUFFIX and not output.is_dir() and library() is not None


@contextmanager
def opened(
    options: argparse.Namespace,
    detector: Detector,
    inputs: Sequence[ScanFile | RecordedScans],
    device: str | None = None,
) -> Iterator[FolderOutput | TableOutput | MessageOutput]:
    """The output, which no other run has meanwhile. device: as of `settings_of`."""
    if is_message_file(options.output):
        others = columns_of(options.config, detector.config).others
        with MessageFile(options.output, bag_of(inputs, options.output), others) as file:
            yield MessageOutput(file, options.score)
        return
    run = settings_of(options, detector, inputs, device)
    if is_table(options.output):
        try:
            with locked(parts_of(options.output)):
                yield TableOutput(options, run)
        finally:
            with suppress(OSError):  # not empty: of a run that may go on
                parts_of(options.output).rmdir()
        return
    names = [one.name if isinstance(one, ScanFile) else f"{one.name}/" for one in inputs]
    with locked(options.output):
        yield FolderOutput(options, [name for name in names if is_text(name)], run)
