"""Find boxes in LiDAR scans: a JSON file per scan and, with a calibration, KITTI result files."""

from __future__ import annotations

if __name__ == "__main__":
    from millisecond.tools import program

    program.start(__file__)

import argparse
import re
import sys
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import numpy as np
from tqdm import tqdm

from millisecond.data.boxes import NamedDetections
from millisecond.data.calibration import Calibration
from millisecond.data.checks.scans import Note, Tally, is_usual
from millisecond.data.files import is_uri, led_to, usable_cores
from millisecond.data.formats.clouds import read_scan
from millisecond.data.formats.points import KITTI_POINTS, PointColumns
from millisecond.data.kitti.layout import USUAL_IMAGE, image_shape
from millisecond.data.live.folder import by_name
from millisecond.data.live.inputs import (
    RecordedScans,
    ScanFile,
    Unit,
    find_inputs,
    local_copy,
    picture_of,
)
from millisecond.data.live.messages import is_message_file
from millisecond.data.live.pool import TOGETHER, Chunk, Number, ReaderPool, ScanRead
from millisecond.data.live.scan import LiveScan
from millisecond.detector.config import PRECISIONS
from millisecond.detector.detection_table import SUFFIX, shard_name
from millisecond.detector.detector import Detector
from millisecond.detector.device import usable_device
from millisecond.detector.inference import Detections
from millisecond.detector.tracking import EgoMotion, Tracker, Tracks
from millisecond.tools.detecting import (
    Begun,
    CameraView,
    FolderOutput,
    FolderWriter,
    Kept,
    MessageOutput,
    MessageWriter,
    ScanResult,
    TableOutput,
    TableWriter,
    is_table,
    opened,
    units_of,
)
from millisecond.tools.program import (
    COLUMN_CONFIG,
    WEIGHTS,
    add_mounting,
    columns_of,
    detector_of,
    one_line,
    output_path,
    parser_of,
    rate,
    run,
    share,
)

EXAMPLE = """examples:
  millisecond detect kitti/training/velodyne --calib kitti/training/calib --output results
  millisecond detect drives/ drive.bag night.pcap --output results.parquet
  millisecond detect s3://bucket/drives --output s3://bucket/results.parquet
  millisecond detect drive.bag --track --score 0.3 --output found.mcap

An input is what `millisecond demo` plays: a scan, a folder with all folders in it, a drive of
KITTI, a bag or an MCAP file (drive.bag:/topic), packets (drive.pcap). It may be a pattern
("*/*.bin"), or a list: a .txt file that names an input per line, below its own folder. A recording
of `millisecond import` (sequences/NAME.jsonl) tells times and poses too. A scan is a
.bin file of float32 (x, y, z, intensity), an array [P, 4] of them in .npy or .npz, or a .pcd, .ply
or .las file; other columns are named by `points` in a configuration (--config).

OUTPUT/000008.json holds boxes (x, y, z, l, w, h, yaw in the LiDAR frame, metres and radians),
scores, names and the time taken. In folders of an input and in recordings scans are named by their
place there: OUTPUT/drive/000008.json. An output that ends in .parquet is one table of all boxes
(pip install millisecond[fleet]): scan, time, x, y, z, l, w, h, yaw, score, class, track.

An output that ends in .mcap holds messages of ROS 2, which Foxglove and RViz show (pip install
millisecond[live]): points, vision_msgs/Detection3DArray and a MarkerArray of boxes, labels and,
with --track, trails. The topics of a bag of ROS 2 stay beside them. It is one recording, or scans
in files.

With --calib, points outside the camera's field of view are left out, as in training, and
OUTPUT/000008.txt is the result file that KITTI's evaluation takes. The image's size is read from
../image_2/000008.png beside the scan's folder, 1242 x 375 where there is none. Scans that cannot be
read are named at the end, and the exit code is 2.

With --resume a run that was stopped goes on where it was; its weights and settings must be the
same. A file is there whole or not at all.

With --shard 3/8 only the third of eight equal parts of the inputs is detected, into
OUTPUT.parquet/3-of-8.parquet: machines that share the work need nothing but the inputs. All parts
together are what one run finds.

With --ray all GPUs of this machine detect, or of the cluster of Ray that is named (pip install
millisecond[fleet], docs/fleet.md). All its machines see inputs and outputs under the same names.

With --format text, OUTPUT/000008.txt holds lines `x y z l w h yaw class` instead; with --format
labelcloud, OUTPUT/000008.json is what labelCloud opens. Both are labels of a data set of plain
files, to be corrected by hand, and are never written over.

With --track the files are one recording, in the order of their names. The boxes are then boxes
of tracks, with their ids, velocities (metres per second along x and y of the scan) and ages
(scans).
"""
USUAL = "--weights --device --score --calib --format --track --resume"
NOTHING_SEEN = Note(
    "camera",
    "no point is in the camera's picture; does the calibration belong to this scan's camera?",
)
RATE = 10.0  # scans per second
STOPPED = "stopped; the same command with --resume goes on"
NOT_WRITTEN = "stopped; nothing is written"
MOST_PROCESSES = 12  # that read and write
FIRST, EVERY = 4, 1000  # scans that are examined whole: the first ones, then one in so many
UNUSUAL = 20  # scans that a quick look finds unusual, and that are examined too


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    begun_anew = is_message_file(options.output)
    return run(lambda: detect_all(options), NOT_WRITTEN if begun_anew else STOPPED)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = parser_of(__doc__, EXAMPLE, USUAL)
    add = parser.add_argument
    add("input", nargs="+", help="scans, folders, drives, bags, packets, patterns, lists")
    add("--weights", type=Path, help=WEIGHTS)
    add(
        "--output",
        type=lambda text: text if is_uri(text) else output_path(text),
        required=True,
        help="folder, FILE.parquet (also by URI), or FILE.mcap",
    )
    add("--config", type=Path, help=COLUMN_CONFIG)
    add("--calib", type=Path, help="KITTI calibration file, or folder of them")
    add("--device", help="cpu, cuda, cuda:1 (a GPU if there is one)")
    add("--precision", choices=PRECISIONS, default="fp32", help="of the network")
    add(
        "--format",
        choices=("json", "text", "labelcloud"),
        default="json",
        help="of the files (default: json)",
    )
    add("--score", type=share, default=0.0, help="least score that is written (default: all)")
    add = parser.add_argument_group("tracks").add_argument
    add("--track", action="store_true", help="follow objects from scan to scan")
    add("--rate", type=rate, help=f"with --track: scans per second (default: {RATE:g})")
    add(
        "--ego",
        action="store_true",
        help="with --track: take the car's own motion into account, from its scans (KISS-ICP)",
    )
    add = parser.add_argument_group("many scans, many machines").add_argument
    add("--resume", action="store_true", help="go on with a run that was stopped")
    add("--shard", type=part, metavar="K/N", help="detect only the part K of N of the inputs")
    add(
        "--ray",
        nargs="?",
        const="",
        metavar="HOST:PORT",
        help="detect on all GPUs of a cluster of Ray (default: of this machine)",
    )
    add_mounting(parser)
    options = parser.parse_args(arguments)
    _require_sense(parser, options)
    return options


