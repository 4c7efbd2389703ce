"""Label the objects of a recorded drive, with the knowledge of all its scans."""

if __name__ == "__main__":
    from millisecond.tools import program

    program.start(__file__)

import argparse
import json
import math
import os
import sys
import zlib
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
from tqdm import tqdm

from millisecond.data.boxes import NamedDetections, points_in_boxes
from millisecond.data.checks.scans import Tally
from millisecond.data.checks.sensor import Mounting
from millisecond.data.datasets import Dataset, require_apart
from millisecond.data.files import locked, read_text, write_json, write_lines
from millisecond.data.folder.dataset import read_recording
from millisecond.data.folder.labels import label_lines, labelcloud_json
from millisecond.data.kitti.dataset import KittiDataset
from millisecond.data.kitti.labels import write_labels
from millisecond.data.kitti.layout import RECORDING, some
from millisecond.data.kitti.results import ResultFolder, detections_to_labels, json_result
from millisecond.data.live.folder import by_name
from millisecond.detector.detector import Detector
from millisecond.detector.tracking import EgoMotion
from millisecond.detector.tracking.ego_motion import inverse, move_boxes
from millisecond.detector.tracking.smoothing import (
    SURE,
    Object,
    Observed,
    merge_views,
    objects_of,
    without_rivals,
)
from millisecond.detector.tracking.tracker import hungarian
from millisecond.detector.uncertainty import score_entropy, view_of
from millisecond.tools.detect import RATE
from millisecond.tools.program import (
    COLUMN_CONFIG,
    WEIGHTS,
    add_mounting,
    columns_of,
    dataset_for,
    mounting_of,
    output_path,
    parser_of,
    rate,
    run,
)

EXAMPLE = """example:
  millisecond autolabel drive --output labelled
  millisecond evaluate_tracks labelled/tracks --root drive --overlap 0.5

DRIVE is one recording: a data set in KITTI's layout or of plain files (points/), its scans in the
order of their names, or a recording of millisecond import (sequences/NAME.jsonl), which tells times
and poses. OUTPUT/labels has a file per scan; OUTPUT/tracks the same boxes with scores
and ids, as millisecond detect --track writes them; OUTPUT/objects.json all objects, the most
doubtful first. `millisecond visualize --root DRIVE --review OUTPUT` shows them and takes verdicts:
accept, reject, another class, turned round. The next run keeps these, and label files that were
corrected by hand. docs/autolabel.md says more.
"""
USUAL = "--weights --format --rate --device"
BEGINNING = 2.0  # seconds that tell how fast the car is at first
TURN, STRETCH = 0.2, 0.03  # radians, share: of two of the views
LISTED = 0.2  # confidence from which on an object is in the list, though perhaps not labelled
VERDICTS = ACCEPT, REJECT = "accept", "reject"
FORMS = {"text": "labels/{}.txt", "labelcloud": "labels/{}.json", "kitti": "label_2/{}.txt"}
LIST = "objects.json"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = parser_of(__doc__, EXAMPLE, USUAL)
    add = parser.add_argument
    add("drive", type=Path, help="folder of the data set, or NAME.jsonl")
    add("--output", type=output_path, required=True, help="folder to write to")
    add("--weights", type=Path, help=WEIGHTS)
    add("--format", choices=FORMS, default="text", help="of the labels (default: text)")
    add("--rate", type=rate, default=RATE, help=f"scans per second (default: {RATE:g})")
    add("--config", type=Path, help=COLUMN_CONFIG)
    add("--device", help="cpu, cuda, cuda:1 (a GPU if there is one)")
    add_mounting(parser)
    options = parser.parse_args(arguments)
    return run(lambda: autolabel(options))


