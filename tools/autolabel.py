"""Label the objects of a recorded drive, with the knowledge of all its scans."""

if __name__ == "__main__":
    from millisecond.tools import program

    program.begin()

import argparse
import json
import os
import sys
import zlib
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import numpy as np
from tqdm import tqdm

from millisecond.data.boxes import NamedDetections, points_in_boxes
from millisecond.data.checks.scans import Tally
from millisecond.data.checks.sensor import Mounting
from millisecond.data.datasets import Dataset, require_apart
from millisecond.data.files import locked, read_text, write_json, write_lines
from millisecond.data.folder.labels import label_lines, labelcloud_json
from millisecond.data.kitti.dataset import KittiDataset
from millisecond.data.kitti.labels import write_labels
from millisecond.data.kitti.layout import some
from millisecond.data.kitti.results import ResultFolder, detections_to_labels
from millisecond.data.metric.matching import box_iou
from millisecond.detector.detector import Detector
from millisecond.detector.tracking import EgoMotion
from millisecond.detector.tracking.ego_motion import inverse, move_boxes
from millisecond.detector.tracking.smoothing import (
    SAME,
    SURE,
    Object,
    Observed,
    merge_views,
    objects_of,
)
from millisecond.detector.tracking.tracker import hungarian
from millisecond.detector.uncertainty import score_entropy, view_of
from millisecond.tools.detect import RATE, by_name
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
order of their names. OUTPUT/labels has a file per scan; OUTPUT/tracks the same boxes with scores
and ids, as millisecond detect --track writes them; OUTPUT/objects.json all objects, the most
doubtful first. There the "verdict" of an object may be "accept", "reject" or another class. The
next run keeps verdicts, and label files that were corrected by hand. docs/autolabel.md says more.
"""
LISTED = 0.2  # confidence from which on an object is in the list, though perhaps not labelled
ACCEPT, REJECT = "accept", "reject"
FORMS = {"text": "labels/{}.txt", "labelcloud": "labels/{}.json", "kitti": "label_2/{}.txt"}
LIST = "objects.json"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = parser_of(__doc__, EXAMPLE)
    add = parser.add_argument
    add("drive", type=Path, help="folder of the data set")
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
    ego, detector = EgoMotion(), Detector.from_weights(options.weights, options.device)
    columns = columns_of(options.config, detector.config)
    dataset = dataset_for(detector.config, options.drive, "all", columns, labels=False)
    require_apart(options.output, options.drive)
    if options.format == "kitti" and not isinstance(dataset, KittiDataset):
        raise ValueError(f"{options.drive}: has no calibrations; give another --format than kitti")
    rows = sorted(range(len(dataset)), key=lambda row: by_name(dataset.frame_ids[row]))
    names = [dataset.frame_ids[row] for row in rows]
    drive = Series(dataset, rows, names, mounting_of(options))
    with locked(options.output):
        output = Output(options.output, options.format, drive)
        scans = detect(detector, drive, ego, options.rate)
        poses = [scan.pose for scan in scans]
        found = [one for one in objects_of(scans, drive.points) if one.confidence >= LISTED]
        entries, lost = judged(found, output.verdicts, drive, poses)
        output.write(entries, lost, poses)


class Series(NamedTuple):
    """The scans of a data set as one recording."""

    dataset: Dataset
    rows: list[int]  # of the data set, in the order of time
    names: list[str]
    mounting: Mounting

    def points(self, number: int) -> np.ndarray:
        """A scan in the network's frame."""
        return self.mounting.to_network(self.dataset[self.rows[number]].points)

    @property
    def checksum(self) -> int:
        """Of the names and sizes of the scans."""
        files = [self.dataset.layout.cloud(name) for name in self.names]
        return zlib.crc32(repr([(path.name, path.stat().st_size) for path in files]).encode())


