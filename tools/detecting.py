"""Where `millisecond detect` writes to: a folder of files, or a table; how a run goes on."""

from __future__ import annotations

import argparse
import hashlib
import json
import shutil
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib import metadata
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import numpy as np

from millisecond.data.boxes import NamedDetections, wrap_angle
from millisecond.data.calibration import Calibration
from millisecond.data.files import file_system, is_text, locked, read_text, write_json, write_lines
from millisecond.data.folder.labels import label_lines, labelcloud_json
from millisecond.data.kitti.results import (
    ResultFolder,
    detections_to_labels,
    require_same_run,
    write_result,
)
from millisecond.data.live.inputs import RecordedScans, ScanFile
from millisecond.data.live.pool import Chunk, ReaderPool
from millisecond.detector.detection_table import (
    SUFFIX,
    TableRows,
    join_tables,
    library,
    told_by,
    write_table,
)
from millisecond.detector.detector import Detector
from millisecond.detector.tracking import Tracks
from millisecond.tools.program import columns_of

LARGEST_YAW = 3.1415  # of four decimals within half a turn
DECIMALS = 4
SHARD = 512  # scans of a part of a table
RUN = "run.json"
JOINED = ".joined"  # in the folder of parts: the table, until it takes their place
Settings = dict[str, Any]


class CameraView(NamedTuple):
    """A camera that looks at a scan."""

    calibration: Calibration
    image_shape: tuple[int, int]  # height, width
    left_out: int  # points that it does not see
    assumed: bool  # the image's size, for want of an image


Kept = tuple[Path, CameraView | None]  # of a scan


class ScanResult(NamedTuple):
    """What was found in a scan."""

    name: str
    number: int  # among all scans
    time: float  # seconds
    boxes: np.ndarray  # [N, 7] LiDAR frame
    scores: np.ndarray  # [N]
    labels: np.ndarray  # [N] from 1 in the order of the classes
    class_names: Sequence[str]
    milliseconds: float
    tracks: Tracks | None


class Shard(NamedTuple):
    """The results of SHARD scans in a row, fewer at the end."""

    number: int
    results: Sequence[ScanResult]
    bad: Sequence[str]  # lines on those that could not be read