def autolabel(options: argparse.Namespace) -> None:
    """Read the drive, find its objects, and write what is known of them."""
    hungarian()  # where SciPy or KISS-ICP is missing, say so before the first scan
    root, split, told = options.drive, "all", []
    if root.suffix == RECORDING:
        split, told, root = str(root), read_recording(root), root.absolute().parents[1]
    if not told or told[0].pose is None:
        EgoMotion()
    detector = Detector.from_weights(options.weights, options.device)
    columns = columns_of(options.config, detector.config)
    dataset = dataset_for(detector.config, root, split, columns, labels=False)
    require_apart(options.output, root)
    if options.format == "kitti" and not isinstance(dataset, KittiDataset):
        raise ValueError(f"{options.drive}: has no calibrations; give another --format than kitti")
    rows = [*range(len(dataset))]
    if not told:
        rows.sort(key=lambda row: by_name(dataset.frame_ids[row]))
    names = [dataset.frame_ids[row] for row in rows]
    drive = Series(dataset, rows, names, mounting_of(options))
    moments = [(one.time - told[0].time, drive.pose(one.pose)) for one in told]
    moments = moments or [(number / options.rate, None) for number in range(len(rows))]
    with locked(options.output):
        output = Output(options.output, options.format, drive)
        scans = detect(detector, drive, moments)
        poses = [scan.pose for scan in scans]
        found = [one for one in objects_of(scans, drive.points) if one.confidence >= LISTED]
        output.write(judged(found, output.decided, drive, poses))


class Series(NamedTuple):
    """The scans of a data set as one recording."""

    dataset: Dataset
    rows: list[int]  # of the data set, in the order of time
    names: list[str]
    mounting: Mounting

    def points(self, number: int) -> np.ndarray:
        """A scan in the network's frame."""
        return self.mounting.to_network(self.dataset[self.rows[number]].points)

    def pose(self, pose: np.ndarray | None) -> np.ndarray | None:
        """[4, 4] from the network's frame to the world. pose: from the frame of the clouds."""
        if pose is None:
            return None
        to_network = np.eye(4)
        to_network[:3, :3] = self.mounting.rotation
        to_network[2, 3] = self.mounting.shift_z
        return pose @ inverse(to_network)

    @property
    def checksum(self) -> int:
        """Of the names and sizes of the scans."""
        files = [self.dataset.layout.cloud(name) for name in self.names]
        return zlib.crc32(repr([(path.name, path.stat().st_size) for path in files]).encode())


def detect(
    detector: Detector, drive: Series, moments: Sequence[tuple[float, Any]]
) -> list[Observed]:
    """What each scan shows, and its views. moments: times in seconds, and poses [4, 4] or None,
    which are then found."""
    ego = None
    if moments and moments[0][1] is None:
        beginning = [n for n, (time, _) in enumerate(moments) if time < BEGINNING]
        ego = EgoMotion.of_recording((drive.points(n), moments[n][0]) for n in beginning)
    scans, notes, total = [], Tally(), 0
    for number, name in enumerate(tqdm(drive.names, unit="scan", disable=None)):
        points, (time, pose) = drive.points(number), moments[number]
        notes.add(name, detector.examine(points))
        found = merge_views(views_of(detector, points))
        inside = points_in_boxes(points, found.boxes).sum(axis=1)
        scans.append(Observed(found, inside, time, ego(points, time) if ego else pose))
        total += len(points)
    for line in notes.lines():
        print(f"warning: {line}", file=sys.stderr)
    if not total:
        raise ValueError(f"{drive.dataset.layout.clouds}: none of {len(scans)} scans has a point")
    return scans


def views_of(detector: Detector, points: np.ndarray) -> list[NamedDetections]:
    """What a scan and its mirror image show, and both again turned and stretched as training does.
    Where the network sees all around, the latter look back."""
    back = (0,) if detector.config.grid.range[0] < 0 else ()
    return [
        view_of(detector, points, ()),
        view_of(detector, points, (1,)),
        view_of(detector, points, back, TURN, 1 - STRETCH),
        view_of(detector, points, (*back, 1), -TURN, 1 + STRETCH),
    ]


def entry_of(one: Object, drive: Series, poses: Sequence[np.ndarray]) -> dict[str, Any]:
    """An object as the list of objects has it, its boxes in the frame of the clouds."""
    scans = np.flatnonzero(one.present)
    moved = [move_boxes(one.boxes[scan][None], inverse(poses[scan])) for scan in scans]
    boxes = drive.mounting.boxes_from_network(np.concatenate(moved))
    doubts = {
        "score": score_entropy(np.array([one.confidence])),
        "gaps": float((one.scores[scans] == 0).mean()),
        "spread": min(1.0, one.spread / (one.boxes[0, 4] / 2)),
    }
    why = max(doubts, key=lambda reason: doubts[reason])
    return {
        "class": one.name,
        "verdict": None,
        "labelled": one.coherent and one.confidence >= SURE,
        "confidence": round(one.confidence, 4),
        "doubt": round(doubts[why], 4),
        "why": why,
        "standing": one.standing,
        "frame": drive.names[int(np.argmax(one.points * (one.scores > 0)))],
        "boxes": {drive.names[scan]: line_of(box) for scan, box in zip(scans, boxes, strict=True)},
    }