def _require_sense(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """Ends the program where options do not go together, and fills in those that others set."""
    options.copy_to = options.output if isinstance(options.output, str) else ""
    if options.copy_to:
        options.output = Path(PurePosixPath(options.copy_to.partition("?")[0]).name)
        if options.output.suffix != SUFFIX:
            parser.error(f"--output {options.copy_to}: only a .parquet file may be a URI")
    for name, given in (("--ego", options.ego), ("--rate", options.rate)):
        if given and not options.track:
            parser.error(f"{name} goes with --track")
    if options.format != "json" and (options.track or options.calib):
        parser.error(f"--format {options.format}: not with --track or --calib")
    if options.format != "json" and options.output.suffix == SUFFIX:
        parser.error(f"--format {options.format}: not with a .parquet output")
    if is_message_file(options.output):
        for name in ("resume", "ray"):
            if getattr(options, name) not in (False, None):
                parser.error(f"--{name}: not with an .mcap output")
        if options.format != "json":
            parser.error(f"--format {options.format}: not with an .mcap output")
    if options.shard:
        if options.output.suffix != SUFFIX or options.track:
            parser.error("--shard goes with a .parquet output, and not with --track")
        options.output /= shard_name(options.shard)
        if options.copy_to:
            where, *query = options.copy_to.partition("?")
            options.copy_to = f"{where}/{shard_name(options.shard)}{''.join(query)}"
    if options.ray is not None:
        if options.track or options.shard:
            parser.error("--ray: not with --track or --shard")
        if not options.weights:
            parser.error("--ray goes with --weights: without, the first scan chooses them")
        if options.device not in (None, "cpu", "cuda"):
            parser.error(f"--device {options.device}: with --ray say cpu or cuda")


def part(text: str) -> tuple[int, int]:
    """An argument such as 3/8: a whole number from 1 to another one."""
    found = re.fullmatch(r"([1-9]\d{0,5})/([1-9]\d{0,5})", text, re.ASCII)
    number, count = map(int, found.groups()) if found else (1, 0)
    if number > count:
        raise argparse.ArgumentTypeError(f"{text!r} is not a part such as 3/8")
    return number, count


def detect_all(options: argparse.Namespace) -> None:
    """Detect in every scan; raises ValueError at the end where some could not be read."""
    inputs = find_inputs(options.input)
    if options.track:  # recordings first, in the order of the command
        inputs.sort(key=lambda one: by_name(one.name) if isinstance(one, ScanFile) else [])
    inputs = timed(inputs, options.rate)
    if options.shard:
        inputs = shard_of(inputs, *options.shard)
    if options.calib and not options.calib.exists():
        raise FileNotFoundError(f"{options.calib}: no such calibration file or folder")
    recording = next((one for one in inputs if isinstance(one, RecordedScans)), None)
    if options.calib and recording:
        raise ValueError(f"{recording.source}: --calib is for scans in files; detect it separately")
    is_table(options.output)  # its package is there
    if options.ray is not None:
        from millisecond.tools.fleet import detect_on_cluster

        detect_on_cluster(inputs, options)
        return
    alone = is_message_file(options.output)  # the file is written where the scans are read
    with ReaderPool(0 if alone else processes_for(options.device, inputs)) as pool:
        detector = detector_of(options)
        with opened(options, detector, inputs) as output:
            report = Detecting(detector, pool, output, options).run(units_of(inputs))
            report.end(output)


def timed(
    inputs: Sequence[ScanFile | RecordedScans], rate: float | None
) -> list[ScanFile | RecordedScans]:
    """Files that know no time, or all where a rate is given, get the time of their number."""
    return [
        one._replace(time=number / (rate or RATE))
        if isinstance(one, ScanFile) and (rate or one.time is None)
        else one
        for number, one in enumerate(inputs)
    ]


def shard_of(
    inputs: Sequence[ScanFile | RecordedScans], number: int, count: int
) -> list[ScanFile | RecordedScans]:
    """A part of the inputs, from 1."""
    if count > len(inputs):
        raise ValueError(f"--shard {number}/{count}: there are only {len(inputs)} inputs")
    first, last = (len(inputs) * k // count for k in (number - 1, number))
    return [*inputs[first:last]]


def processes_for(device: str | None, inputs: Sequence[ScanFile | RecordedScans]) -> int:
    """How many processes read and write. A CPU detects slower than one of its cores reads, and
    needs them all; a GPU needs one."""
    few = len(inputs) <= TOGETHER and all(isinstance(one, ScanFile) for one in inputs)
    return 0 if few else readers_beside(usable_device(device).type, usable_cores())


def readers_beside(device: str, cores: int) -> int:
    """How many processes read and write beside a detector's, on so many cores together."""
    return 0 if device == "cpu" else min(max(cores - 1, 0), MOST_PROCESSES)


class Facts(NamedTuple):
    """What a reader finds out about a scan."""

    left_out: int  # points that the camera does not see
    assumed: bool  # the size of the camera's image
    usual: bool  # at a quick look


class ScanClerk:
    """Reads scans and writes their results; each process has its own."""

    def __init__(
        self,
        detector: Detector,
        output: FolderOutput | TableOutput | MessageOutput | Begun,
        options: argparse.Namespace,
    ):
        self.columns = columns_of(options.config, detector.config)
        self._calib, self._crop = options.calib, detector.config.grid.crop_to_image
        self._range, self._features = detector.range, detector.config.points.features
        self._writer: FolderWriter | TableWriter | MessageWriter = output.results.writer
        self._complete = output.complete
        # what is found then depends on all scans before
        self._skips = output.resumes and not (options.track or detector.remembers)
        self._kept: dict[str, Kept | LiveScan] = {}

    def skips(self, name: str, number: Number) -> bool:
        """Whether the scan need not be read."""
        return self._complete or (self._skips and self._writer.has(name, number))

    def read(self, name: str, scan: ScanFile | LiveScan) -> tuple[np.ndarray, Facts]:
        """The points of a scan. Raises ValueError or OSError."""
        path, view = Path(name), None
        if isinstance(scan, ScanFile):
            path = scan.path
            with local_copy(str(path), scan.uri) as copy:
                points, view = read(Path(copy), self._calib, self._crop, self.columns)
        else:
            points = scan.points
        if isinstance(self._writer, FolderWriter):
            self._kept[name] = path, view
        elif isinstance(self._writer, MessageWriter):
            if isinstance(scan, ScanFile):
                scan = LiveScan(points, scan.time or 0.0, name, picture_of(scan))
            self._kept[name] = scan
        usual = is_usual(points, self._range, self._features)
        return points, Facts(view.left_out if view else 0, bool(view and view.assumed), usual)

    def write(self, batch: Any) -> None:
        """Results, as the writer takes them."""
        self._writer.write(batch, self._kept)


@dataclass
class Report:
    """What is to be known of a run, or of some of its scans."""

    done: int = 0  # scans
    there: int = 0  # scans, already
    boxes: int = 0
    examined: int = 0  # scans, whole
    left_out: int = 0  # points
    assumed: int = 0  # scans without an image
    bad: dict[Number, str] = field(default_factory=dict)
    lost: list[str] = field(default_factory=list)  # lines on what recordings could not give
    remarks: list[str] = field(default_factory=list)  # other lines on recordings
    notes: Tally = field(default_factory=Tally)
    oddities: Tally = field(default_factory=Tally)

    def add(self, other: Report) -> None:
        """What is to be known of other scans."""
        for name in ("done", "there", "boxes", "examined", "left_out", "assumed"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.bad |= other.bad
        self.lost += other.lost
        self.remarks += other.remarks
        self.notes.update(other.notes)
        self.oddities.update(other.oddities)

    def end(self, output: FolderOutput | TableOutput | MessageOutput) -> None:
        """Ends the output and prints all. Raises ValueError with the last line where scans could
        not be read."""
        lines = [*self.lost, *output.end([line for _, line in sorted(self.bad.items())])]
        for line in self.remarks:
            print(f"note: {line}", file=sys.stderr)
        examined = self.examined if self.examined < self.done else None
        for line in [*self.notes.lines(), *self.oddities.lines(examined)]:
            print(f"warning: {line}", file=sys.stderr)
        if self.assumed:
            size = "{1} x {0}".format(*USUAL_IMAGE)
            print(f"{self.assumed} scans have no image beside them: {size} pixels are assumed")
        if self.left_out:
            print(f"{self.left_out} points out of the camera's picture were left out")
        new = len(self.bad) + len(self.lost)
        if there := self.there - (len(lines) - new):
            print(f"{there} scans of an earlier run are there already")
        if done := self.done:
            print(f"{self.boxes} boxes in {done} scan{'s' * (done > 1)}, written to {output.place}")
        for line in lines[:-1]:
            print(f"error: {line}", file=sys.stderr)
        if lines:
            number = done + self.there + new
            counted = f" ({len(lines)} of {number} scans could not be read)" if number > 1 else ""
            raise ValueError(lines[-1] + counted)


class Detecting:
    """Scans are read ahead, detected one after another, and written meanwhile."""

    def __init__(
        self,
        detector: Detector,
        pool: ReaderPool,
        output: FolderOutput | TableOutput | MessageOutput | Begun,
        options: argparse.Namespace,
    ):
        self._detector, self._pool, self._output, self._options = detector, pool, output, options
        self._clerk = ScanClerk(detector, output, options)
        self._begun = output.resumes
        self._parts: deque[_Part] = deque()  # whose results are not all there, in their order
        self._waiting: deque[tuple[_Part, ScanRead, float]] = deque()  # for their results
        self._tracker, self._ego, self._recording = None, None, ""
        self._done = self._unusual = 0  # scans of all calls

    def run(self, units: Sequence[Unit]) -> Report:
        """Detects in all scans of these units. They are written when it returns."""
        self._pool.begin(self._clerk)
        self._start, self._busy = time.perf_counter(), 0.0
        self._since: float | None = None  # when the detector was given a cloud, in its turn
        self._new, whole = Report(), all(unit.recording is None for unit in units)
        total = sum(len(unit.files) for unit in units) if whole else None
        disable = True if isinstance(self._output, Begun) else None
        with tqdm(total=total, unit="scan", disable=disable) as self._bar:
            for found, left_out in self._detector.stream(self._clouds(units)):
                self._take(found, left_out)
        if self._begun:
            self._hand_over()
        self._output.results.finish(self._pool)
        return self._new

    def _clouds(self, units: Sequence[Unit]) -> Iterator[np.ndarray]:
        """The points of each scan, which then waits for its result. The detector has its turn from
        here on until it asks for the next cloud, or gives a result."""
        for chunk in self._pool.read(units):
            part = _Part(chunk)
            for trouble in chunk.notes:
                (self._new.lost if trouble.lost else self._new.remarks).append(trouble.text)
            for scan in chunk.scans:
                if scan.error is not None:
                    part.bad[scan.number] = one_line(scan.error)
                elif scan.there:
                    self._new.there += 1
                else:
                    part.open += 1
            self._new.bad |= part.bad
            if part.open or part.bad:
                self._parts.append(part)
            if not part.open:
                self._release(chunk)
                continue
            for scan in chunk.scans:
                if scan.error is None and not scan.there:
                    self._waiting.append((part, scan, time.perf_counter()))
                    self._since = time.perf_counter()
                    yield scan.points
                    self._end_turn()
        self._since = time.perf_counter()  # results may be left

    def _end_turn(self) -> None:
        if self._since is not None:
            self._busy += time.perf_counter() - self._since
        self._since = None

    def _take(self, found: Detections, left_out: list[Note]) -> None:
        """The result of the scan that waits the longest."""
        self._end_turn()
        part, scan, start = self._waiting.popleft()
        class_names = self._detector.config.class_names  # the first scan may bring other weights
        named = found.named(class_names)
        milliseconds = 1000 * (time.perf_counter() - start)
        if not self._done:
            self._output.begin()
            self._begun = True
        self._done += 1
        self._note(scan, left_out)
        wanted = np.flatnonzero(named.scores >= self._options.score)
        tracks = pose = None
        if self._options.track:
            tracks, pose = self._follow(scan, named.select(wanted))
        self._new.boxes += len(wanted if tracks is None else tracks.ids)
        known = scan.name, scan.number, scan.time, named, class_names
        part.results.append(ScanResult(*known, milliseconds, tracks, pose))
        if len(part.results) == part.open:
            self._release(part.chunk)
            self._hand_over()

    def _release(self, chunk: Chunk) -> None:
        """All scans of the chunk are done: others may have its memory."""
        chunk.release()
        share = self._busy / (time.perf_counter() - self._start)
        self._bar.set_postfix_str(f"detector busy {100 * share:.0f} %", refresh=False)
        self._bar.update(len(chunk.scans))

    def _hand_over(self) -> None:
        """Has results written, in the order of the scans."""
        while self._parts and len(self._parts[0].results) == self._parts[0].open:
            part = self._parts.popleft()
            self._output.results.add(self._pool, part.chunk, part.results, part.bad)

    def _follow(self, scan: ScanRead, named: NamedDetections) -> tuple[Tracks, np.ndarray | None]:
        if self._tracker is None or scan.source != self._recording:
            self._tracker, self._recording = Tracker(), scan.source
            self._ego = EgoMotion() if self._options.ego else None
        try:
            pose = self._ego(scan.points, scan.time) if self._ego else scan.pose
            return self._tracker.update(named, scan.time, pose), pose
        except ValueError as error:
            raise ValueError(f"{scan.title}: {error}; leave out --track, or this scan") from None

    def _note(self, scan: ScanRead, left_out: list[Note]) -> None:
        new, facts = self._new, scan.facts
        new.done += 1
        new.left_out += facts.left_out
        new.assumed += facts.assumed
        if facts.left_out and not len(scan.points):
            new.notes.add(scan.title, [NOTHING_SEEN])
        new.notes.add(scan.title, left_out)
        self._unusual += not facts.usual
        unusual = not facts.usual and self._unusual <= UNUSUAL
        if self._done <= FIRST or self._done % EVERY == 0 or unusual:
            new.examined += 1
            seen = self._detector.examine(scan.points)
            new.oddities.add(scan.title, [note for note in seen if note not in left_out])


class _Part:
    """The scans of a chunk that wait for their results."""

    def __init__(self, chunk: Chunk):
        self.chunk, self.open = chunk, 0  # scans that were read
        self.results: list[ScanResult] = []
        self.bad: dict[Number, str] = {}


def read(
    scan: Path, calib: Path | None, crop: bool, columns: PointColumns = KITTI_POINTS
) -> tuple[np.ndarray, CameraView | None]:
    """The points of a scan, without those out of the camera's picture if asked for, and the camera
    where there is a calibration: the file itself, or the one of the scan's name in the folder."""
    points = read_scan(scan, columns)
    if calib is None:
        return points, None
    path = calib / f"{scan.stem}.txt" if calib.is_dir() else calib
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such calibration file")
    calibration = Calibration.from_file(path)
    places = (scan.absolute(), led_to(scan))  # a link in a KITTI folder, or a link to one
    images = [place.parent.parent / "image_2" / f"{scan.stem}.png" for place in places]
    image = next((image for image in images if image.is_file()), None)
    shape = image_shape(image) if image else USUAL_IMAGE
    seen = points[calibration.in_image(points, shape)] if crop else points
    return seen, CameraView(calibration, shape, len(points) - len(seen), image is None)