def detect(detector: Detector, drive: Series, ego: EgoMotion, rate: float) -> list[Observed]:
    """What each scan and its mirror images show. They are also turned by half a turn where the
    network sees all around."""
    scans, notes, total = [], Tally(), 0
    for number, name in enumerate(tqdm(drive.names, unit="scan", disable=None)):
        points, time = drive.points(number), number / rate
        notes.add(name, detector.examine(points))
        around = detector.config.grid.range[0] < 0
        flips = [(), (1,), (0,), (0, 1)] if around else [(), (1,)]
        found = merge_views([view_of(detector, points, axes) for axes in flips])
        inside = points_in_boxes(points, found.boxes).sum(axis=1)
        scans.append(Observed(found, inside, time, ego(points, time)))
        total += len(points)
    for line in notes.lines():
        print(f"warning: {line}", file=sys.stderr)
    if not total:
        raise ValueError(f"{drive.dataset.layout.clouds}: none of {len(scans)} scans has a point")
    return scans


class Listed(NamedTuple):
    """An object as the list of objects has it."""

    object: Object
    name: str  # of its class, perhaps corrected
    labelled: bool
    verdict: str | None
    best: int  # number of the scan that shows it best

    @property
    def doubts(self) -> dict[str, float]:
        """How doubtful each kind of evidence is, from 0 to 1."""
        one = self.object
        return {
            "score": score_entropy(np.array([one.confidence])),
            "gaps": float((one.scores[one.present] == 0).mean()),
            "spread": min(1.0, one.spread / (one.boxes[0, 4] / 2)),
        }


def judged(
    objects: Sequence[Object], verdicts: Sequence[dict], drive: Series, poses: Sequence[np.ndarray]
) -> tuple[list[Listed], list[dict]]:
    """The objects with the user's verdicts, and the verdicts that fit none of the objects. An
    object is the one of an earlier run where both have the same class and place."""
    verdict_of: dict[int, str] = {}
    lost = []
    for old in verdicts:
        if old["frame"] not in drive.names:
            lost.append(old)
            continue
        number = drive.names.index(old["frame"])
        box = drive.mounting.boxes_to_network(np.array(old["box"], np.float64)[None])
        box = move_boxes(box, poses[number])
        fits = [
            box_iou(one.boxes[number][None], box)[0][0] if one.name == old["class"] else 0.0
            for one in objects
        ]
        if max(fits, default=0) >= SAME:
            verdict_of[int(np.argmax(fits))] = old["verdict"]
        else:
            lost.append(old)
    entries = []
    for place, one in enumerate(objects):
        verdict, labelled = verdict_of.get(place), one.coherent and one.confidence >= SURE
        labelled = labelled if verdict is None else verdict != REJECT
        name = one.name if verdict in (None, ACCEPT, REJECT) else str(verdict)
        best = int(np.argmax(one.points * (one.scores > 0)))
        entries.append(Listed(one, name, labelled, verdict, best))
    return entries, lost