def object_of(entry: dict[str, Any], drive: Series, poses: Sequence[np.ndarray]) -> Object:
    """The object of an entry that has a verdict, in the world."""
    number_of = {name: number for number, name in enumerate(drive.names)}
    boxes = np.zeros((len(poses), 7))
    scores = np.zeros(len(poses))
    for name, line in entry["boxes"].items():
        number = number_of[name]
        box = drive.mounting.boxes_to_network(box_of(line)[None])
        boxes[number], scores[number] = move_boxes(box, poses[number])[0], 1.0
    return Object(entry["class"], boxes, scores, np.zeros(len(poses)), entry["standing"], 0.0)


def judged(
    objects: Sequence[Object], decided: Sequence[dict], drive: Series, poses: Sequence[np.ndarray]
) -> list[dict[str, Any]]:
    """The entries that the user has decided on, as they are, and the objects that are in the place
    of none of them: other weights may give these other classes and numbers."""
    known = [object_of(entry, drive, poses) for entry in decided]
    new = without_rivals(objects, known)[len(known) :]
    return [*map(settled, decided), *(entry_of(one, drive, poses) for one in new)]


def settled(entry: dict[str, Any]) -> dict[str, Any]:
    """An entry after its verdict: nothing about it is in doubt."""
    if entry["verdict"] == REJECT:
        return {**entry, "labelled": False, "doubt": 0}
    return {**entry, "labelled": True, "confidence": 1, "doubt": 0}


def line_of(box: np.ndarray) -> str:
    """A box [7] as the list has it, x y z l w h yaw: metres and radians as in labels."""
    return " ".join(f"{value:.4f}" for value in box)


def box_of(line: str) -> np.ndarray:
    """[7] of a line. Raises ValueError."""
    box = np.array(line.split(), np.float64)
    if box.shape != (7,) or not (np.isfinite(box).all() and (box[3:6] > 0).all()):
        raise ValueError(f"{line}: not a box")
    return box


def class_of(entry: dict[str, Any]) -> str:
    """The class of an entry, perhaps corrected."""
    return entry["class"] if entry["verdict"] in (None, ACCEPT, REJECT) else entry["verdict"]


class ObjectList:
    """The list of objects in an output folder, the most doubtful first, with the user's verdicts.

    Raises FileNotFoundError where there is none, ValueError for another file.
    """

    def __init__(self, folder: Path):
        self.path = folder / LIST
        text = read_text(self.path)
        try:
            self.content = json.loads(text)
            self.objects: list[dict[str, Any]] = self.content["objects"]
            fits = {"drive", "format", "written"} <= self.content.keys()
            fits &= all(map(_is_entry, self.objects))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            fits = False
        if not fits:
            raise ValueError(
                f"{self.path}: not a list of objects with verdicts null, {ACCEPT}, {REJECT} or a "
                "class; mend it or give another folder"
            )

    def save(self) -> None:
        """Writes the list as it is now, all of it or nothing."""
        write_json(self.path, self.content)


def _is_entry(entry: dict[str, Any]) -> bool:
    """Raises ValueError, KeyError, TypeError or AttributeError for most other things."""
    verdict = ACCEPT if entry["verdict"] is None else entry["verdict"]
    words = [entry["class"], entry["why"], verdict]
    numbers = [float(entry[name]) for name in ("id", "confidence", "doubt", "standing", "labelled")]
    for line in entry["boxes"].values():
        box_of(line)
    return (
        all(word.split() == [word] for word in words)
        and (verdict in VERDICTS or not get_close_matches(verdict.lower(), VERDICTS, cutoff=0.8))
        and entry["frame"] in entry["boxes"]
        and all(map(math.isfinite, numbers))
    )