def settings_of(
    options: argparse.Namespace, detector: Detector, inputs: Sequence[ScanFile | RecordedScans]
) -> Settings:
    """All that the results depend on, in a form for people."""
    columns = columns_of(options.config, detector.config)
    version = "of a checkout"
    with suppress(metadata.PackageNotFoundError):
        version = metadata.version("millisecond")
    names = "\n".join(one.name for one in inputs).encode("utf-8", "surrogateescape")
    return {
        "version": version,
        "weights": detector.fingerprint(),
        "device": detector.device.type,
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

    def has(self, name: str, number: int) -> bool:
        """Whether the scan's results are there."""
        return (self.folder / f"{name}.{'txt' if self.form == 'text' else 'json'}").is_file()

    def write(self, results: Sequence[ScanResult], kept: dict[str, Kept]) -> None:
        """kept: the file of each scan, and its camera; what is written leaves it."""
        for result in results:
            named = named_of(result, self.score)
            self._write(result, named, *kept.pop(result.name))

    def _write(
        self, result: ScanResult, named: NamedDetections, scan: Path, view: CameraView | None
    ) -> None:
        name, tracks = result.name, result.tracks
        if self.form == "labelcloud":
            write_result(self.folder, name, labelcloud_json(scan, named))
            return
        if self.form == "text":
            write_lines(self.folder / f"{name}.txt", label_lines(named))
            return
        content = {
            "frame": name,
            "boxes": named.boxes.round(DECIMALS).tolist(),
            "scores": [float(f"{score:.9g}") for score in named.scores],
            "names": list(named.names),
            "milliseconds": round(result.milliseconds, 3),
        }
        if tracks is not None:
            content["ids"] = tracks.ids.tolist()
            content["velocities"] = tracks.velocities.round(3).tolist()
            content["ages"] = tracks.ages.tolist()
        labels = view and detections_to_labels(named, view.calibration, view.image_shape)
        write_result(self.folder, name, content, labels)


class TableWriter(NamedTuple):
    """Parts of a table."""

    folder: Path
    score: float

    def has(self, name: str, number: int) -> bool:
        """Whether the part to which the scan belongs is there."""
        return self.part(number // SHARD).is_file()

    def part(self, number: int) -> Path:
        return self.folder / f"{number:06d}{SUFFIX}"

    def write(self, shard: Shard, kept: Mapping[str, Kept]) -> None:
        rows = []
        for result in shard.results:
            boxes, scores, names = named_of(result, self.score)
            scores = np.array([float(f"{score:.9g}") for score in scores], np.float64)
            found = NamedDetections(boxes.round(DECIMALS), scores, names)
            ids = None if result.tracks is None else result.tracks.ids
            rows.append(TableRows(result.name, result.time, found, ids))
        write_table(self.part(shard.number), rows, shard.bad)


def named_of(result: ScanResult, score: float) -> NamedDetections:
    """The boxes to be written, in float64, with yaws that stay within half a turn when rounded."""
    if (tracks := result.tracks) is not None:
        named = NamedDetections(tracks.boxes, tracks.scores, tracks.names)
    else:
        names = tuple(result.class_names[label - 1] for label in result.labels)
        named = NamedDetections(result.boxes, result.scores, names)
        named = named.select(np.flatnonzero(named.scores >= score))
    boxes = named.boxes.astype(np.float64)
    boxes[:, 6] = wrap_angle(boxes[:, 6]).clip(-LARGEST_YAW, LARGEST_YAW)
    return named._replace(boxes=boxes)


class FolderOutput:
    """Gives the results of each chunk to be written."""

    complete = False

    def __init__(self, options: argparse.Namespace, names: Sequence[str], run: Settings):
        replace = options.format == "json"
        self._folder = ResultFolder(options.output, names, replace, run, options.resume)
        self.resumes = self._folder.resumes
        self.writer = FolderWriter(options.output, options.format, options.score)

    def begin(self) -> None:
        """Removes old results."""
        self._folder.begin()

    def add(
        self,
        pool: ReaderPool,
        chunk: Chunk,
        results: Sequence[ScanResult],
        bad: Mapping[int, str],
    ) -> None:
        """The results of a chunk; lines on scans that could not be read, by their numbers."""
        if results:
            chunk.write(results)

    def end(self, pool: ReaderPool, bad: Sequence[str]) -> Sequence[str]:
        """Waits until all is written. Returns lines on all scans that could not be read."""
        pool.finish()
        return bad


class TableOutput:
    """Gives the results to be written in parts, which become a table at the end."""

    def __init__(self, options: argparse.Namespace, run: Settings):
        """Raises ValueError where the output is another's."""
        self.path, self._settings, self._copy_to = options.output, run, options.copy_to
        if self._copy_to:
            require_free(self._copy_to)
        self._parts = parts_of(self.path)
        self._state = self._parts / RUN
        told = told_by(self.path) if self.path.exists() else {}
        there = self._state.is_file() or bool(told)
        self.resumes = options.resume and there
        self.complete = self.resumes and not self._state.is_file()
        if self.resumes:
            old = told.get("run") if self.complete else json.loads(read_text(self._state))
            require_same_run(self.path, old, run)
        self.writer = TableWriter(self._parts, options.score)
        self._begun = self.resumes
        self._open: defaultdict[int, dict[int, ScanResult | str]] = defaultdict(dict)

    def begin(self) -> None:
        """Removes what an earlier run has left."""
        if not self._begun:
            for path in self._parts.glob(f"*{SUFFIX}"):
                path.unlink()
            write_json(self._state, self._settings)
        self._begun = True

    def add(
        self,
        pool: ReaderPool,
        chunk: Chunk,
        results: Sequence[ScanResult],
        bad: Mapping[int, str],
    ) -> None:
        """As of `FolderOutput`."""
        for number, one in [*((result.number, result) for result in results), *bad.items()]:
            shard = self._open[number // SHARD]
            shard[number] = one
            if len(shard) == SHARD:
                self._write(pool, number // SHARD)

    def _write(self, pool: ReaderPool, number: int) -> None:
        scans = [one for _, one in sorted(self._open.pop(number).items())]
        results = [one for one in scans if isinstance(one, ScanResult)]
        pool.write(number, Shard(number, results, [one for one in scans if isinstance(one, str)]))

    def end(self, pool: ReaderPool, bad: Sequence[str]) -> Sequence[str]:
        """As of `FolderOutput`; the table takes the place of its parts."""
        bad = self._end(pool, bad)
        if self._copy_to and self.path.is_file():
            copy_elsewhere(self.path, self._copy_to)
        return bad

    def _end(self, pool: ReaderPool, bad: Sequence[str]) -> Sequence[str]:
        if self.complete:
            shutil.rmtree(self._parts, ignore_errors=True)  # killed while it removed them
            return told_by(self.path)["bad"]
        if not self._begun:  # no scan could be read
            return bad
        for number in sorted(self._open):
            self._write(pool, number)
        pool.finish()
        parts = sorted(self._parts.glob(f"[!.]*{SUFFIX}"))
        joined = self._parts / JOINED  # what a kill leaves of it goes with the parts
        bad = join_tables(parts, joined, self._settings)
        joined.replace(self.path)
        shutil.rmtree(self._parts)
        return bad


def parts_of(table: Path) -> Path:
    """The hidden folder of a table's parts."""
    return table.with_name(f".{table.name}.parts")


def require_free(uri: str) -> None:
    """Raises ValueError or OSError where a file is there already, or nothing can be reached."""
    system, path = file_system(uri)
    if system.get_file_info(path).type.name != "NotFound":
        raise ValueError(f"{uri}: is there already; give another --output")


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
    options: argparse.Namespace, detector: Detector, inputs: Sequence[ScanFile | RecordedScans]
) -> Iterator[FolderOutput | TableOutput]:
    """The output, which no other run has meanwhile."""
    run = settings_of(options, detector, inputs)
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