class Output:
    """The folder that is written. Raises ValueError where it belongs to something else."""

    def __init__(self, folder: Path, form: str, drive: Series):
        self.folder, self.form, self.drive = folder, form, drive
        self.verdicts: list[dict] = []  # the user's, on objects of an earlier run
        self.written: dict[str, list[int]] = {}  # checksums of label files of earlier runs
        self.results = ResultFolder(folder / "tracks", drive.names)
        if (folder / LIST).is_file():
            self._read_list(folder / LIST)
        foreign = [name for name in drive.names if self.label(name).exists()]
        foreign = [name for name in foreign if name not in self.written]
        if foreign:
            raise ValueError(
                f"{folder}: labels of {some(foreign)} not written by this program; give another "
                "--output"
            )

    def label(self, name: str, folder: Path | None = None) -> Path:
        return (folder or self.folder) / FORMS[self.form].format(name)

    def _read_list(self, path: Path) -> None:
        try:
            content = json.loads(read_text(path))
            drive, form, self.written = (content[key] for key in ("drive", "format", "written"))
            self.verdicts = [one for one in content["objects"] if one["verdict"] is not None]
            words = [word for one in self.verdicts for word in (one["verdict"], one["class"])]
            fits = all(word.split() == [word] for word in words)
            fits &= all(np.shape(one["box"]) == (7,) and one["frame"] for one in self.verdicts)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            fits = False
        if not fits:
            raise ValueError(
                f"{path}: not a list of objects with verdicts null, {ACCEPT}, {REJECT} or a class; "
                "mend it or give another --output"
            )
        if drive != self.drive.checksum:
            raise ValueError(f"{self.folder}: has labels of another drive; give another --output")
        if form != self.form:
            raise ValueError(
                f"{self.folder}: has labels with --format {form}; give this or another --output"
            )

    def write(self, entries: Sequence[Listed], lost: list[dict], poses: list[np.ndarray]) -> None:
        """All that was found, but for label files that the user has changed."""
        labels = [self._labels(entries, number, pose) for number, pose in enumerate(poses)]
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
            self._write_list(entries, lost, poses)
            self.label("").parent.mkdir(exist_ok=True)
            for name in self.drive.names:
                if name not in corrected:
                    os.replace(self.label(name, Path(folder)), self.label(name))
        for name, (found, ids) in zip(self.drive.names, labels, strict=True):
            result = {"frame": name, "boxes": found.boxes.round(4).tolist()}
            result |= {"scores": found.scores.tolist(), "names": found.names, "ids": ids}
            self.results.write(name, result)
        count = sum(entry.labelled for entry in entries)
        print(f"{count} objects in {len(poses)} scans: {self.label('').parent}")
        print(f"{len(entries)} objects, the most doubtful first: {self.folder / LIST}")
        if corrected:
            print(f"labels of {some(corrected)} corrected by hand and kept")
        for old in lost:
            place = f"a {old['class']} in {old['frame']}"
            print(f"warning: the verdict on {place} fits no object, but is kept", file=sys.stderr)

    def _labels(
        self, entries: Sequence[Listed], number: int, pose: np.ndarray
    ) -> tuple[NamedDetections, list[int]]:
        """The labels of a scan, and their ids."""
        ids = [
            place
            for place, entry in enumerate(entries, start=1)
            if entry.labelled and entry.object.present[number]
        ]
        shown = [entries[place - 1] for place in ids]
        boxes = np.array([entry.object.boxes[number] for entry in shown]).reshape(-1, 7)
        boxes = self.drive.mounting.boxes_from_network(move_boxes(boxes, inverse(pose)))
        scores = np.array([entry.object.confidence for entry in shown]).round(4)
        return NamedDetections(boxes, scores, [entry.name for entry in shown]), ids

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

    def _write_list(
        self, entries: Sequence[Listed], lost: list[dict], poses: Sequence[np.ndarray]
    ) -> None:
        objects = []
        for place, entry in enumerate(entries, start=1):
            one, doubts = entry.object, entry.doubts
            why = max(doubts, key=lambda reason: doubts[reason])
            box = move_boxes(one.boxes[entry.best][None], inverse(poses[entry.best]))
            objects.append(
                {
                    "id": place,
                    "class": one.name,
                    "verdict": entry.verdict,
                    "labelled": entry.labelled,
                    "confidence": round(one.confidence, 4),
                    "doubt": round(doubts[why], 4) if entry.verdict is None else 0,
                    "why": why,
                    "scans": int(one.present.sum()),
                    "standing": one.standing,
                    "frame": self.drive.names[entry.best],
                    "box": self.drive.mounting.boxes_from_network(box)[0].round(4).tolist(),
                }
            )
        objects.sort(key=lambda one: -one["doubt"])
        head = {"drive": self.drive.checksum, "format": self.form, "objects": [*objects, *lost]}
        write_json(self.folder / LIST, head | {"written": self.written})


def checksum(path: Path) -> int | None:
    return zlib.crc32(path.read_bytes()) if path.is_file() else None


if __name__ == "__main__":
    sys.exit(main())