class Output:
    """The folder that is written. Raises ValueError where it belongs to something else."""

    def __init__(self, folder: Path, form: str, drive: Series):
        self.folder, self.form, self.drive = folder, form, drive
        self.decided: list[dict[str, Any]] = []  # entries of an earlier run with a verdict
        self.written: dict[str, list[int]] = {}  # checksums of label files of earlier runs
        self.results = ResultFolder(folder / "tracks", drive.names)
        if (folder / LIST).is_file():
            self._read_list()
        foreign = [it for it in drive.names if it not in self.written and self.label(it).exists()]
        if foreign:
            raise ValueError(
                f"{folder}: labels of {some(foreign)} not written by this program; give another "
                "--output"
            )

    def label(self, name: str, folder: Path | None = None) -> Path:
        return (folder or self.folder) / FORMS[self.form].format(name)

    def _read_list(self) -> None:
        listed = ObjectList(self.folder)
        drive, form, self.written = (listed.content[key] for key in ("drive", "format", "written"))
        if drive != self.drive.checksum:
            raise ValueError(f"{self.folder}: has labels of another drive; give another --output")
        if form != self.form:
            raise ValueError(
                f"{self.folder}: has labels with --format {form}; give this or another --output"
            )
        self.decided = [entry for entry in listed.objects if entry["verdict"] is not None]
        strange = {name for entry in self.decided for name in entry["boxes"]} - {*self.drive.names}
        if strange:
            raise ValueError(f"{listed.path}: the drive has no scan {min(strange)}; mend it")

    def write(self, entries: Sequence[dict[str, Any]]) -> None:
        """All that was found, but for label files that the user has changed."""
        entries = [{"id": place} | entry | {"id": place} for place, entry in enumerate(entries, 1)]
        labels = [labels_of(entries, name) for name in self.drive.names]
        corrected = []
        with TemporaryDirectory(dir=self.folder, prefix=".new") as folder:
            for number, (name, (found, _)) in enumerate(zip(self.drive.names, labels, strict=True)):
                new = self.label(name, Path(folder))
                self._write_label(new, number, found)
                old = checksum(self.label(name))
                if old is None or old in self.written.get(name, []):
                    self.written[name] = sorted({old or 0, checksum(new) or 0})
                else:
                    corrected.append(name)
            # first the checksums: a run that is killed must not take its own labels for the user's
            head = {"drive": self.drive.checksum, "format": self.form}
            doubtful_first = sorted(entries, key=lambda entry: -entry["doubt"])
            content = {**head, "objects": doubtful_first, "written": self.written}
            write_json(self.folder / LIST, content)
            self.label("").parent.mkdir(exist_ok=True)
            for name in self.drive.names:
                if name not in corrected:
                    os.replace(self.label(name, Path(folder)), self.label(name))
        for name, (found, ids) in zip(self.drive.names, labels, strict=True):
            self.results.write(name, json_result(name, found) | {"ids": ids})
        count = sum(entry["labelled"] for entry in entries)
        print(f"{count} objects in {len(labels)} scans: {self.label('').parent}")
        print(f"{len(entries)} objects, the most doubtful first: {self.folder / LIST}")
        if corrected:
            print(f"labels of {some(corrected)} corrected by hand and kept")

    def _write_label(self, path: Path, number: int, found: NamedDetections) -> None:
        dataset, row = self.drive.dataset, self.drive.rows[number]
        if self.form == "text":
            write_lines(path, label_lines(found))
        elif self.form == "labelcloud":
            cloud = dataset.layout.cloud(self.drive.names[number])
            write_json(path, labelcloud_json(cloud, found))
        elif isinstance(dataset, KittiDataset):
            camera = dataset.calibration(row), dataset.image_shape(row)
            write_labels(path, detections_to_labels(found, *camera))


def labels_of(entries: Sequence[dict[str, Any]], scan: str) -> tuple[NamedDetections, list[int]]:
    """The labels of a scan, and their ids."""
    shown = [entry for entry in entries if entry["labelled"] and scan in entry["boxes"]]
    boxes = np.array([box_of(entry["boxes"][scan]) for entry in shown]).reshape(-1, 7)
    scores = np.array([entry["confidence"] for entry in shown], np.float64)
    found = NamedDetections(boxes, scores, [class_of(entry) for entry in shown])
    return found, [entry["id"] for entry in shown]


def checksum(path: Path) -> int | None:
    return zlib.crc32(path.read_bytes()) if path.is_file() else None
